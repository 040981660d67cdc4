//! The end of a claim at the store: [`Ending`] says how one call ends it, and the state machine [`Disposal`] repeats
//! the call until the store has replied or the ttl is over.

use std::time::Duration;

use super::outputs::Wake;
use super::rules::{PATIENCE, Rules, backoff};
use crate::backend::{Delivery, PlaceNumber, ReleaseOutcome, RenewReply};
use crate::clock::Stamp;
use crate::error::{Error, ErrorKind, Result};
use crate::token::FencingToken;

/// How a claim ends at the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    pub why: Why,
    pub delivery: Delivery,
    /// The longest ttl that a request of the claim had. After it, whatever the store granted has expired.
    pub ttl: Duration,
    /// Set if the lease was released within its `min_hold`: it expires at the end of `min_hold`.
    pub run_out: Option<RunOut>,
    /// An earlier call to end the claim failed or has no reply.
    pub is_repeated: bool,
}

/// Why a claim ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The holder or a shutdown has released the lease. `valid` is the token of a lease that the store should still
    /// have. If the store does not have it, the holder may have lost it before the release.
    Release { valid: Option<FencingToken> },
    /// No acquire waits for the claim any more.
    Withdraw,
}

/// The end of a lease that was released within its `min_hold`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOut {
    /// The end of `min_hold`.
    pub at: Stamp,
    pub place: PlaceNumber,
    /// The store has confirmed the last renewal. What remains is to withdraw the claim at the end of `min_hold`,
    /// because one of its requests has no reply.
    pub begun: bool,
}

/// The store's reply to the call that ends a claim.
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
    pub fn now(why: Why, delivery: Delivery, ttl: Duration) -> Self {
        Self { why, delivery, ttl, run_out: None, is_repeated: false }
    }

    /// The same ending, after a call without a reply.
    pub fn in_doubt(self) -> Self {
        Self { delivery: Delivery::InDoubt, is_repeated: true, ..self }
    }

    /// When its first call is due: now, or at the end of a `min_hold` that the store has confirmed.
    fn begins(&self, now: Stamp) -> Stamp {
        self.run_out.filter(|run_out| run_out.begun).map_or(now, |run_out| run_out.at)
    }

    /// The renewal that lets a lease run out within its `min_hold`: its place, and the exact ttl. `None` if a release
    /// ends the claim.
    pub fn last_renewal(&self, rules: &Rules, now: Stamp) -> Option<(PlaceNumber, Duration)> {
        let run_out = self.run_out.filter(|run_out| !run_out.begun && now < run_out.at)?;
        Some((run_out.place, rules.ttl(run_out.at.since(now))))
    }

    /// What remains to do after this reply. A claim in doubt is withdrawn: at the end of its `min_hold`, or now if
    /// there is no lease that runs out.
    pub fn rest(&self, ended: Ended) -> Option<Self> {
        if self.delivery == Delivery::Confirmed {
            return None;
        }
        let run_out = match ended {
            Ended::Released | Ended::NotHeld => return None,
            Ended::RunsOut => self.run_out.map(|run_out| RunOut { begun: true, ..run_out }),
            Ended::NothingRunsOut => None,
        };
        Some(Self { why: Why::Withdraw, run_out, ..*self })
    }

    /// The token of a lease that should have been valid, if the store no longer had it. If the call was
    /// [repeated](Self::is_repeated), an earlier call may have ended the lease without a reply. Otherwise the lease was
    /// lost, and another claim may have held the lock before the release.
    pub fn missed(&self, ended: Ended) -> Option<FencingToken> {
        match (ended, self.why) {
            (Ended::NotHeld | Ended::NothingRunsOut, Why::Release { valid }) => valid,
            (Ended::Released | Ended::RunsOut, _) | (_, Why::Withdraw) => None,
        }
    }
}

impl Ended {
    /// What the reply to a release says.
    pub fn by_release(release: ReleaseOutcome) -> Self {
        match release {
            ReleaseOutcome::Released => Self::Released,
            ReleaseOutcome::NotHeld => Self::NotHeld,
        }
    }

    /// What the reply to the [last renewal](Ending::last_renewal) says.
    pub fn by_renewal(answer: Option<RenewReply>) -> Result<Self> {
        match answer {
            Some(RenewReply::Renewed(_) | RenewReply::Granted(_)) => Ok(Self::RunsOut),
            Some(RenewReply::Unknown(error)) => Err(error),
            Some(RenewReply::Waiting { .. } | RenewReply::Free | RenewReply::Lost) | None => Ok(Self::NothingRunsOut),
        }
    }
}

