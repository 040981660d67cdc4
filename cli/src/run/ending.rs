//! When a command is asked to end, and when it is made to.

use std::time::Duration;

use crate::args::OnLost;
use crate::run::terms::Terms;

/// KILL is sent this long before the lease ends, so that it has been sent when it ends: timers are a millisecond coarse,
/// and a busy machine wakes us late.
const LEAD: Duration = Duration::from_millis(10);

/// The longest sleep while a lease is held: timers stand still while the machine is suspended.
const LONGEST_NAP: Duration = Duration::from_millis(500);

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
    lead: Duration,
    nap: Duration,
    on_lost: OnLost,
}

impl Ending {
    pub(crate) fn new(terms: &Terms) -> Self {
        Self {
            stage: Stage::Running,
            grace: terms.grace,
            lead: LEAD.min(terms.grace / 2),
            // The watcher is told of a longer lease at each wake-up: long before the one that it knows ends.
            nap: LONGEST_NAP.min(terms.ttl / 10),
            on_lost: terms.on_lost,
        }
    }

    /// What is to be done when `left` is left of the lease. Each step comes once. A lease that is renewed after the
    /// command was asked to end gives it until its new end.
    pub(crate) fn step(&mut self, left: Duration) -> Option<Step> {
        let (stage, step) = match self.on_lost {
            OnLost::Warn if left.is_zero() => (Stage::Done, Step::Warn),
            OnLost::Kill if left <= self.lead => (Stage::Done, Step::Kill),
            OnLost::Kill if left <= self.grace => (Stage::Asked, Step::Ask),
            _ => return None,
        };
        if stage <= self.stage {
            return None;
        }
        self.stage = stage;
        Some(step)
    }

    /// When to look again.
    pub(crate) fn look_in(&self, left: Duration) -> Duration {
        let until = match (self.on_lost, self.stage) {
            (_, Stage::Done) => LONGEST_NAP,
            (OnLost::Warn, _) => left,
            (OnLost::Kill, Stage::Running) => left.saturating_sub(self.grace),
            (OnLost::Kill, Stage::Asked) => left.saturating_sub(self.lead),
        };
        until.min(self.nap)
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

    fn ending(on_lost: OnLost) -> Ending {
        let ms = Duration::from_millis;
        Ending::new(&Terms { ttl: ms(6000), grace: ms(1000), max_hold: None, on_lost })
    }

    fn steps(ending: &mut Ending, left_ms: &[u64]) -> Vec<Option<Step>> {
        left_ms.iter().map(|&left| ending.step(Duration::from_millis(left))).collect()
    }

    #[test]
    fn asks_at_the_grace_and_kills_before_the_end() {
        let mut it = ending(OnLost::Kill);
        assert_eq!(it.look_in(Duration::from_millis(1300)), Duration::from_millis(300));
        assert_eq!(steps(&mut it, &[5000, 1001]), [None, None]);
        assert!(!it.has_begun());
        assert_eq!(steps(&mut it, &[1000, 999]), [Some(Step::Ask), None]);
        assert!(it.has_begun() && !it.was_killed());
        assert_eq!(it.look_in(Duration::from_millis(300)), Duration::from_millis(290));
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
        let ms = Duration::from_millis;
        let it = Ending::new(&Terms { ttl: ms(300), grace: ms(50), max_hold: None, on_lost: OnLost::Kill });
        assert_eq!(it.look_in(ms(270)), ms(30));
        let it = Ending::new(&Terms { ttl: ms(60_000), grace: ms(50), max_hold: None, on_lost: OnLost::Kill });
        assert_eq!(it.look_in(ms(50_000)), ms(500));
    }
}
