//! Decides which server is the primary, and whether what it confirms counts. Uses neither clock nor network.
//!
//! A server that Sentinel has demoted goes on confirming requests until a Sentinel reaches it: for as long as it is
//! paused or cut off, and some seconds more. So a confirmation counts for a lease only if a majority of the Sentinels
//! named the server within the last third of the lease's ttl before the request was sent.
//!
//! *Why that is enough.* A Sentinel that has learned of a new primary names it from then on. When a majority of them
//! has, no later question to a majority gets the former primary as its answer, because two majorities share a Sentinel.
//! So the last confirmation of the former primary that counts was sent at most a third of the ttl after that moment,
//! and the holder believes in it for less than a ttl. The new primary grants nothing for a ttl, a third of it and
//! [`GOSSIP`] after a client first saw it ([`lasting`]). A client sees it only after a majority has named it; `GOSSIP`
//! covers clients that do not ask Sentinels.
//!
//! *A grant needs more.* Its former holder may have moved to the new primary, which renews the lease at once, while it
//! ends at the former one. There another client with a long ttl gets the lock, and a third of that may be longer than
//! the lease. So a new grant counts only if a majority names the server in answers to questions from after the reply.
//! The former holder can have moved only after such an answer, when its lease had ended everywhere.

use std::fmt;
use std::time::Duration;

use leasehold_core::backend::Stamp;

/// How long after a failover Sentinels may still name the former primary. Three of them on one machine needed 0.3 to
/// 1.2 s.
const GOSSIP: Duration = Duration::from_secs(2);

/// The longest time for which a lease of this ttl may be confirmed and believed in after its server was demoted. Zero
/// for zero, which is no lease.
pub(crate) fn lasting(ttl: Duration) -> Duration {
    if ttl.is_zero() { ttl } else { ttl + patience(ttl) + GOSSIP }
}

/// How old an answer of the Sentinels may be when a request for a lease of this ttl is sent.
fn patience(ttl: Duration) -> Duration {
    ttl / 3
}

/// The address of a server, as Sentinels or the nodes of a cluster name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// The newest answer of each Sentinel of the URL.
#[derive(Debug)]
pub(super) struct Naming(Vec<Option<Answer>>);

#[derive(Debug)]
struct Answer {
    /// Just before the question was sent.
    asked: Stamp,
    /// `None`: the Sentinel does not know the primary's name.
    primary: Option<Address>,
}

impl Naming {
    pub(super) fn new(sentinels: usize) -> Self {
        Self((0..sentinels).map(|_| None).collect())
    }

    /// How many Sentinels make a majority of those in the URL. Those that cannot be reached count too: a minority that
    /// is cut off from the others does not learn of a failover.
    pub(super) fn majority(&self) -> usize {
        self.0.len() / 2 + 1
    }

    /// Takes an answer. A Sentinel that cannot be asked keeps its earlier one, which grows old.
    pub(super) fn answer(&mut self, sentinel: usize, asked: Stamp, primary: Option<Address>) {
        let known = &mut self.0[sentinel];
        // The reply to an older question may arrive late, by another connection.
        if known.as_ref().is_none_or(|known| known.asked <= asked) {
            *known = Some(Answer { asked, primary });
        }
    }

    /// The server that a majority names, each in its newest answer, however old.
    pub(super) fn primary(&self) -> Option<&Address> {
        self.primary_since(Stamp::ZERO)
    }

    /// The server that a majority names in answers to questions from `since` on.
    pub(super) fn primary_since(&self, since: Stamp) -> Option<&Address> {
        let named = self.0.iter().flatten().filter_map(|answer| answer.primary.as_ref());
        let mut named = named.filter(|address| self.named_at(address).is_some_and(|at| at >= since));
        named.next()
    }

