//! Every case fails on its saboteur, and for the right reason.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use leasehold_conformance::saboteurs::*;
use leasehold_conformance::{CASES, cases, run_case};

/// A case that hangs on its saboteur fails without a reason, so no case should hang.
const DEADLINE: Duration = Duration::from_secs(20);

/// The saboteur of each case, and words of the message with which the case fails on it.
macro_rules! saboteurs {
    ($($group:ident { $($case:ident: $saboteur:ident, $words:literal;)* })*) => {
        fails! { $($group { $($case: $saboteur, $words;)* })* }

        const TABLE: &[&str] = &[$($(concat!(stringify!($group), "::", stringify!($case)),)*)*];
    };
}

macro_rules! fails {
    ($($group:ident { $($case:ident: $saboteur:ident, $words:literal;)* })*) => {
        $(mod $group {
            use super::*;

            $(#[test]
            fn $case() {
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    run_case::<Sabotaged<$saboteur>>(DEADLINE, |fixture| Box::pin(cases::$group::$case(fixture)));
                }));
                let panic = outcome.expect_err(concat!("the case passes on ", stringify!($saboteur)));
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                let text = text.unwrap_or_default();
                assert!(text.contains($words), "the case fails for another reason than {:?}:\n{text}", $words);
            })*
        })*
    };
}

