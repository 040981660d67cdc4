//! The end of a claim at the store, as pure state machines: how one call ends it, and how the keeper continues until the store has replied
//! or the ttl is over.

use std::time::Duration;

use super::outputs::Wake;
use super::rules::{PATIENCE, Rules, backoff};
use crate::backend::{Delivery, PlaceNumber, ReleaseOutcome, RenewReply};
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind, Result};
use crate::token::FencingToken;

/// How a claim is to end at the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    pub delivery: Delivery,
    /// The longest ttl that a request of the claim had: after it the store has ended by itself whatever it granted.
    pub ttl: Duration,
    /// The lease was released within its `min_hold`: it is left to expire then.
    pub run_out: Option<RunOut>,
    /// The token of a lease that was valid when its holder released it: if the store no longer has it, the holder may have lost it before.
    pub released: Option<FencingToken>,
    /// An earlier call that was to end the claim failed or has no reply.
    pub is_repeated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOut {
    pub at: Stamp,
    pub place: PlaceNumber,
    /// The store has confirmed it. What is left is to withdraw, at its end, a claim of which a request has no reply.
    pub begun: bool,
}

/// The call that ends a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndCall {
    Release(Delivery),
    /// Renews the lease to exactly this ttl, and leaves it to run out.
    RunOut {
        place: PlaceNumber,
        ttl: Duration,
    },
}

/// What the store says to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Released,
    NotHeld,
    /// The lease runs out at the end of its `min_hold`.
    RunsOut,
    /// There is no lease that could run out.
    NothingRunsOut,
}

impl Ending {
    /// Ends the claim at once.
    pub fn now(delivery: Delivery, ttl: Duration) -> Self {
        Self { delivery, ttl, run_out: None, released: None, is_repeated: false }
    }

    /// When the end begins: at once, or at the end of a `min_hold` that the store has confirmed.
    fn begins(&self, now: Stamp) -> Stamp {
        self.run_out.filter(|run_out| run_out.begun).map_or(now, |run_out| run_out.at)
    }

    /// The call that ends the claim now.
    pub fn call(&self, rules: &Rules, now: Stamp) -> EndCall {
        let left = self.run_out.filter(|run_out| !run_out.begun);
        let left = left.map(|run_out| (run_out.place, run_out.at.since(now))).filter(|(_, left)| !left.is_zero());
        match left {
            Some((place, left)) => EndCall::RunOut { place, ttl: rules.ttl(left) },
            None => EndCall::Release(self.delivery),
        }
    }

    /// What is left to do after this reply: a claim of which a request has no reply is withdrawn when its `min_hold` is
    /// over, or at once where nothing runs out.
    pub fn rest(&self, ended: Ended) -> Option<Self> {
        if self.delivery == Delivery::Confirmed {
            return None;
        }
        match ended {
            Ended::Released | Ended::NotHeld => None,
            Ended::RunsOut => {
                let run_out = self.run_out.map(|run_out| RunOut { begun: true, ..run_out });
                Some(Self { run_out, released: None, ..*self })
            }
            Ended::NothingRunsOut => Some(Self { run_out: None, released: None, ..*self }),
        }
    }

    /// What this reply says about the lease at the time of its release.
    pub fn finding(&self, ended: Ended) -> Finding {
        match (ended, self.released) {
            (Ended::Released | Ended::RunsOut, _) | (_, None) => Finding::Kept,
            (Ended::NotHeld | Ended::NothingRunsOut, Some(token)) if self.is_repeated => Finding::Unclear(token),
            (Ended::NotHeld | Ended::NothingRunsOut, Some(_)) => Finding::Lost,
        }
    }
}

/// What is known about a lease that its holder released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The store had it until the release. Or its holder knows that it was lost.
    Kept,
    /// The store did not have it any more.
    Lost,
    /// The store does not have it any more. An earlier call of the release may have ended it, without a reply. Or it was lost: then another
    /// claim may have held the lock before the release. If the last grant of the lock is still the one with this token, none has.
    Unclear(FencingToken),
}

impl Ended {
    /// What the reply to [`EndCall::Release`] says.
    pub fn by_release(release: ReleaseOutcome) -> Self {
        match release {
            ReleaseOutcome::Released => Self::Released,
            ReleaseOutcome::NotHeld => Self::NotHeld,
        }
    }

    /// What the reply to [`EndCall::RunOut`] says.
    pub fn by_renewal(answer: Option<RenewReply>) -> Result<Self> {
        match answer {
            Some(RenewReply::Renewed(_) | RenewReply::Granted(_)) => Ok(Self::RunsOut),
            Some(RenewReply::Unknown(error)) => Err(error),
            Some(RenewReply::Waiting { .. } | RenewReply::Free | RenewReply::Lost) | None => Ok(Self::NothingRunsOut),
        }
    }
}

/// What the end of a claim counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A lease that its holder released.
    Release,
    /// A claim that no acquire waits for any more.
    Withdraw,
}