    /// When a majority last named this server: all of its answers are to questions from this time or later.
    /// `None` if so many do not name it.
    fn named_at(&self, address: &Address) -> Option<Stamp> {
        let naming = self.0.iter().flatten().filter(|answer| answer.primary.as_ref() == Some(address));
        let mut asked: Vec<_> = naming.map(|answer| answer.asked).collect();
        asked.sort_unstable_by(|one, other| other.cmp(one));
        asked.get(self.majority() - 1).copied()
    }

    /// Whether a confirmation of this server counts for a lease of this ttl, if the request was sent at `sent`.
    pub(super) fn counts(&self, address: &Address, ttl: Duration, sent: Stamp) -> bool {
        self.named_at(address).is_some_and(|at| sent.since(at) <= patience(ttl))
    }

    /// Whether the Sentinels have to be asked before a request for a lease of this ttl is sent, or beside it.
    pub(super) fn is_due(&self, address: &Address, ttl: Duration, now: Stamp) -> bool {
        // Earlier than necessary, so that an answer that is on its way keeps no request waiting.
        self.named_at(address).is_none_or(|at| now.since(at) > patience(ttl) * 3 / 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    fn at(ms: u64) -> Stamp {
        Stamp::from_start(Duration::from_millis(ms))
    }

    fn server(host: &str) -> Address {
        Address { host: host.to_owned(), port: 6379 }
    }

    /// Each Sentinel was asked at this time, and named this server.
    fn naming(answers: &[(u64, &str)]) -> Naming {
        let mut naming = Naming::new(answers.len());
        for (sentinel, (asked, host)) in answers.iter().enumerate() {
            naming.answer(sentinel, at(*asked), (!host.is_empty()).then(|| server(host)));
        }
        naming
    }

    #[test]
    fn the_primary_is_what_a_majority_of_all_sentinels_names() {
        for (answers, primary) in [
            (&[(1, "a"), (1, "a"), (1, "a")][..], Some("a")),
            // In a minority partition, dead, or lying.
            (&[(1, "old"), (1, "a"), (1, "a")], Some("a")),
            (&[(9, "old"), (1, "a"), (1, "a")], Some("a")),
            (&[(1, "a"), (1, "a"), (1, "")], Some("a")),
            (&[(1, "a"), (1, "b"), (1, "c")], None),
            (&[(1, "a"), (1, ""), (1, "")], None),
            (&[(1, ""), (1, ""), (1, "")], None),
            // Half is no majority.
            (&[(1, "a"), (1, "a"), (1, "b"), (1, "b")], None),
            (&[(1, "a"), (1, "a"), (1, "a"), (1, "b")], Some("a")),
            (&[(1, "a"), (1, "b")], None),
            (&[(1, "a")], Some("a")),
        ] {
            assert_eq!(naming(answers).primary(), primary.map(server).as_ref(), "{answers:?}");
        }
        // Those that have never answered count.
        let mut naming = Naming::new(3);
        assert_eq!((naming.majority(), naming.primary()), (2, None));
        naming.answer(1, at(1), Some(server("a")));
        assert_eq!(naming.primary(), None);
        naming.answer(2, at(1), Some(server("a")));
        assert_eq!(naming.primary(), Some(&server("a")));
        assert_eq!([1, 2, 3, 4, 5].map(|sentinels| Naming::new(sentinels).majority()), [1, 2, 2, 3, 3]);
    }

    #[test]
    fn an_address_is_host_and_port() {
        let other = Address { port: 7000, ..server("a") };
        let mut naming = naming(&[(1, "a"), (1, "b"), (1, "c")]);
        naming.answer(1, at(2), Some(other.clone()));
        assert_eq!(naming.primary(), None);
        naming.answer(0, at(2), Some(other.clone()));
        assert_eq!(naming.primary(), Some(&other));
        assert_eq!((server("a").to_string(), server("::1").to_string()), ("a:6379".into(), "[::1]:6379".into()));
    }

    #[test]
    fn only_answers_to_new_questions_count_for_a_connection() {
        let naming = naming(&[(5, "a"), (3, "a"), (1, "a")]);
        for (since, primary) in [(1, true), (3, true), (4, false), (5, false)] {
            assert_eq!(naming.primary_since(at(since)).is_some(), primary, "{since}");
        }
    }

    #[test]
    fn the_newest_answer_of_a_sentinel_counts() {
        let mut naming = naming(&[(5, "a"), (5, "a"), (5, "b")]);
        // The late reply to an older question.
        naming.answer(0, at(4), Some(server("b")));
        assert_eq!(naming.primary(), Some(&server("a")));
        naming.answer(0, at(6), Some(server("b")));
        assert_eq!(naming.primary(), Some(&server("b")));
        assert!(!naming.counts(&server("a"), TTL, at(6)), "a demoted server is not believed from now on");
        naming.answer(0, at(7), None);
        assert_eq!(naming.primary(), None);
    }

    #[test]
    fn a_confirmation_counts_for_a_third_of_the_ttl_after_a_majority_has_named_the_server() {
        let naming = naming(&[(9_000, "a"), (1_000, "a"), (2_000, "a")]);
        let a = server("a");
        // Two named it at 2 s or later.
        for (sent, counts) in [(2_000, true), (12_000, true), (12_001, false), (60_000, false)] {
            assert_eq!(naming.counts(&a, TTL, at(sent)), counts, "{sent}");
        }
        // Each lease counts by its own ttl.
        assert!(!naming.counts(&a, TTL / 3, at(12_000)) && naming.counts(&a, TTL / 3, at(5_333)));
        // The question may be sent beside the request.
        assert!(naming.counts(&a, TTL, at(500)));
        assert!(!naming.counts(&server("b"), TTL, at(2_000)));
    }

    #[test]
    fn the_sentinels_are_asked_before_their_answers_are_too_old() {
        let naming = naming(&[(2_000, "a"), (2_000, "a"), (0, "b")]);
        for (now, due) in [(2_000, false), (9_500, false), (9_501, true), (12_000, true)] {
            assert_eq!(naming.is_due(&server("a"), TTL, at(now)), due, "{now}");
            assert!(naming.counts(&server("a"), TTL, at(now)));
        }
        assert!(naming.is_due(&server("b"), TTL, at(2_000)));
        assert!(Naming::new(3).is_due(&server("a"), TTL, at(0)));
    }

    /// Searches all short histories: a failover, and when each Sentinel learns of it and is asked. No confirmation of
    /// the former primary counts when the new one may grant.
    #[test]
    fn no_confirmation_of_a_former_primary_outlives_the_wait_of_the_new_one() {
        let (old, new) = (server("old"), server("new"));
        let ttl = Duration::from_millis(3);
        // In ms. A client sees the new primary when a majority names it.
        let times = || (0..6_u64).flat_map(|x| (0..6_u64).flat_map(move |y| (0..6_u64).map(move |z| [x, y, z])));
        for learned in times() {
            let mut sorted = learned;
            sorted.sort_unstable();
            let seen = sorted[1];
            for asked in times() {
                let mut naming = Naming::new(3);
                for sentinel in 0..3 {
                    let named = if asked[sentinel] >= learned[sentinel] { &new } else { &old };
                    naming.answer(sentinel, at(asked[sentinel]), Some(named.clone()));
                }
                let last = (0..30).filter(|sent| naming.counts(&old, ttl, at(*sent))).max();
                if let Some(sent) = last {
                    let believed = at(sent).plus(ttl);
                    assert!(believed <= at(seen).plus(lasting(ttl) - GOSSIP), "{learned:?} {asked:?}");
                }
            }
        }
    }

    #[test]
    fn no_lease_lasts_no_time() {
        assert_eq!(lasting(Duration::ZERO), Duration::ZERO);
        assert_eq!(lasting(TTL), Duration::from_secs(42));
    }
}
