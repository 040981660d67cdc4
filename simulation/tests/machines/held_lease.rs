//! A lease ends once, counts as valid no longer than the store has promised, and always has a time at which it is
//! woken.

use leasehold_core::FencingToken;
use leasehold_core::backend::{Delivery, Grant, LeaseKind, PlaceNumber, Stamp};
use leasehold_core::machines::{HeldLease, LeaseOutput, Outputs, Phase, Start};
use proptest::prelude::*;

use crate::{Reply, TTL, at, confirmation, exactly, replies, rules, terms};

#[derive(Clone, Copy, Debug)]
enum Input {
    /// Time passes, and the machine is woken if something is due, perhaps late.
    Pass(u64),
    Check,
    Renewed(Reply),
    PlaceRenewed(u64, Reply),
    GrantPushed(u64),
    Gone,
    GiveUp,
    Close,
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let input = prop_oneof![
        12 => (0..800_u64).prop_map(Input::Pass),
        2 => Just(Input::Check),
        8 => replies().prop_map(Input::Renewed),
        2 => (4..7_u64, replies()).prop_map(|(asked, reply)| Input::PlaceRenewed(asked, reply)),
        1 => (4..7_u64).prop_map(Input::GrantPushed),
        1 => Just(Input::Gone),
        1 => Just(Input::GiveUp),
        1 => Just(Input::Close),
    ];
    prop::collection::vec(input, 1..60)
}

fn holds() -> impl Strategy<Value = (bool, Option<u64>, Option<u64>)> {
    (any::<bool>(), prop::option::of(500..6000_u64), prop::option::of(500..6000_u64))
}

const PLACE: u64 = 5;

/// What the test knows about the lease without looking into it.
struct Observed {
    wake: Option<Stamp>,
    ends: u32,
    /// Until when the store has promised the lease, according to the replies that the machine was given.
    promised: Stamp,
    guards: bool,
}

impl Observed {
    /// Checks the outputs of one input. `due`: the input was a wake-up.
    fn take(&mut self, out: &mut Outputs<LeaseOutput>, now: u64, due: bool) -> Result<(), TestCaseError> {
        for output in out.drain() {
            match output {
                LeaseOutput::Renew { place, ttl } => {
                    prop_assert!(due, "a renewal without a wake-up");
                    prop_assert_eq!(place, PlaceNumber::new(PLACE));
                    prop_assert!(ttl <= TTL);
                }
                LeaseOutput::Wake(wake) => {
                    prop_assert!(self.wake.is_some(), "woken after it was dropped");
                    self.wake = Some(exactly(wake));
                }
                LeaseOutput::WakeBy(stamp) => {
                    prop_assert!(self.wake.is_some(), "woken after it was dropped");
                    self.wake = self.wake.map(|wake| wake.min(stamp));
                }
                LeaseOutput::Released | LeaseOutput::Lost(_) => self.ends += 1,
                LeaseOutput::Unschedule => {
                    prop_assert!(self.wake.take().is_some(), "dropped twice");
                }
                LeaseOutput::End(..) | LeaseOutput::Note(_) => {}
            }
        }
        prop_assert!(self.ends <= 1, "it ended twice");
        prop_assert!(self.wake.is_none_or(|wake| wake <= self.promised.max(at(now)).plus(TTL * 2)));
        Ok(())
    }
}

fn promise(reply: Reply, now: u64) -> Option<Stamp> {
    match reply {
        Reply::Renewed { ago, place } | Reply::Granted { ago, place, .. } | Reply::Waiting { ago, place }
            if place == PLACE =>
        {
            Some(at(now.saturating_sub(ago)).plus(TTL))
        }
        _ => None,
    }
}

proptest! {
    #![proptest_config(crate::config())]

    #[test]
    fn a_lease_ends_once_and_is_believed_in_no_longer_than_promised(
        inputs in inputs(),
        (fixed, max_hold, min_hold) in holds(),
        sessions: bool,
        in_doubt: bool,
        waited: bool,
    ) {
        let rules = rules(sessions);
        let mut now = 10_000;
        let kind = if fixed { LeaseKind::Fixed } else { LeaseKind::Kept };
        let terms = terms(kind, max_hold, min_hold);
        let delivery = if in_doubt { Delivery::InDoubt } else { Delivery::Confirmed };
        let grant = Grant::new(FencingToken::new(2), confirmation(now, 50, PLACE, TTL));
        let start = Start { grant, terms, asked: TTL, delivery, waited };
        let (mut lease, wake, _) = HeldLease::new(&rules, &start, at(now));
        lease.add_guard();
        let promised = grant.confirmation.sent.plus(TTL);
        let mut seen = Observed { wake: Some(exactly(wake)), ends: 0, promised, guards: true };
        let max_end = terms.max_hold.map(|max| at(now).plus(max));
        let mut out = Outputs::default();
        for input in inputs {
            let mut due = false;
            match input {
                Input::Pass(ms) => {
                    now += ms;
                    if seen.wake.is_some_and(|wake| wake <= at(now)) {
                        due = true;
                        lease.handle_timeout(&rules, at(now), &mut out);
                    }
                }
                Input::Check => {
                    let _ = lease.check(at(now), &mut out);
                }
                Input::Renewed(reply) => {
                    seen.promised = seen.promised.max(promise(reply, now).unwrap_or(Stamp::ZERO));
                    lease.handle_renewal_reply(&rules, reply.answer(now), at(now), &mut out);
                }
                Input::PlaceRenewed(asked, reply) => {
                    seen.promised = seen.promised.max(promise(reply, now).unwrap_or(Stamp::ZERO));
                    lease.handle_place_reply(&rules, PlaceNumber::new(asked), reply.answer(now), at(now), &mut out);
                }
                Input::GrantPushed(place) => {
                    lease.handle_pushed_grant(&rules, PlaceNumber::new(place), None, at(now), &mut out);
                }
                Input::Gone => lease.handle_gone(at(now), &mut out),
                Input::GiveUp if !seen.guards => {}
                Input::GiveUp => {
                    seen.guards = false;
                    prop_assert!(lease.drop_guard() && !lease.share());
                    let ended = seen.ends == 1;
                    let given_up = lease.release(&rules, at(now), &mut out);
                    if ended {
                        prop_assert!(given_up.is_err());
                    }
                    if let Ok(Some(ending)) = given_up {
                        prop_assert!(ending.ttl >= TTL);
                        prop_assert!(!in_doubt || ending.delivery == Delivery::InDoubt);
                    }
                }
                Input::Close => lease.close(&rules, at(now), &mut out),
            }
            seen.take(&mut out, now, due)?;
            let checked = lease.clone().check(at(now), &mut Outputs::default());
            let held = checked.is_ok();
            prop_assert!(!(held && seen.ends == 1), "it is held after its end");
            if held {
                prop_assert!(at(now) < seen.promised, "it is held longer than the store has promised");
                prop_assert!(max_end.is_none_or(|end| at(now) < end), "it is held longer than max_hold");
                prop_assert!(seen.wake.is_some_and(|wake| wake <= seen.promised), "nobody finds its loss");
            }
            prop_assert_ne!(checked, Err(Phase::Held), "held and over");
        }
    }
}
