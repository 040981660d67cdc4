//! The one list of all cases.

/// Hands the list to the macro in brackets. Everything that speaks of all cases goes through here: the suite,
/// the names, the table of saboteurs.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_case {
    ([$($then:tt)*]) => {
        $($then)*! {
            a_fixture {
                begins_empty
                has_a_ttl_that_the_backend_takes
                has_one_namespace
                has_a_backend_with_a_retention
                has_an_operator
                waits_until_all_are_connected
                reads_the_record
                counts_what_the_server_holds
                counts_what_is_served
                breaks_one_route_only
                cuts_the_path
                silences_the_path
                delays_the_path
                loses_replies
                loses_pushes
                holds_and_delivers
                doubles_requests
                heals_the_path
                stops_and_starts
                kills_and_starts
                starts_without_data
                pauses_and_resumes
                refuses_the_user
                refuses_writes
                fills_the_store
                fills_the_connections
                forgets_scripts
                steps_the_clock_forward
                steps_the_clock_back
                removes_a_record
                spoils_a_record
                writes_another_version
            }
            exclusion {
                one_holder_at_a_time
                two_names_are_two_locks
                free_again_after_each_release
                two_clients_and_a_counter
                a_hundred_tasks_and_a_counter
                the_history_of_a_herd
                a_herd_without_a_lost_wakeup
                many_locks_at_once
                one_client_excludes_itself
            }
            defaults {
                an_acquire_is_at_once
                a_wait_ends_with_the_release
                clients_take_turns_in_time
                a_lease_is_kept
                a_loss_is_told
                a_shortest_hold_is_kept_and_no_longer
            }
            ownership {
                stale_release_leaves_the_new_holder
                stale_withdraw_leaves_the_new_holder
                stale_renewal_leaves_the_new_holder
                renewal_after_expiry_never_revives
                second_release_is_a_no_op
                release_of_a_claim_never_granted
                repeated_acquire_answers_the_same_grant
                repeated_acquire_keeps_its_place
                renewal_creates_nothing
                two_claims_of_one_client_are_two_owners
                a_claim_that_wants_no_place_leaves_none
            }
            lease {
                expires_after_its_ttl_and_not_before
                every_renewal_restarts_the_ttl
                a_renewal_never_shortens
                a_renewal_shortens_when_it_is_told_to
                one_call_renews_each_to_its_own_ttl
                a_ttl_is_rounded_up_and_reported
                a_slow_grant_leaves_a_true_validity
                a_slow_renewal_leaves_a_true_validity
                a_long_ttl_out_of_a_queue_is_a_true_one
                a_hold_outlives_the_retention
                the_holder_never_believes_longer_than_the_server
                a_fixed_lease_is_not_renewed
                a_fixed_lease_that_waited_has_its_whole_ttl
                the_default_ttl_is_whole_soon_after_a_grant
                max_hold_ends_the_renewal
                max_hold_bounds_a_longer_ttl
                min_hold_outlives_an_early_release
                min_hold_outlives_the_client
                validity_keeps_a_margin_and_shrinks
            }
            waiting {
                a_wait_of_zero_is_one_attempt
                a_wait_below_a_second_is_kept
                a_long_wait_ends_in_time
                the_wait_includes_connecting
                a_release_wakes_the_waiter
                the_waiter_of_a_dead_holder_takes_over
                a_waiter_that_died_in_the_queue_is_passed_over
                a_lost_push_costs_time_only
                what_is_told_during_a_call_is_not_lost
                clients_are_served_in_order_where_that_is_claimed
                tasks_of_one_client_are_served_in_order
                a_thousand_waiters_all_get_their_turn
                the_cost_of_a_handoff_is_flat
            }
            unsure {
                a_stuck_request_has_no_effect_after_the_release
                a_withdrawn_request_has_no_effect
                a_withdrawn_claim_is_remembered
                a_withdrawn_claim_outlives_a_crash
                an_acquire_given_up_in_flight_leaves_nothing
                a_grant_whose_answer_was_lost_is_withdrawn
                a_late_answer_of_an_older_place_counts_for_nothing
                tasks_with_short_waits_get_a_long_queue
            }
            cancellation {
                an_acquire_dropped_at_every_await_leaves_nothing
                a_waiter_dropped_at_every_await_leaves_nothing
                dropped_calls_harm_no_later_call
                an_acquire_that_is_never_polled_sends_nothing
                an_acquire_dropped_with_its_answer_lost_leaves_nothing
                a_waiter_dropped_as_it_is_granted_passes_the_lock_on
                a_release_dropped_at_every_await_goes_on
                a_dropped_guard_releases_at_once
                a_guard_dropped_outside_a_runtime_releases
                a_leaked_guard_ends_with_its_client
                a_runtime_that_is_shut_down_leaves_nothing
                a_runtime_that_is_shut_down_with_its_keeper_ends_leases_by_ttl
                a_runtime_that_stands_still_leaves_nothing
                a_hundred_waiters_torn_down_at_once_leave_nothing
                a_client_that_goes_with_an_acquire_under_way_leaves_nothing
                a_shutdown_releases_everything
                a_shutdown_in_front_of_silence_has_an_end
                a_dropped_run_releases
            }
            keeper {
                holds_for_three_ttls
                the_next_lease_of_a_name_is_renewed_again
                ten_thousand_cycles_leave_one_renewal_per_period
                silence_after_the_release
                silence_after_the_drop
                silence_after_the_loss
                a_lease_that_is_gone_is_told
                a_loss_is_told_once_and_stays
                guarded_work_ends_with_the_lease
                a_starved_runtime_loses_nothing
                a_paused_process_learns_of_its_loss_at_once
                a_clock_that_jumps_ends_the_validity
                trouble_shorter_than_the_validity_loses_nothing
                silence_is_lost_when_the_validity_ends
                a_cut_is_lost_when_the_validity_ends
                a_late_renewal_revives_nothing
                an_answer_after_an_end_that_nobody_saw_revives_nothing
                a_slow_path_loses_nothing
                a_release_during_a_renewal_stays_a_release
                one_poisoned_lease_of_a_thousand
                a_renewal_that_panics_harms_no_other_lease
                after_a_loss_the_lock_goes_on
            }
            reentry {
                the_same_holder_shares_one_lease
                another_holder_waits
                pending_acquires_of_one_holder_are_granted_together
                cancelling_one_pending_acquire_leaves_the_other
                a_shared_lease_has_one_ttl
                a_loss_reaches_all_guards
            }
            fencing {
                rises_across_releases
                rises_across_expiry
                rises_across_handoffs
                rises_across_a_removed_record
                rises_across_a_restart
                rises_across_a_kill
                rises_across_lost_data
                a_stale_token_stays_its_own
                a_late_write_is_refused
            }
            faults {
                a_server_that_is_down_is_unavailable
                an_acquire_outlives_a_restart
                a_restart_makes_no_second_holder
                a_kill_makes_no_second_holder
                lost_data_is_told
                a_server_that_stands_still_does_no_harm
                lost_answers_to_renewals_end_the_validity
                a_lost_answer_to_a_release_is_indeterminate
                a_lost_release_is_sent_again
                doubled_requests_do_what_one_does
                a_waiter_that_was_cut_off_gets_the_lock
                a_refused_user_is_told_at_once
                a_full_server_is_told_at_once
                a_server_without_connections_is_told_at_once
                a_read_only_server_grants_nothing
                forgotten_scripts_are_loaded_again
                a_wall_clock_set_forward_is_survived
                a_wall_clock_set_back_is_survived
            }
            reconnect {
                a_waiter_asks_as_soon_as_it_is_back
                a_waiter_is_told_after_a_reconnect
            }
            names {
                all_names_are_told_apart
                a_strange_name_is_waited_for
                the_encoding_is_frozen
                another_format_version_is_an_error
                an_unreadable_record_is_an_error
            }
            hygiene {
                a_thousand_cycles_leave_nothing
                a_thousand_contended_cycles_leave_nothing
                a_thousand_waits_in_vain_leave_nothing
                no_task_is_left_behind
                a_dropped_client_lets_everything_go
                a_queue_that_was_served_is_gone
            }
            errors {
                bad_input_is_refused_before_anything_is_sent
                an_error_says_what_was_tried
                the_same_situation_has_the_same_kind
                no_secret_is_shown
            }
            capabilities {
                the_figures_make_sense
                the_bounds_of_a_ttl_are_true
                waiting_is_as_claimed
                the_notice_of_a_loss_is_as_claimed
                the_scope_of_a_ttl_is_as_claimed
                the_takeover_bound_is_true
                the_worst_takeover_is_in_time
                more_than_a_batch_is_renewed
                inspection_is_true_or_unsupported
                a_list_is_true_or_unsupported
                a_prefix_is_taken_as_it_is
                a_list_names_what_it_cannot_read
                a_break_ends_the_lease_that_was_meant
                an_examination_is_true_or_unsupported
            }
        }
    };
}
