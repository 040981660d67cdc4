//! Every waiting acquire gets one outcome, nothing of a claim is left at the store, and the queue always has a time at
//! which it is woken.

use std::collections::BTreeSet;

use leasehold_core::backend::{AcquireOutcome, Delivery, Grant, LeaseKind, OnContention, PlaceNumber, Stamp};
use leasehold_core::machines::{Joining, Outputs, QueueOutput, WaitQueue};
use leasehold_core::{Error, ErrorKind, FencingToken};
use proptest::prelude::*;

use crate::{PLACE_TTL, Reply, TTL, at, confirmation, exactly, replies, rules, terms};

#[derive(Clone, Copy, Debug)]
enum Input {
    /// Time passes, and the machine is woken if something is due, perhaps late.
    Pass(u64),
    Join {
        tries: bool,
    },
    /// The waiting acquire with this index is cancelled.
    Leave(usize),
    Acquired(Reply),
    NotSent,
    Renewed(u64, Reply),
    GrantPushed(u64),
    Gone,
    Changed,
    Close,
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let input = prop_oneof![
        12 => (0..800_u64).prop_map(Input::Pass),
        4 => any::<bool>().prop_map(|tries| Input::Join { tries }),
        2 => (0..4_usize).prop_map(Input::Leave),
        6 => replies().prop_map(Input::Acquired),
        1 => Just(Input::NotSent),
        6 => (4..7_u64, replies()).prop_map(|(asked, reply)| Input::Renewed(asked, reply)),
        2 => (4..7_u64).prop_map(Input::GrantPushed),
        1 => Just(Input::Gone),
        2 => Just(Input::Changed),
        1 => Just(Input::Close),
    ];
    prop::collection::vec(input, 1..60)
}

fn acquisition(reply: Reply, now: u64) -> Result<AcquireOutcome, Error> {
    match reply {
        Reply::Renewed { ago, place } => {
            Ok(AcquireOutcome::Granted(Grant::new(FencingToken::new(1), confirmation(now, ago, place, TTL))))
        }
        Reply::Granted { ago, place, token } => {
            Ok(AcquireOutcome::Granted(Grant::new(FencingToken::new(token), confirmation(now, ago, place, TTL))))
        }
        Reply::Waiting { ago, place } => {
            Ok(AcquireOutcome::Queued { confirmation: confirmation(now, ago, place, PLACE_TTL), retry_after: TTL })
        }
        Reply::Free => Ok(AcquireOutcome::Contended { retry_after: TTL }),
        Reply::Lost => Err(Error::new(ErrorKind::Auth, "refused for good")),
        Reply::Unknown => Err(Error::new(ErrorKind::Indeterminate, "no reply")),
        Reply::NotSent => Err(Error::new(ErrorKind::Unavailable, "refused")),
    }
}

/// What the test knows about the queue without looking into it.
#[derive(Default)]
struct Observed {
    waiting: BTreeSet<u64>,
    wake: Option<Stamp>,
    is_over: bool,
    /// An acquire is in flight, or the store may have a place or a lease of the claim for another reason.
    in_flight: bool,
    at_store: bool,
}

impl Observed {
    fn take(&mut self, out: &mut Outputs<QueueOutput<u64>>, due: bool) -> Result<(), TestCaseError> {
        for output in out.drain() {
            prop_assert!(!self.is_over, "it goes on after its end: {output:?}");
            match output {
                QueueOutput::NewClaim | QueueOutput::Finished => {
                    prop_assert!(!self.at_store, "something of the claim is left at the store");
                    self.in_flight = false;
                    self.is_over = matches!(output, QueueOutput::Finished);
                }
                QueueOutput::Acquire { delivery } => {
                    prop_assert!(!self.in_flight, "two acquires at once");
                    self.in_flight = true;
                    self.at_store |= delivery == Delivery::InDoubt;
                }
                QueueOutput::Renew { .. } => prop_assert!(due, "a renewal without a wake-up"),
                QueueOutput::End(_) | QueueOutput::EndWhenOverdue(..) => self.at_store = false,
                QueueOutput::Granted { to, .. } => {
                    self.at_store = false;
                    for acquire in to {
                        prop_assert!(self.waiting.remove(&acquire), "told twice");
                    }
                }
                QueueOutput::Failed { to, .. } => prop_assert!(self.waiting.remove(&to), "told twice"),
                QueueOutput::Wake(wake) => self.wake = Some(exactly(wake)),
                QueueOutput::WakeBy(stamp) => self.wake = self.wake.map(|wake| wake.min(stamp)),
                QueueOutput::Watch | QueueOutput::Note(_) => {}
            }
        }
        prop_assert_eq!(self.is_over, self.waiting.is_empty());
        Ok(())
    }
}

