//! Decides when the command gets TERM, and when KILL.

use std::time::Duration;

use crate::args::OnLost;
use crate::run::options::RunOptions;

/// KILL is sent this long before the lease ends: timers have a resolution of a millisecond, and a busy machine wakes
/// this process late.
const KILL_LEAD: Duration = Duration::from_millis(10);

/// The longest sleep while a lease is held: timers stop while the machine is suspended.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);

/// A step that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send TERM to the command.
    Term,
    /// Send KILL to the command.
    Kill,
    /// Warn that the lease is lost.
    Warn,
}

/// The time that is left for the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeLeft {
    /// The rest of the validity, unless the lease is renewed.
    pub(crate) validity: Duration,
    /// The rest of the longest hold.
    pub(crate) hold: Option<Duration>,
}

impl TimeLeft {
    /// The time that the command may still run, unless the lease is renewed.
    pub(crate) fn until_end(self) -> Duration {
        self.hold.map_or(self.validity, |hold| hold.min(self.validity))
    }
}

/// The last step that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Running,
    TermSent,
    /// KILL was sent, or the warning was written.
    Done,
}

/// Decides by the time that is left of the lease. A pure state machine, without a clock and without processes.
#[derive(Debug)]
pub(crate) struct Termination {
    stage: Stage,
    grace: Duration,
    /// The grace before the end of this lease. It is shorter while the lease has only the ttl of a place in a queue.
    lease_grace: Duration,
    /// The validity of a lease that has its whole ttl.
    whole: Duration,
    kill_lead: Duration,
    sleep: Duration,
    on_lost: OnLost,
}

impl Termination {
    /// Starts with the validity of the grant. A lease that was granted from a server's queue may be valid for less than
    /// the grace. Until the keeper renews it to its own ttl, a third of that validity is the grace.
    pub(crate) fn new(options: &RunOptions, granted: Duration) -> Self {
        Self {
            stage: Stage::Running,
            grace: options.grace,
            lease_grace: options.grace.min(granted / 3),
            whole: options.ttl * 2 / 3,
            kill_lead: KILL_LEAD.min(options.grace / 2),
            // Each wake-up sends the new deadline to the watcher, long before the deadline that the watcher knows.
            sleep: LONGEST_SLEEP.min(options.ttl / 10),
            on_lost: options.on_lost,
        }
    }

    /// The step that is due when `left` is left of the lease. Returns each step once. If the lease is renewed after
    /// TERM, the command has until the new end.
    pub(crate) fn next_action(&mut self, left: TimeLeft) -> Option<Action> {
        if left.validity >= self.whole {
            self.lease_grace = self.grace;
        }
        let (stage, action) = match self.on_lost {
            OnLost::Warn if left.until_end().is_zero() => (Stage::Done, Action::Warn),
            OnLost::Kill if left.until_end() <= self.kill_lead => (Stage::Done, Action::Kill),
            OnLost::Kill if self.until_term(left).is_zero() => (Stage::TermSent, Action::Term),
            _ => return None,
        };
        if stage <= self.stage {
            return None;
        }
        self.stage = stage;
        Some(action)
    }

    /// How long to sleep before the next call of [`next_action`](Self::next_action).
    pub(crate) fn sleep_time(&self, left: TimeLeft) -> Duration {
        let until = match (self.on_lost, self.stage) {
            (_, Stage::Done) => LONGEST_SLEEP,
            (OnLost::Warn, _) => left.until_end(),
            (OnLost::Kill, Stage::Running) => self.until_term(left),
            (OnLost::Kill, Stage::TermSent) => left.until_end().saturating_sub(self.kill_lead),
        };
        until.min(self.sleep)
    }

    fn until_term(&self, left: TimeLeft) -> Duration {
        let lease = left.validity.saturating_sub(self.lease_grace);
        left.hold.map_or(lease, |hold| lease.min(hold.saturating_sub(self.grace)))
    }

    /// Whether the command got TERM or KILL.
    pub(crate) fn has_started(&self) -> bool {
        self.stage > Stage::Running && self.on_lost == OnLost::Kill
    }

