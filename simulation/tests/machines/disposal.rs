//! A disposal always ends, and never later than it should.

use leasehold_core::backend::{Delivery, Stamp};
use leasehold_core::machines::{Disposal, Ended, Ending, Why};
use leasehold_core::{Error, ErrorKind};
use proptest::prelude::*;

use crate::{TTL, at, exactly, rules};

#[derive(Clone, Copy, Debug)]
enum Input {
    /// Time passes, and the machine is woken if something is due.
    Pass(u64),
    Ended,
    Failed,
    Refused,
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let input = prop_oneof![
        6 => (0..1500_u64).prop_map(Input::Pass),
        1 => Just(Input::Ended),
        3 => Just(Input::Failed),
        3 => Just(Input::Refused),
    ];
    prop::collection::vec(input, 1..40)
}

proptest! {
    #![proptest_config(crate::config())]

    #[test]
    fn a_disposal_calls_until_it_is_answered_or_the_ttl_is_over(inputs in inputs(), in_doubt: bool, overdue: bool) {
        let rules = rules(false);
        let delivery = if in_doubt { Delivery::InDoubt } else { Delivery::Confirmed };
        let ending = Ending::now(Why::Withdraw, delivery, TTL);
        let mut now = 1000;
        let begin = if overdue { now + 500 } else { now };
        let (mut disposal, wake) = match overdue {
            true => Disposal::when_overdue(ending, at(begin)),
            false => Disposal::new(ending, at(now)),
        };
        let (mut wake, mut calls, mut doubt) = (exactly(wake), 0, in_doubt);
        let mut in_flight = false;
        for input in inputs {
            match input {
                Input::Pass(ms) => {
                    now += ms;
                    if at(now) < wake {
                        continue;
                    }
                    let Some((ending, next)) = disposal.handle_timeout(&rules, Stamp::ZERO, at(now)) else {
                        prop_assert!(calls > 0 && at(now) > at(begin).plus(TTL));
                        return Ok(());
                    };
                    // A call without a reply puts the claim in doubt, and the claim stays in doubt.
                    doubt |= in_flight;
                    prop_assert_eq!(ending.delivery == Delivery::InDoubt, doubt);
                    prop_assert!(!disposal.awaits_call());
                    calls += 1;
                    in_flight = true;
                    wake = exactly(next);
                    prop_assert!(wake > at(now));
                }
                _ if !in_flight => {}
                Input::Ended => {
                    prop_assert_eq!(disposal.handle_reply(Ended::Released), None);
                    return Ok(());
                }
                Input::Failed | Input::Refused => {
                    let is_harmless = matches!(input, Input::Refused);
                    let kind = if is_harmless { ErrorKind::Unavailable } else { ErrorKind::Indeterminate };
                    doubt |= !is_harmless;
                    in_flight = false;
                    wake = exactly(disposal.handle_failure(&Error::new(kind, "failed"), at(now)));
                    prop_assert!(wake > at(now) && wake <= at(now + 800));
                }
            }
        }
        // It always has a time at which it is woken.
        prop_assert!(wake > Stamp::ZERO);
    }
}