/// Ends a claim in the background. It repeats the call until the store has replied, or until the ttl has passed.
///
/// Its inputs, in order of use:
/// - [`handle_timeout`](Self::handle_timeout) at each wake-up,
/// - [`handle_reply`](Self::handle_reply) or [`handle_failure`](Self::handle_failure) for each call.
#[derive(Clone, Debug)]
pub struct Disposal {
    ending: Ending,
    /// After this, everything that the store granted to the claim has expired, unless a session keeps it alive.
    until: Stamp,
    failures: u32,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// A call that the user's task has sent may still end the claim, or show that there is nothing to end. Nothing is
    /// sent until that call is overdue.
    AwaitsCall,
    /// Nothing is in flight: it has not begun, or pauses after a failure.
    Pauses,
    /// A call is in flight.
    InFlight,
}

impl Disposal {
    /// Begins at once, or at the end of a `min_hold` that the store has confirmed.
    pub fn new(ending: Ending, now: Stamp) -> (Self, Wake) {
        Self::at(ending, ending.begins(now), Phase::Pauses)
    }

    /// Begins when the call in flight, which may end the claim, is overdue.
    pub fn when_overdue(ending: Ending, overdue: Stamp) -> (Self, Wake) {
        Self::at(ending, overdue, Phase::AwaitsCall)
    }

    fn at(ending: Ending, at: Stamp, phase: Phase) -> (Self, Wake) {
        let from = ending.run_out.map_or(at, |run_out| run_out.at.max(at));
        (Self { ending, until: from.plus(ending.ttl), failures: 0, phase }, Wake::at(at))
    }

    /// A wake-up is due. Returns the ending to send and when its call is overdue, or `None` to give up: the store has
    /// not replied for the whole ttl. `last_confirmed` is when the newest request was sent that kept a lease or place
    /// of this client alive at the store.
    pub fn handle_timeout(&mut self, rules: &Rules, last_confirmed: Stamp, now: Stamp) -> Option<(Ending, Wake)> {
        // A lease does not expire while other leases keep their common session alive.
        let lives_on = rules.sessions && now <= last_confirmed.plus(self.ending.ttl);
        if now > self.until && self.failures > 0 && !lives_on {
            return None;
        }
        if self.phase == Phase::InFlight {
            // The call in flight had no reply.
            self.ending.delivery = Delivery::InDoubt;
        }
        self.phase = Phase::InFlight;
        self.failures += 1;
        let ending = self.ending;
        self.ending.is_repeated = true;
        Some((ending, Wake::at(now.plus(rules.call_bound))))
    }

    /// The store has replied: the disposal is done. Returns what is left to end later.
    pub fn handle_reply(&self, ended: Ended) -> Option<Ending> {
        self.ending.rest(ended)
    }

    /// The call failed. Returns when to send it again.
    pub fn handle_failure(&mut self, error: &Error, now: Stamp) -> Wake {
        self.phase = Phase::Pauses;
        if error.kind() != ErrorKind::Unavailable {
            self.ending.delivery = Delivery::InDoubt;
        }
        Wake::after(now, backoff(PATIENCE, self.failures))
    }

    /// The store has just granted the lock to the claim, and other clients may wait for it. Returns whether a disposal
    /// that pauses may send its call at once.
    pub fn can_go_on_at_once(&self) -> bool {
        match self.phase {
            Phase::AwaitsCall | Phase::Pauses => self.ending.run_out.is_none(),
            Phase::InFlight => false,
        }
    }

