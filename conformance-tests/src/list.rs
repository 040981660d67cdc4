//! The one list of all cases.

/// Hands the list to the macro in brackets. Everything that speaks of all cases goes through here: the suite,
/// the names, the table of saboteurs.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_case {
    ([$($then:tt)*]) => {
        $($then)*! {
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
        }
    };
}