/// Ends a claim in the background: until the store answers, or its ttl has passed.
#[derive(Clone, Debug)]
pub struct Disposal {
    ending: Ending,
    why: Why,
    until: Stamp,
    failures: u32,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// A call of the user's own may still end the claim, or show that there is nothing to end. Nothing is sent before it is overdue.
    AwaitsCall,
    /// Nothing is in flight: it has not begun, or pauses after a failure.
    Pauses,
    /// A call is in flight.
    InFlight,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// The call of this ending is to be sent, and the disposal wants to be woken when that is overdue.
    Send(Ending, Wake),
    /// The store has not answered for the whole ttl.
    TimedOut,
}

/// What a reply leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The claim has ended, as far as the rest is not to be ended later.
    Done(Why, Option<Ending>),
    Again(Wake),
}

impl Disposal {
    /// Begins at once, or at the end of a `min_hold` that the store has confirmed.
    pub fn new(ending: Ending, why: Why, now: Stamp) -> (Self, Wake) {
        Self::at(ending, why, ending.begins(now), Phase::Pauses)
    }

    /// Begins when a call that may end the claim is overdue.
    pub fn when_overdue(ending: Ending, why: Why, overdue: Stamp) -> (Self, Wake) {
        Self::at(ending, why, overdue, Phase::AwaitsCall)
    }

    fn at(ending: Ending, why: Why, at: Stamp, phase: Phase) -> (Self, Wake) {
        let from = ending.run_out.map_or(at, |run_out| run_out.at.max(at));
        (Self { ending, why, until: from.plus(ending.ttl), failures: 0, phase }, Wake::at(at))
    }

    /// The time has come that it wanted to be woken at. `last_confirmed`: when the newest request was sent by which the store has kept
    /// something of this client alive.
    pub fn due(&mut self, rules: &Rules, last_confirmed: Stamp, now: Stamp) -> Due {
        // What other leases of a session keep alive does not end by itself.
        let lives_on = rules.sessions && now <= last_confirmed.plus(self.ending.ttl);
        if now > self.until && self.failures > 0 && !lives_on {
            return Due::TimedOut;
        }
        if self.phase == Phase::InFlight {
            // It has no reply.
            self.ending.delivery = Delivery::InDoubt;
        }
        self.phase = Phase::InFlight;
        self.failures += 1;
        let ending = self.ending;
        self.ending.is_repeated = true;
        Due::Send(ending, Wake::at(now.plus(rules.call_bound)))
    }

    /// The reply to a call.
    pub fn ended(&mut self, answer: Result<Ended, &Error>, now: Stamp) -> Next {
        match answer {
            Ok(ended) => Next::Done(self.why, self.ending.rest(ended)),
            Err(error) => {
                self.phase = Phase::Pauses;
                if error.kind() != ErrorKind::Unavailable {
                    self.ending.delivery = Delivery::InDoubt;
                }
                Next::Again(Wake::after(now, backoff(PATIENCE, self.failures)))
            }
        }
    }

    /// The store has just handed the lock to the claim: whether what pauses continues at once, because others wait.
    pub fn can_go_on_at_once(&self) -> bool {
        match self.phase {
            Phase::AwaitsCall | Phase::Pauses => self.ending.run_out.is_none(),
            Phase::InFlight => false,
        }
    }