    /// Whether it only waits for a call in flight: the end of that call is then the end of the disposal.
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
        let (ending, wake) = disposal.handle_timeout(&rules(), Stamp::ZERO, now).expect("it is not given up");
        assert_eq!(wake, Wake::at(now.plus(Duration::from_secs(5))));
        ending
    }

    fn withdrawal() -> Disposal {
        Disposal::new(Ending::now(Why::Withdraw, Delivery::Confirmed, TTL), at(1)).0
    }

    #[test]
    fn a_call_without_an_answer_leaves_the_claim_in_doubt() {
        let (mut disposal, wake) = Disposal::new(Ending::now(Why::Withdraw, Delivery::Confirmed, TTL), at(1));
        assert_eq!(wake, Wake::at(at(1)));
        assert_eq!(lost_call(&mut disposal, at(1)).delivery, Delivery::Confirmed);
        assert_eq!(lost_call(&mut disposal, at(6)).delivery, Delivery::InDoubt);
        assert_eq!(disposal.handle_reply(Ended::Released), None);
    }

    #[test]
    fn an_error_without_an_effect_leaves_no_doubt_and_others_do() {
        for (kind, delivery) in
            [(ErrorKind::Unavailable, Delivery::Confirmed), (ErrorKind::Indeterminate, Delivery::InDoubt)]
        {
            let mut disposal = withdrawal();
            lost_call(&mut disposal, at(1));
            disposal.handle_failure(&Error::new(kind, "refused"), at(2));
            assert_eq!(lost_call(&mut disposal, at(3)).delivery, delivery);
        }
    }

    #[test]
    fn it_is_given_up_after_the_ttl_and_one_attempt() {
        let mut disposal = withdrawal();
        // The machine was suspended since. The store is still asked once.
        lost_call(&mut disposal, at(60));
        assert_eq!(disposal.handle_timeout(&rules(), Stamp::ZERO, at(65)), None);
    }

    #[test]
    fn what_a_session_keeps_alive_is_not_given_up() {
        let mut disposal = withdrawal();
        lost_call(&mut disposal, at(1));
        let rules = Rules { sessions: true, ..rules() };
        assert!(disposal.handle_timeout(&rules, at(40), at(70)).is_some());
        assert!(disposal.handle_timeout(&rules, at(40), at(71)).is_none());
    }

    #[test]
    fn a_lease_within_its_min_hold_runs_out_and_is_withdrawn_then_if_in_doubt() {
        let place = PlaceNumber::new(3);
        for delivery in [Delivery::Confirmed, Delivery::InDoubt] {
            let run_out = Some(RunOut { at: at(10), place, begun: false });
            let why = Why::Release { valid: Some(FencingToken::new(7)) };
            let ending = Ending { run_out, ..Ending::now(why, delivery, TTL) };
            assert_eq!(ending.last_renewal(&rules(), at(4)), Some((place, Duration::from_secs(6))));
            assert_eq!(ending.last_renewal(&rules(), at(10)), None);
            let rest = ending.rest(Ended::NothingRunsOut);
            let at_once = Ending::now(Why::Withdraw, delivery, TTL);
            assert_eq!(rest, (delivery == Delivery::InDoubt).then_some(at_once));
            let (mut disposal, _) = Disposal::new(ending, at(4));
            assert!(!disposal.can_go_on_at_once());
            lost_call(&mut disposal, at(4));
            let rest = disposal.handle_reply(Ended::RunsOut);
            assert_eq!(rest.is_some(), delivery == Delivery::InDoubt);
            if let Some(rest) = rest {
                let (disposal, wake) = Disposal::new(rest, at(5));
                assert_eq!((wake, disposal.until), (Wake::at(at(10)), at(40)));
                assert_eq!((rest.why, rest.delivery), (Why::Withdraw, Delivery::InDoubt));
                assert_eq!([at(5), at(10)].map(|now| rest.last_renewal(&rules(), now)), [None; 2]);
            }
        }
    }

    /// The reply to a first call is clear. After a call with an unknown outcome, a lease that is gone may have ended by
    /// that call or before it.
    #[test]
    fn a_lease_that_is_gone_was_lost_or_may_have_been() {
        let token = FencingToken::new(7);
        let ending = Ending::now(Why::Release { valid: Some(token) }, Delivery::Confirmed, TTL);
        let (mut disposal, _) = Disposal::new(ending, at(1));
        let first = lost_call(&mut disposal, at(1));
        let again = lost_call(&mut disposal, at(6));
        for (sent, is_repeated) in [(first, false), (again, true)] {
            assert_eq!(sent.is_repeated, is_repeated);
            assert_eq!([Ended::NotHeld, Ended::NothingRunsOut].map(|ended| sent.missed(ended)), [Some(token); 2]);
            assert_eq!([Ended::Released, Ended::RunsOut].map(|ended| sent.missed(ended)), [None; 2]);
        }
        // Its holder knows of the loss, or there was no lease.
        for why in [Why::Release { valid: None }, Why::Withdraw] {
            assert_eq!(Ending { why, ..again }.missed(Ended::NotHeld), None);
        }
        // What is withdrawn later is no lease of the holder any more.
        let rest = first.in_doubt().rest(Ended::NothingRunsOut);
        assert_eq!(rest.map(|rest| rest.why), Some(Why::Withdraw));
    }

    #[test]
    fn only_what_waits_for_a_call_ends_with_it() {
        let ending = Ending::now(Why::Withdraw, Delivery::InDoubt, TTL);
        let (mut disposal, wake) = Disposal::when_overdue(ending, at(9));
        assert_eq!(wake, Wake::at(at(9)));
        assert!(disposal.awaits_call() && disposal.can_go_on_at_once());
        lost_call(&mut disposal, at(9));
        assert!(!disposal.awaits_call() && !disposal.can_go_on_at_once());
    }
}
