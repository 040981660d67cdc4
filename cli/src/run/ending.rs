//! When a command is asked to end, and when it is made to.

use std::time::Duration;

use crate::args::OnLost;
use crate::run::terms::Terms;

/// KILL is sent this long before the lease ends, so that it has been sent when it ends: timers are a millisecond coarse,
/// and a busy machine wakes us late.
const LEAD: Duration = Duration::from_millis(10);

/// The longest sleep while a lease is held: timers stand still while the machine is suspended.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// TERM to the command.
    Ask,
    /// KILL to the command.
    Kill,
    /// Tell that the lease is lost.
    Warn,
}

/// What is left to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// How long the lease is valid, unless it is renewed.
    pub(crate) validity: Duration,
    /// How long the longest hold lasts.
    pub(crate) hold: Option<Duration>,
}

impl Left {
    /// How long the command may still run, unless the lease is renewed.
    pub(crate) fn least(self) -> Duration {
        self.hold.map_or(self.validity, |hold| hold.min(self.validity))
    }
}

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Running,
    Asked,
    /// Killed, or warned of.
    Done,
}

/// Decides by what is left of the lease. Knows no clock and no process.
#[derive(Debug)]
pub(crate) struct Ending {
    stage: Stage,
    grace: Duration,
    /// The grace before the end of a lease. Shorter than the other while the lease has only the ttl of a place in a queue.
    lease_grace: Duration,
    /// The validity of a lease that was granted or renewed for the whole ttl.
    whole: Duration,
    lead: Duration,
    sleep: Duration,
    on_lost: OnLost,
}

impl Ending {
    /// Begins with the validity that the lease was granted with. A lease that came out of a server's queue may have less than
    /// the grace: the keeper renews it to its own ttl soon, and until then a third of that validity is the grace.
    pub(crate) fn new(terms: &Terms, granted: Duration) -> Self {
        Self {
            stage: Stage::Running,
            grace: terms.grace,
            lease_grace: terms.grace.min(granted / 3),
            whole: terms.ttl * 2 / 3,
            lead: LEAD.min(terms.grace / 2),
            // The watcher is told of a longer lease at each wake-up: long before the one that it knows ends.
            sleep: LONGEST_SLEEP.min(terms.ttl / 10),
            on_lost: terms.on_lost,
        }
    }

    /// What is to be done when `left` is left of the lease. Each step comes once. A lease that is renewed after the
    /// command was asked to end gives it until its new end.
    pub(crate) fn step(&mut self, left: Left) -> Option<Step> {
        if left.validity >= self.whole {
            self.lease_grace = self.grace;
        }
        let (stage, step) = match self.on_lost {
            OnLost::Warn if left.least().is_zero() => (Stage::Done, Step::Warn),
            OnLost::Kill if left.least() <= self.lead => (Stage::Done, Step::Kill),
            OnLost::Kill if self.until_ask(left).is_zero() => (Stage::Asked, Step::Ask),
            _ => return None,
        };
        if stage <= self.stage {
            return None;
        }
        self.stage = stage;
        Some(step)
    }

    /// When to look again.
    pub(crate) fn retry_after(&self, left: Left) -> Duration {
        let until = match (self.on_lost, self.stage) {
            (_, Stage::Done) => LONGEST_SLEEP,
            (OnLost::Warn, _) => left.least(),
            (OnLost::Kill, Stage::Running) => self.until_ask(left),
            (OnLost::Kill, Stage::Asked) => left.least().saturating_sub(self.lead),
        };
        until.min(self.sleep)
    }

    fn until_ask(&self, left: Left) -> Duration {
        let lease = left.validity.saturating_sub(self.lease_grace);
        left.hold.map_or(lease, |hold| lease.min(hold.saturating_sub(self.grace)))
    }

    /// Whether the command was asked or made to end.
    pub(crate) fn has_begun(&self) -> bool {
        self.stage > Stage::Running && self.on_lost == OnLost::Kill
    }