proptest! {
    #![proptest_config(crate::config())]

    #[test]
    fn everybody_gets_one_outcome_and_nothing_is_left(inputs in inputs(), sessions: bool, kinds: [bool; 4]) {
        let rules = rules(sessions);
        let mut now = 10_000;
        let mut next = 0;
        let mut joining = |now: u64, tries: bool| {
            next += 1;
            let kind = if kinds[next as usize % kinds.len()] { LeaseKind::Fixed } else { LeaseKind::Kept };
            let on_contention = if tries { OnContention::Fail } else { OnContention::Queue };
            let terms = terms(kind, None, None);
            Joining { acquire: next, terms, on_contention, confirm_after: at(now + 2000), to: next }
        };
        let first = joining(now, false);
        let mut seen = Observed { waiting: BTreeSet::from([first.acquire]), in_flight: true, ..Observed::default() };
        let mut queue = WaitQueue::new(first, at(now));
        let mut out = Outputs::default();
        for input in inputs {
            let mut due = false;
            match input {
                Input::Pass(ms) => {
                    now += ms;
                    if seen.wake.is_some_and(|wake| wake <= at(now)) {
                        due = true;
                        // A reply that has not come by now counts as unknown.
                        seen.at_store |= seen.in_flight;
                        queue.handle_timeout(&rules, at(now), &mut out);
                        seen.in_flight &= false;
                    }
                }
                Input::Join { tries } => {
                    let joining = joining(now, tries);
                    seen.waiting.insert(joining.acquire);
                    queue.join(&rules, joining, &mut out).unwrap();
                    prop_assert!(seen.in_flight || seen.wake.is_some());
                }
                Input::Leave(index) => {
                    let Some(acquire) = seen.waiting.iter().nth(index).copied() else { continue };
                    seen.waiting.remove(&acquire);
                    prop_assert!(queue.leave(&rules, acquire, at(now), &mut out).is_some());
                }
                Input::Acquired(_) | Input::NotSent if !seen.in_flight => continue,
                Input::Acquired(reply) => {
                    seen.in_flight = false;
                    let answer = acquisition(reply, now);
                    seen.at_store |= match &answer {
                        Ok(AcquireOutcome::Granted(_) | AcquireOutcome::Queued { .. }) => true,
                        Ok(_) => false,
                        Err(error) => error.kind() == ErrorKind::Indeterminate,
                    };
                    queue.handle_acquire_reply(&rules, answer, at(now), &mut out);
                }
                Input::NotSent => {
                    seen.in_flight = false;
                    queue.handle_not_sent(at(now), &mut out);
                }
                Input::Renewed(asked, reply) => {
                    let answer = reply.answer(now);
                    queue.handle_renewal_reply(&rules, PlaceNumber::new(asked), answer, at(now), &mut out);
                    // Only the reply to a renewal of its place says that the place is gone, and this test does not
                    // follow those replies.
                    if matches!(reply, Reply::Lost | Reply::Free) && !seen.in_flight {
                        seen.at_store = false;
                    }
                }
                Input::GrantPushed(place) => {
                    let grant = (PlaceNumber::new(place), FencingToken::new(2));
                    queue.handle_pushed_grant(&rules, grant, None, at(now), &mut out);
                }
                Input::Gone => queue.handle_gone(&rules, at(now), &mut out),
                Input::Changed => queue.handle_change(at(now), &mut out),
                Input::Close => {
                    queue.close(&rules, &Error::new(ErrorKind::Unavailable, "shut down"), &mut out);
                }
            }
            seen.take(&mut out, due)?;
            prop_assert_eq!(queue.waiting(), seen.waiting.len());
            if seen.is_over {
                return Ok(());
            }
            prop_assert!(seen.in_flight || seen.wake.is_some(), "nobody ever wakes it");
        }
    }
}
