//! When the leader has heard of a session, as a pure state machine: it knows neither network nor clock.
//!
//! A reply to a write proves that the session lives, and not for how long. The leader does not count a write that a
//! follower forwards as a sign of life. It learns of the activity of a session when it pings the follower, twice in a
//! tick. So a write that is acknowledged proves that the leader knows of all activity on this link up to a tick before
//! the write. When a link is opened, the leader counts it itself.

use std::collections::VecDeque;
use std::time::Duration;

use leasehold_core::backend::Stamp;

/// The activity of a session on one link.
#[derive(Debug)]
pub(crate) struct Activity {
    tick: Duration,
    /// The longest time from a write to its reply.
    bound: Duration,
    /// When the link was opened.
    opened: Stamp,
    /// When requests were sent that have replies, in order: not all, so that they are few.
    acknowledged: VecDeque<Stamp>,
}

impl Activity {
    pub(crate) fn new(tick: Duration, bound: Duration, opened: Stamp) -> Self {
        Self { tick, bound, opened, acknowledged: VecDeque::new() }
    }

    /// A request that was sent then has a reply.
    pub(crate) fn acknowledged(&mut self, sent: Stamp) {
        if self.acknowledged.back().is_none_or(|last| last.plus(self.tick / 8) <= sent) {
            self.acknowledged.push_back(sent);
        }
        // No write that still waits for its reply is older. Of those before it, only the last one counts.
        let old_enough = sent.minus(self.tick + self.bound);
        while self.acknowledged.get(1).is_some_and(|next| *next <= old_enough) {
            self.acknowledged.pop_front();
        }
    }

    /// A write that was sent then has a reply. Since when the leader has counted the ttl of the session, at least.
    pub(crate) fn proven(&self, sent: Stamp) -> Stamp {
        let old_enough = sent.minus(self.tick);
        let known = self.acknowledged.iter().rev().find(|known| **known <= old_enough && **known > self.opened);
        // A write that was sent before the link was opened is none of this link.
        known.copied().unwrap_or(self.opened).min(sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(100);
    const BOUND: Duration = Duration::from_millis(500);

    fn at(ms: u64) -> Stamp {
        Stamp::from_start(Duration::from_millis(ms))
    }

    #[test]
    fn opening_a_link_counts_at_once() {
        let activity = Activity::new(TICK, BOUND, at(1_000));
        assert_eq!(activity.proven(at(1_001)), at(1_000));
        assert_eq!(activity.proven(at(9_000)), at(1_000));
        assert_eq!(activity.proven(at(900)), at(900));
    }

    #[test]
    fn a_write_proves_activity_of_a_tick_ago() {
        let mut activity = Activity::new(TICK, BOUND, at(1_000));
        for sent in [2_000, 2_050, 2_055, 2_100, 2_150] {
            activity.acknowledged(at(sent));
        }
        assert_eq!(activity.proven(at(2_099)), at(1_000));
        assert_eq!(activity.proven(at(2_149)), at(2_000));
        assert_eq!(activity.proven(at(2_155)), at(2_050));
        assert_eq!(activity.proven(at(5_000)), at(2_150));
    }

    #[test]
    fn what_no_write_can_need_is_forgotten() {
        let mut activity = Activity::new(TICK, BOUND, at(0));
        for sent in 0..100_000 {
            activity.acknowledged(at(sent));
        }
        assert!(activity.acknowledged.len() <= 50, "{}", activity.acknowledged.len());
        for age in 0..500 {
            let sent = at(99_999 - age);
            let proven = activity.proven(sent);
            assert!(proven <= sent.minus(TICK) && sent.since(proven) < Duration::from_millis(115), "{proven:?}");
        }
        // A reply that comes late proves nothing more.
        activity.acknowledged(at(5));
        assert_eq!(activity.acknowledged.front().map(|first| *first > at(99_000)), Some(true));
    }
}