    /// Whether the warning was written.
    pub(crate) fn has_warned(&self) -> bool {
        self.stage == Stage::Done && self.on_lost == OnLost::Warn
    }

    /// Whether the command got KILL.
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

    fn termination(on_lost: OnLost) -> Termination {
        Termination::new(
            &RunOptions { ttl: ms(6000), grace: ms(1000), min_hold: None, max_hold: None, on_lost },
            ms(5400),
        )
    }

    fn left(validity: u64) -> TimeLeft {
        TimeLeft { validity: ms(validity), hold: None }
    }

    fn actions(termination: &mut Termination, left_ms: &[u64]) -> Vec<Option<Action>> {
        left_ms.iter().map(|&ms| termination.next_action(left(ms))).collect()
    }

    #[test]
    fn sends_term_at_the_grace_and_kill_before_the_end() {
        let mut it = termination(OnLost::Kill);
        assert_eq!(it.sleep_time(left(1300)), ms(300));
        assert_eq!(actions(&mut it, &[5000, 1001]), [None, None]);
        assert!(!it.has_started());
        assert_eq!(actions(&mut it, &[1000, 999]), [Some(Action::Term), None]);
        assert!(it.has_started() && !it.was_killed());
        assert_eq!(it.sleep_time(left(300)), ms(290));
        assert_eq!(actions(&mut it, &[11, 10, 0]), [None, Some(Action::Kill), None]);
        assert!(it.was_killed());
    }

    #[test]
    fn kills_at_once_after_a_loss_or_a_pause() {
        assert_eq!(actions(&mut termination(OnLost::Kill), &[5000, 0]), [None, Some(Action::Kill)]);
    }

    #[test]
    fn a_late_renewal_moves_the_kill_to_the_new_end() {
        let mut it = termination(OnLost::Kill);
        assert_eq!(actions(&mut it, &[900, 5000, 900, 5]), [Some(Action::Term), None, None, Some(Action::Kill)]);
    }

    #[test]
    fn with_warn_it_only_warns() {
        let mut it = termination(OnLost::Warn);
        assert_eq!(actions(&mut it, &[900, 5, 0, 0]), [None, None, Some(Action::Warn), None]);
        assert!(!it.has_started() && !it.was_killed());
    }

    #[test]
    fn a_short_ttl_has_short_sleeps() {
        let options = |ttl| RunOptions { ttl, grace: ms(50), min_hold: None, max_hold: None, on_lost: OnLost::Kill };
        assert_eq!(Termination::new(&options(ms(300)), ms(270)).sleep_time(left(270)), ms(30));
        assert_eq!(Termination::new(&options(ms(60_000)), ms(54_000)).sleep_time(left(50_000)), ms(500));
    }

    #[test]
    fn the_validity_of_a_place_is_no_reason_for_term() {
        let options =
            RunOptions { ttl: ms(30_000), grace: ms(9900), min_hold: None, max_hold: None, on_lost: OnLost::Kill };
        let mut it = Termination::new(&options, ms(6000));
        assert_eq!(actions(&mut it, &[6000, 5900, 26_900]), [None, None, None]);
        assert_eq!(actions(&mut it, &[9901, 9900]), [None, Some(Action::Term)], "from then on the grace counts");
        let mut it = Termination::new(&options, ms(6000));
        assert_eq!(actions(&mut it, &[2001, 2000]), [None, Some(Action::Term)], "it was never renewed");
    }

    #[test]
    fn the_longest_hold_ends_a_lease_of_any_validity() {
        let options = RunOptions {
            ttl: ms(30_000),
            grace: ms(300),
            min_hold: None,
            max_hold: Some(ms(2000)),
            on_lost: OnLost::Kill,
        };
        let mut it = Termination::new(&options, ms(6000));
        let mut at = |validity, hold| it.next_action(TimeLeft { validity: ms(validity), hold: Some(ms(hold)) });
        assert_eq!([at(6000, 2000), at(27_000, 301)], [None, None]);
        assert_eq!([at(26_000, 300), at(26_000, 10)], [Some(Action::Term), Some(Action::Kill)]);
    }
}