    /// Whether the command was made to end.
    pub(crate) fn was_killed(&self) -> bool {
        self.stage == Stage::Done && self.on_lost == OnLost::Kill
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn ending(on_lost: OnLost) -> Ending {
        Ending::new(&Terms { ttl: ms(6000), grace: ms(1000), max_hold: None, on_lost }, ms(5400))
    }

    fn left(validity: u64) -> Left {
        Left { validity: ms(validity), hold: None }
    }

    fn steps(ending: &mut Ending, left_ms: &[u64]) -> Vec<Option<Step>> {
        left_ms.iter().map(|&ms| ending.step(left(ms))).collect()
    }

    #[test]
    fn asks_at_the_grace_and_kills_before_the_end() {
        let mut it = ending(OnLost::Kill);
        assert_eq!(it.retry_after(left(1300)), ms(300));
        assert_eq!(steps(&mut it, &[5000, 1001]), [None, None]);
        assert!(!it.has_begun());
        assert_eq!(steps(&mut it, &[1000, 999]), [Some(Step::Ask), None]);
        assert!(it.has_begun() && !it.was_killed());
        assert_eq!(it.retry_after(left(300)), ms(290));
        assert_eq!(steps(&mut it, &[11, 10, 0]), [None, Some(Step::Kill), None]);
        assert!(it.was_killed());
    }

    #[test]
    fn kills_at_once_when_the_store_says_gone_or_after_a_pause() {
        assert_eq!(steps(&mut ending(OnLost::Kill), &[5000, 0]), [None, Some(Step::Kill)]);
    }

    #[test]
    fn a_late_renewal_gives_who_was_asked_until_the_new_end() {
        let mut it = ending(OnLost::Kill);
        assert_eq!(steps(&mut it, &[900, 5000, 900, 5]), [Some(Step::Ask), None, None, Some(Step::Kill)]);
    }

    #[test]
    fn only_warns_when_told_so() {
        let mut it = ending(OnLost::Warn);
        assert_eq!(steps(&mut it, &[900, 5, 0, 0]), [None, None, Some(Step::Warn), None]);
        assert!(!it.has_begun() && !it.was_killed());
    }

    #[test]
    fn sleeps_are_short_beside_a_short_ttl() {
        let terms = |ttl| Terms { ttl, grace: ms(50), max_hold: None, on_lost: OnLost::Kill };
        assert_eq!(Ending::new(&terms(ms(300)), ms(270)).retry_after(left(270)), ms(30));
        assert_eq!(Ending::new(&terms(ms(60_000)), ms(54_000)).retry_after(left(50_000)), ms(500));
    }

    #[test]
    fn the_validity_of_a_place_is_no_reason_to_ask() {
        let terms = Terms { ttl: ms(30_000), grace: ms(9900), max_hold: None, on_lost: OnLost::Kill };
        let mut it = Ending::new(&terms, ms(6000));
        assert_eq!(steps(&mut it, &[6000, 5900, 26_900]), [None, None, None]);
        assert_eq!(steps(&mut it, &[9901, 9900]), [None, Some(Step::Ask)], "from then on the grace counts");
        let mut it = Ending::new(&terms, ms(6000));
        assert_eq!(steps(&mut it, &[2001, 2000]), [None, Some(Step::Ask)], "it was never renewed");
    }

    #[test]
    fn the_longest_hold_ends_a_lease_of_any_validity() {
        let terms = Terms { ttl: ms(30_000), grace: ms(300), max_hold: Some(ms(2000)), on_lost: OnLost::Kill };
        let mut it = Ending::new(&terms, ms(6000));
        let mut at = |validity, hold| it.step(Left { validity: ms(validity), hold: Some(ms(hold)) });
        assert_eq!([at(6000, 2000), at(27_000, 301)], [None, None]);
        assert_eq!([at(26_000, 300), at(26_000, 10)], [Some(Step::Ask), Some(Step::Kill)]);
    }
}