saboteurs! {
    a_fixture {
        begins_empty: SharesItsNamespace, "Fixture::new: ";
        has_a_backend_with_a_retention: RetainsForEver, "Fixture::backend_with_retention: the record";
        counts_what_the_server_holds: CountsNothing, "Fixture::resource_counts: two clients";
        counts_what_is_served: CountsNoRequest, "Fixture::served: an acquire";
        closes_connections: DisconnectsNothing, "Fixture::path(Disconnect): an acquire got the reply";
        loses_pushes: LosesNoPushes, "Fixture::path(LosePushes): a push has arrived";
        holds_and_delivers: DeliversNothing, "Fixture::deliver: it has returned";
        doubles_requests: DoublesNothing, "Fixture::path(Double): the number";
        kills_without_an_orderly_stop: KillsInOrder, "Fixture::server(Kill): a server that was killed";
        steps_the_clock_forward: StepsNoClock, "Fixture::server(ClockForward(";
        steps_the_clock_back: StepsNoClock, "Fixture::server(ClockBack(";
    }
    exclusion {
        one_holder_at_a_time: GrantsEverybody, "two clients hold one lock";
        two_names_are_two_locks: OneLockForAll, "the lock is free";
        free_again_after_each_release: DropsReleases, "still held in round";
        two_clients_and_a_counter: GrantsEveryTenth, "increments were lost";
        a_hundred_tasks_and_a_counter: GrantsEveryTenth, "increments were lost";
        the_history_of_many_clients: TokensFall, "tokens do not rise";
        many_locks_at_once: CollidingNames, "held by the holder of another name";
        one_client_excludes_itself: OneOwnerPerClient, "one client holds a lock twice";
    }
    defaults {
        an_acquire_is_at_once: LongLeases, "the store has";
        a_lease_is_kept: RefusesRenewals, "after a third of the default ttl";
        a_loss_is_reported: PretendsToRenew, "that is gone is reported";
        a_shortest_hold_is_kept_and_no_longer: RunsOutAtOnce, "within the shortest hold";
    }
    ownership {
        stale_release_leaves_the_new_holder: ReleasesByName, "NotHeld";
        stale_withdraw_leaves_the_new_holder: ReleasesByName, "NotHeld";
        stale_renewal_leaves_the_new_holder: RenewsByName, "the stale renewal returned";
        renewal_after_expiry_never_revives: RenewalRevives, "its renewal returned";
        second_release_is_a_no_op: AlwaysReleased, "NotHeld";
        release_of_a_claim_never_granted: AlwaysReleased, "NotHeld";
        repeated_acquire_returns_the_same_grant: NewGrantEachTime, "one claim was granted twice";
        repeated_acquire_keeps_its_place: NewGrantEachTime, "has another place";
        renewal_creates_nothing: RenewalRevives, "a stranger renewed a free lock";
        two_claims_of_one_client_are_two_owners: OneOwnerPerClient, "held by another";
        a_claim_without_a_place_leaves_none: QueuesEverybody, "the request has no place";
    }
    lease {
        expires_after_its_ttl_and_not_before: ShortLeases, "before the lease had ended";
        every_renewal_restarts_the_ttl: PretendsToRenew, "at the server";
        a_renewal_never_shortens: RenewalsShorten, "was shortened";
        a_renewal_shortens_on_request: NeverShortens, "no takeover";
        one_call_renews_each_to_its_own_ttl: OneTtlForAll, "was renewed to";
        a_ttl_is_rounded_up_and_reported: RoundsDown, "requested";
        a_slow_grant_leaves_a_true_validity: StampsTheReply, "valid of";
        a_slow_renewal_leaves_a_true_validity: StampsRenewalsLate, "renewed on a slow path";
        a_long_ttl_out_of_a_queue_is_a_true_one: ConfirmsTheWholeTtl, "a place confirms";
        a_hold_outlives_the_retention: SweepsHeldLeases, "records of free locks";
        a_sweep_leaves_what_was_acquired_meanwhile: SweepsByAnOldList, "was removed while the lock was held";
        a_check_and_a_grant_are_one_step: ChecksThenGrants, "two clients were granted";
        the_holder_never_believes_longer_than_the_server: StampsTheFuture, "the holder's validity is";
        a_fixed_lease_is_not_renewed: RenewsByItself, "a fixed lease was renewed";
        a_fixed_lease_ends_beside_a_kept_one: RenewsAllOfTheClient, "although another one is renewed";
        a_fixed_lease_that_waited_has_its_whole_ttl: RefusesRenewals, "that waited was lost early";
        the_default_ttl_is_whole_soon_after_a_grant: RefusesRenewals, "soon has its whole ttl";
        max_hold_ends_the_renewal: RenewsByItself, "longest hold";
        max_hold_bounds_a_longer_ttl: LongLeases, "at the server ends by `max_hold`";
        min_hold_outlives_an_early_release: RunsOutAtOnce, "within `min_hold`";
        min_hold_outlives_the_client: RunsOutAtOnce, "outlives the client";
        a_shutdown_ends_a_min_hold_that_is_over: NeverShortens, "after a shutdown";
        validity_keeps_a_margin_and_shrinks: ReportsTooMuch, "is valid for";
        a_later_grant_has_its_whole_ttl: StampsAllAsTheFirst, "a later lease";
    }
    waiting {
        a_wait_of_zero_is_one_attempt: SlowToRefuse, "one attempt ends";
        a_wait_below_a_second_is_kept: GivesUpEarly, "gave up before";
        a_long_wait_ends_in_time: DropsReleasesOfWaiters, "leaves the queue";
        the_wait_includes_connecting: TakesSilenceForAReply, "the server did not reply";
        a_release_wakes_the_waiter: PushesNothing, "acquires the lock at once";
        a_waiter_that_died_in_the_queue_is_passed_over: RenewsByItself, "dead waiter";
        a_lost_push_costs_time_only: ReportsStalePlaces, "the next poll";
        a_watch_reports_once: WatchesNothing, "a release is reported once";
        a_release_notifies_the_waiters_of_its_lock_only: WakesWaitersOfAllLocks, "notified the waiters of others";
        an_event_during_a_call_is_not_lost: PushesNothing, "notified during its request";
        clients_are_served_in_order_where_that_is_claimed: SkipsTheHead, "claims order";
        a_waiter_that_gives_up_passes_nothing_on: PassesOnItsPlace, "holds beside the holder";
        tasks_of_one_client_are_served_in_order: TokensFall, "out of order";
        a_thousand_waiters_all_get_their_turn: TokensTwice, "a thousand holders";
        the_cost_of_a_handoff_is_flat: WakesEverybody, "requests per handoff";
    }
    in_doubt {
        a_stuck_request_has_no_effect_after_the_release: IgnoresInDoubt, "took effect after the release";
        a_withdrawn_request_has_no_effect: IgnoresInDoubt, "a withdrawn claim was granted";
        a_withdrawal_beside_its_request_wins: ReadsNotesBeforeItLocks, "a withdrawn claim holds or waits";
        a_withdrawn_claim_is_remembered: PurgesWithdrawnClaimsEarly, "after it was withdrawn";
        a_withdrawn_claim_outlives_a_crash: CrashLosesWithdrawnClaims, "a withdrawn claim was granted after a crash";
        an_acquire_dropped_in_flight_leaves_nothing: IgnoresInDoubt, "took no effect";
        a_grant_whose_reply_was_lost_is_withdrawn: DropsReleases, "is withdrawn";
        a_late_reply_about_an_older_place_is_ignored: StampsTheFuture, "do not prolong";
        tasks_with_short_waits_get_a_long_queue: LosesPlacesOfTheLast, "when it is their turn";
        a_waiter_without_replies_does_not_know: PretendsToKeepPlaces, "a disconnected waiter";
    }
    cancellation {
        an_acquire_dropped_at_every_await_leaves_nothing: DropsReleases, "was dropped after";
        a_waiter_dropped_at_every_await_leaves_nothing: DropsReleasesOfWaiters, "leaves no place";
        dropped_calls_harm_no_later_call: LeaksPermits, "after many that were dropped";
        a_dropped_call_harms_none_beside_it: AbortsCallsBeside, "one beside it was given up";
        an_acquire_that_is_never_polled_sends_nothing: SendsStrayRequests, "never polled";
        an_acquire_dropped_with_its_reply_lost_leaves_nothing: DropsReleases, "is withdrawn";
        a_waiter_dropped_as_it_is_granted_passes_the_lock_on: DropsReleasesOfWaiters, "keeps nothing";
        a_release_dropped_at_every_await_goes_on: DropsReleases, "a release was dropped";
        a_dropped_guard_releases_at_once: DropsReleases, "a dropped guard releases";
        a_guard_dropped_outside_a_runtime_releases: DropsReleases, "outside a runtime releases";
        a_leaked_guard_ends_with_its_client: DropsReleases, "a shutdown releases";
        a_runtime_that_is_shut_down_leaves_nothing: DropsReleases, "dropped with its runtime";
        a_runtime_that_is_shut_down_with_its_keeper_ends_leases_by_ttl: RenewsByItself, "ends by its ttl";
        a_runtime_that_is_not_driven_leaves_nothing: DropsReleases, "stalled runtime";
        a_hundred_waiters_dropped_at_once_leave_nothing: DropsReleasesOfWaiters, "do not block the lock";
        a_client_dropped_with_an_acquire_in_flight_leaves_nothing: DropsReleases, "dropped with its client";
        a_shutdown_releases_everything: DropsReleases, "a shutdown waits";
        a_shutdown_without_replies_has_an_end: TakesSilenceForAReply, "must fail";
        a_dropped_run_releases: DropsReleases, "is_free";
    }
    keeper {
        holds_for_three_ttls: PretendsToRenew, "taken from its holder";
        the_next_lease_of_a_name_is_renewed_again: RenewsTheFirstOnly, "lease 1 of one name";
        ten_thousand_cycles_leave_one_renewal_per_period: RenewsTwice, "more than one per period";
        requests_are_within_what_the_backend_promises: TakesFewerLater, "renewals in one call";
        silence_after_the_release: RenewsByItself, "still sends requests";
        silence_after_the_drop: RenewsByItself, "still sends requests";
        silence_after_the_loss: RenewsByItself, "still sends requests";
        a_lease_that_is_gone_is_reported: PretendsToRenew, "is reported";
        a_loss_is_reported_once_and_stays: ReportsFalseLosses, "before the validity ended";
        guarded_work_ends_with_the_lease: ReportsFalseLosses, "ended before the lease";
        a_starved_runtime_loses_nothing: RenewsOnTheUsersRuntime, "starved runtime";
        a_paused_process_learns_of_its_loss_at_once: ClockStopsWhileIdle, "after a pause the guard reports held: true";
        a_clock_that_jumps_ends_the_validity: StampsTheFuture, "reads the state of a task and not the clock";
        an_outage_shorter_than_the_validity_loses_nothing: StaysBroken, "lost the lease";
        without_replies_the_lease_is_lost_when_the_validity_ends: TakesSilenceForAReply, "when the validity ends";
        without_a_connection_the_lease_is_lost_when_the_validity_ends: TakesSilenceForAReply, "when the validity ends";
        a_late_renewal_revives_nothing: RenewalRevivesAtServer, "arrived late revived";
        a_reply_after_an_unnoticed_end_revives_nothing: ClockStopsWhileIdle, "revived the lease";
        a_slow_path_loses_nothing: RenewsTooSlowly, "the keeper has an established connection";
        many_leases_on_a_slow_path_lose_none: RenewsOneAfterTheOther, "lost";
        a_release_during_a_renewal_stays_a_release: RenewalRevivesAtServer, "revived the released lease";
        one_poisoned_lease_of_a_thousand: StaysBroken, "caused the loss of others";
        a_renewal_that_panics_harms_no_other_lease: RefusesRenewals, "caused the loss of other leases";
        after_a_loss_the_lock_goes_on: ReleasesByName, "ended the next holder's lease";
    }
    reentry {
        the_same_holder_shares_one_lease: DropsReleases, "outlived its last guard";
        another_holder_waits: GrantsEverybody, "two holders hold one lock";
        pending_acquires_of_one_holder_are_granted_together: PushesNothing, "by one handoff";
        cancelling_one_pending_acquire_leaves_the_other: PushesNothing, "kept its place";
        a_shared_lease_has_one_ttl: SendsStrayRequests, "something was sent";
        a_loss_reaches_all_guards: PretendsToRenew, "every guard is notified";
    }
    fencing {
        rises_across_releases: TokensPerClient, "was followed by";
        rises_across_expiry: TokensPerClient, "was followed by";
        rises_across_handoffs: TokensPerClient, "one token";
        rises_across_a_removed_record: TokensPerClient, "after its record was removed";
        rises_across_a_restart: TokensPerClient, "after a restart";
        rises_across_a_kill: TokensPerClient, "after a restart";
        rises_across_lost_data: TokensPerClient, "after a restart";
        a_stale_token_stays_its_own: ReturnsTheCurrentToken, "a stale claim was granted";
        a_late_write_is_refused: TokensPerClient, "a late write was accepted";
    }
    faults {
        a_server_that_is_down_is_unavailable: TakesSilenceForAReply, "must fail";
        an_acquire_outlives_a_restart: GivesUpEarly, "gave up before";
        a_restart_makes_no_second_holder: GrantsEverybody, "two hold after a restart";
        a_kill_makes_no_second_holder: GrantsEverybody, "two hold after a restart";
        lost_data_is_reported: PretendsToRenew, "notified that its lease is gone";
        a_paused_server_does_no_harm: TakesSilenceForAReply, "holder of a paused server";
        lost_replies_to_renewals_end_the_validity: TakesSilenceForAReply, "does not prolong";
        a_lost_reply_to_a_release_is_indeterminate: TakesSilenceForAReply, "must fail";
        a_release_without_its_connection_is_no_loss: AsksAgainAfterAFailure, "the claim held the lock";
        a_lost_release_is_sent_again: TriesReleasesOnce, "is sent again";
        a_release_of_a_lost_lease_is_no_release: AlwaysReleased, "counts as released";
        doubled_requests_do_what_one_does: NewGrantEachTime, "Renewed";
        a_waiter_that_was_cut_off_gets_the_lock: StaysBroken, "gets the lock";
        a_refused_user_gets_an_error_at_once: NeverGivesUp, "the acquire fails before the end of its wait";
        a_full_server_gives_an_error_at_once: NeverGivesUp, "the acquire fails before the end of its wait";
        a_wait_outlasts_a_server_without_connections: GivesUpWhenFull, "gave up before";
        a_read_only_server_grants_nothing: GrantsOnError, "must fail";
        flushed_scripts_are_loaded_again: ReportsFalseLosses, "the loss of a lease";
        a_wall_clock_set_forward_does_no_harm: ClaimsAWallClock, "its leases end by a wall clock";
        a_wall_clock_set_back_does_no_harm: ClaimsAWallClock, "its leases end by a wall clock";
        a_clock_set_back_revives_no_released_lease: ReleasesByTheDeadline, "a released lease is back";
    }
    reconnect {
        a_waiter_retries_as_soon_as_it_is_connected: HidesReconnects, "has reconnected by itself";
        a_waiter_is_notified_after_a_reconnect: SubscribesOnce, "after a reconnect as before";
        a_holder_is_notified_after_a_reconnect: ClaimsToPush, "a loss is pushed after a reconnect";
        a_slow_path_is_connected_to: ConnectsInEachCall, "not connected over a slow path";
        a_holder_that_is_cut_on_a_slow_path_keeps_its_lease: ConnectsInEachCall,
            "cut on a slow path has lost its lease";
    }
    names {
        all_names_are_distinct: FoldsCase, "is confused with the name";
        a_waiter_gets_a_lock_with_any_name: PushesNothing, "an unusual name acquires the lock at once";
        the_encoding_is_frozen: RenamesLocks, "under the frozen form";
        another_format_version_is_an_error: GrantsOnError, "must fail";
        an_unreadable_record_is_an_error: GrantsOnError, "must fail";
    }
    leaks {
        a_thousand_cycles_leave_nothing: MarksEveryReleaseInDoubt, "withdrawn as in doubt";
        a_thousand_contended_cycles_leave_nothing: LeavesLeases, "back at its baseline";
        a_thousand_waits_in_vain_leave_nothing: DropsReleasesOfWaiters, "back at its baseline";
        no_task_is_left_behind: LeavesTasks, "no task is left";
        a_dropped_client_releases_everything: KeepsBackends, "connections are closed";
        calls_without_replies_leave_no_connection: KeepsTimedOutConnections, "connections without replies are closed";
    }
    errors {
        bad_input_is_refused_before_anything_is_sent: SendsStrayRequests, "something was sent";
        an_error_names_the_action: WritesErrorsAsSentences, "not a fragment";
        the_same_situation_has_the_same_kind: TakesSilenceForAReply, "nothing was sent";
        no_secret_is_shown: LogsTheOwner, "is in a log line";
    }
    capabilities {
        the_figures_make_sense: ChangesItsCapabilities, "differ";
        the_bounds_of_a_ttl_are_true: RefusesShortTtls, "is refused";
        waiting_is_as_claimed: ClaimsToBePolled, "the backend claims";
        the_notice_of_a_loss_is_as_claimed: ClaimsToPush, "whether a loss was pushed";
        the_scope_of_a_ttl_is_as_claimed: ClaimsSessions, "end together";
        the_takeover_bound_is_true: LongLeases, "the takeover bound";
        the_worst_takeover_is_in_time: RenewsByItself, "dead when it got the lock";
        a_whole_batch_is_renewed: RenewsHalfABatch, "lease";
        inspection_is_true_or_unsupported: ShowsNothing, "it is held";
        a_list_is_true_or_unsupported: ShowsNothing, "complete";
        a_prefix_is_taken_as_it_is: ListsByPattern, "no name begins with";
        a_list_names_what_it_cannot_read: ListsByPattern, "cannot read";
        a_break_ends_the_lease_that_was_meant: BreaksByName, "with another token";
        an_examination_is_true_or_unsupported: FailsEveryExamination, "an error in a working store";
    }
}