    /// Whether a call that ends now leaves nothing to do.
    pub fn awaits_call(&self) -> bool {
        self.phase == Phase::AwaitsCall
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Capabilities;

    const TTL: Duration = Duration::from_secs(30);

    fn rules() -> Rules {
        let mut capabilities = Capabilities::new("test");
        capabilities.call_bound = Duration::from_secs(4);
        Rules::new(&capabilities, 1)
    }

    fn at(seconds: u64) -> Stamp {
        Stamp::from_start(Duration::from_secs(seconds))
    }

    fn lost_call(disposal: &mut Disposal, now: Stamp) -> Ending {
        match disposal.due(&rules(), Stamp::ZERO, now) {
            Due::Send(ending, wake) => {
                assert_eq!(wake, Wake::at(now.plus(Duration::from_secs(5))));
                ending
            }
            Due::TimedOut => panic!("timed out at {now:?}"),
        }
    }

    #[test]
    fn a_call_without_an_answer_leaves_the_claim_in_doubt() {
        let (mut disposal, wake) = Disposal::new(Ending::now(Delivery::Confirmed, TTL), Why::Release, at(1));
        assert_eq!(wake, Wake::at(at(1)));
        assert_eq!(lost_call(&mut disposal, at(1)).delivery, Delivery::Confirmed);
        assert_eq!(lost_call(&mut disposal, at(6)).delivery, Delivery::InDoubt);
        assert_eq!(disposal.ended(Ok(Ended::Released), at(7)), Next::Done(Why::Release, None));
    }

    #[test]
    fn an_error_without_an_effect_leaves_no_doubt_and_others_do() {
        for (kind, delivery) in
            [(ErrorKind::Unavailable, Delivery::Confirmed), (ErrorKind::Indeterminate, Delivery::InDoubt)]
        {
            let (mut disposal, _) = Disposal::new(Ending::now(Delivery::Confirmed, TTL), Why::Withdraw, at(1));
            lost_call(&mut disposal, at(1));
            let next = disposal.ended(Err(&Error::new(kind, "refused")), at(2));
            assert!(matches!(next, Next::Again(_)));
            assert_eq!(lost_call(&mut disposal, at(3)).delivery, delivery);
        }
    }

    #[test]
    fn it_is_given_up_after_the_ttl_and_one_attempt() {
        let (mut disposal, _) = Disposal::new(Ending::now(Delivery::Confirmed, TTL), Why::Withdraw, at(1));
        // The machine was suspended meanwhile: the store is asked once all the same.
        lost_call(&mut disposal, at(60));
        assert_eq!(disposal.due(&rules(), Stamp::ZERO, at(65)), Due::TimedOut);
    }

    #[test]
    fn what_a_session_keeps_alive_is_not_given_up() {
        let (mut disposal, _) = Disposal::new(Ending::now(Delivery::Confirmed, TTL), Why::Withdraw, at(1));
        lost_call(&mut disposal, at(1));
        let rules = Rules { sessions: true, ..rules() };
        assert!(matches!(disposal.due(&rules, at(40), at(70)), Due::Send(..)));
        assert_eq!(disposal.due(&rules, at(40), at(71)), Due::TimedOut);
    }

    #[test]
    fn a_lease_within_its_min_hold_runs_out_and_is_withdrawn_then_if_in_doubt() {
        let place = PlaceNumber::new(3);
        for delivery in [Delivery::Confirmed, Delivery::InDoubt] {
            let run_out = Some(RunOut { at: at(10), place, begun: false });
            let ending = Ending { run_out, released: Some(FencingToken::new(7)), ..Ending::now(delivery, TTL) };
            assert_eq!(ending.call(&rules(), at(4)), EndCall::RunOut { place, ttl: Duration::from_secs(6) });
            assert_eq!(ending.call(&rules(), at(10)), EndCall::Release(delivery));
            let rest = ending.rest(Ended::NothingRunsOut).map(|rest| rest.call(&rules(), at(5)));
            assert_eq!(rest, (delivery == Delivery::InDoubt).then_some(EndCall::Release(delivery)));
            let (mut disposal, _) = Disposal::new(ending, Why::Release, at(4));
            assert!(!disposal.can_go_on_at_once());
            lost_call(&mut disposal, at(4));
            let Next::Done(Why::Release, rest) = disposal.ended(Ok(Ended::RunsOut), at(5)) else {
                panic!("it has ended")
            };
            assert_eq!(rest.is_some(), delivery == Delivery::InDoubt);
            if let Some(rest) = rest {
                let (disposal, wake) = Disposal::new(rest, Why::Withdraw, at(5));
                assert_eq!((wake, disposal.until), (Wake::at(at(10)), at(40)));
                assert_eq!(rest.call(&rules(), at(10)), EndCall::Release(Delivery::InDoubt));
            }
        }
    }

    /// The first reply is clear. After a call without a known outcome, a lease that is gone may have ended by that call or before it.
    #[test]
    fn a_lease_that_is_gone_was_lost_or_may_have_been() {
        let token = FencingToken::new(7);
        let ending = Ending { released: Some(token), ..Ending::now(Delivery::Confirmed, TTL) };
        let (mut disposal, _) = Disposal::new(ending, Why::Release, at(1));
        let first = lost_call(&mut disposal, at(1));
        let again = lost_call(&mut disposal, at(6));
        for (sent, expected) in [(first, Finding::Lost), (again, Finding::Unclear(token))] {
            assert_eq!([Ended::NotHeld, Ended::NothingRunsOut].map(|ended| sent.finding(ended)), [expected; 2]);
            assert_eq!([Ended::Released, Ended::RunsOut].map(|ended| sent.finding(ended)), [Finding::Kept; 2]);
        }
        // Its holder knows of the loss, or there was no lease.
        assert_eq!(Ending { released: None, ..again }.finding(Ended::NotHeld), Finding::Kept);
        // What is withdrawn later is no lease of the holder any more.
        let in_doubt = Ending { delivery: Delivery::InDoubt, ..first };
        assert_eq!(in_doubt.rest(Ended::NothingRunsOut).map(|rest| rest.released), Some(None));
    }

    #[test]
    fn only_what_waits_for_a_call_ends_with_it() {
        let ending = Ending::now(Delivery::InDoubt, TTL);
        let (mut disposal, wake) = Disposal::when_overdue(ending, Why::Withdraw, at(9));
        assert_eq!(wake, Wake::at(at(9)));
        assert!(disposal.awaits_call() && disposal.can_go_on_at_once());
        lost_call(&mut disposal, at(9));
        assert!(!disposal.awaits_call() && !disposal.can_go_on_at_once());
    }
}