/// Cases that detect a second defect.
mod further {
    use super::*;

    fails! {
        a_fixture {
            counts_what_the_server_holds: CountsNoPlaces, "Fixture::resource_counts: places";
            counts_what_is_served: CountsItself, "Fixture::served: a request of the fixture";
            closes_connections: DisconnectIsDropTraffic, "Fixture::path(Disconnect): an acquire fails with Unavailable";
            kills_without_an_orderly_stop: KillsNothing, "Fixture::server(Kill): an acquire fails with Unavailable";
            holds_and_delivers: HoldsNothing, "Fixture::path(Hold): a request that is held got a reply";
        }
        capabilities {
            the_bounds_of_a_ttl_are_true: ShortensLongTtls, "instead of 86400s";
            inspection_is_true_or_unsupported: ShowsAFreshLease, "the server has";
            the_scope_of_a_ttl_is_as_claimed: ClaimsConnections, "a lease ends with its connection";
        }
        keeper {
            a_starved_runtime_loses_nothing: LosesARenewalWithTheUsersRuntime, "renewals failed while the runtime";
        }
        defaults {
            a_shortest_hold_is_kept_and_no_longer: HidesShortenedLeases, "soon after the shortest hold";
        }
        waiting {
            clients_are_served_in_order_where_that_is_claimed: LosesOnePush, "every waiter has had a turn";
        }
        faults {
            a_release_of_a_lost_lease_is_no_release: TakesGoneForReleased, "by the repeated release";
            a_wall_clock_set_forward_does_no_harm: SendsTheClientsClock, "at the server";
            a_wall_clock_set_back_does_no_harm: SendsTheClientsClock, "at the server";
        }
    }
}

/// Cases that detect a third defect.
mod third {
    use super::*;

    fails! {
        a_fixture {
            holds_and_delivers: HoldIsDropTraffic, "Fixture::deliver: it has returned";
        }
    }
}

#[test]
fn every_case_has_a_saboteur() {
    assert_eq!(TABLE, CASES, "the table above and the list of cases differ");
}
