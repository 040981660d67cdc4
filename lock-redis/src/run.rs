//! The run of the server: an identity for its present time as a primary, and the minimal length of that time.

use std::time::Duration;

use leasehold_core::backend::kit::restart::Reading;

/// What `epoch.lua` reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// The name of the node of a cluster and `/`; empty for a single server.
    pub(crate) node: String,
    /// Identifies the server's process.
    pub(crate) id: String,
    pub(crate) uptime: Duration,
    /// The server's clock.
    pub(crate) now: Duration,
    /// The contents of the epoch key.
    pub(crate) key: String,
    pub(crate) is_replica: bool,
    /// The replication history before its promotion; zeros if it was never promoted. Each promotion sets another one.
    /// The server forgets it an hour after its last replica has left (`repl-backlog-ttl`).
    pub(crate) former_history: String,
    /// It has sent or received a replication stream.
    pub(crate) has_replicated: bool,
}

/// A run of the server, as a connection has read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Tells it from every other run.
    pub(crate) name: String,
    /// What the server said then: [`State::id`] and [`State::former_history`].
    pub(crate) process: String,
    pub(crate) former_history: String,
}

impl State {
    pub(crate) fn was_promoted(&self) -> bool {
        self.former_history.bytes().any(|byte| byte != b'0')
    }

    /// The run, for a client that was last allowed to lock on the run `known`.
    pub(crate) fn run(&self, known: Option<&str>) -> Run {
        let id = format!("{}{}", self.node, self.id);
        let name = match self.was_promoted() {
            // A primary that became a replica and is promoted again has another run, in the same process.
            true => format!("{id}~{}", self.former_history),
            false => {
                let is_own = |run: &&str| run.split('~').next() == Some(&*id);
                // The server may have forgotten its promotion. That is no restart, so the run keeps its name.
                let own = [self.key.split(' ').nth(1), known].into_iter().flatten().find(is_own);
                own.unwrap_or(&id).to_owned()
            }
        };
        Run { name, process: self.id.clone(), former_history: self.former_history.clone() }
    }

    /// Whether the key came with a slot that was moved to this node: it names another node. That still serves slots, or
    /// this client locks on this node already (`is_known`). Otherwise this node may have replaced the other one, and
    /// the key is its own.
    pub(crate) fn has_foreign_key(&self, is_known: bool, serves: impl Fn(&str) -> bool) -> bool {
        let named = self.key.split(' ').nth(1).and_then(|run| Some(run.split_once('/')?.0));
        named.is_some_and(|named| named != self.node.trim_end_matches('/') && (is_known || serves(named)))
    }

    /// What follows if this is the run.
    pub(crate) fn reading(self, run: &Run) -> Reading {
        // A replica may have been up for long when it is promoted. Only the uptime of a server that has never
        // replicated says for how long no other server has granted a lock.
        let uptime = (!self.was_promoted() && !self.has_replicated).then_some(self.uptime);
        Reading { run: run.name.clone(), uptime, now: self.now, key: self.key }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: &str = "0000000000000000000000000000000000000000";

    fn reading(former_history: &str, has_replicated: bool, key: &str, known: Option<&str>) -> (String, bool) {
        let state = State {
            node: String::new(),
            id: "f00".to_owned(),
            uptime: Duration::from_secs(100),
            now: Duration::from_secs(86_400),
            key: key.to_owned(),
            is_replica: false,
            former_history: former_history.to_owned(),
            has_replicated,
        };
        let run = state.run(known);
        let reading = state.reading(&run);
        (reading.run, reading.uptime == Some(Duration::from_secs(100)))
    }

    #[test]
    fn a_key_is_foreign_if_its_node_still_serves_slots() {
        for (key, is_foreign) in [
            ("", false),
            ("1 own/f00 6000:1", false),
            ("1 own/f00~abc 6000:1", false),
            ("1 other/f01 6000:1", true),
            ("1 other/f01~abc own/f00@1 6000:1", true),
            // It was replaced by this one, which may have been restarted since.
            ("1 failed/f02 6000:1", false),
            ("1 f03 6000:1", false),
        ] {
            let state = State {
                node: "own/".to_owned(),
                id: "f00".to_owned(),
                uptime: Duration::ZERO,
                now: Duration::ZERO,
                key: key.to_owned(),
                is_replica: false,
                former_history: NEVER.to_owned(),
                has_replicated: true,
            };
            let serves = |node: &str| ["own", "other"].contains(&node);
            assert_eq!(state.has_foreign_key(false, serves), is_foreign, "{key}");
            // The node that had the slot serves none any more.
            let is_moved = is_foreign || key.contains("failed/");
            assert_eq!(state.has_foreign_key(true, serves), is_moved, "{key}");
        }
    }

    #[test]
    fn a_promotion_begins_a_run_and_only_the_uptime_of_a_server_without_a_history_counts() {
        for (former_history, has_replicated, key, known, run, counts) in [
            (NEVER, false, "", None, "f00", true),
            (NEVER, false, "1 other", Some("other"), "f00", true),
            // It has got a replica. Its clients go on.
            (NEVER, true, "1 f00 6000:1", Some("f00"), "f00", false),
            ("abc", true, "", None, "f00~abc", false),
            ("abc", true, "1 f00 6000:1", Some("f00"), "f00~abc", false),
            ("abc", false, "1 other", None, "f00~abc", false),
            ("def", true, "1 f00~abc", Some("f00~abc"), "f00~def", false),
            // It has forgotten its promotion.
            (NEVER, true, "1 f00~abc 6000:1", None, "f00~abc", false),
            (NEVER, true, "", Some("f00~abc"), "f00~abc", false),
            (NEVER, true, "1 other f00~abc@1 6000:1", Some("other"), "f00", false),
            ("", true, "", None, "f00", false),
        ] {
            let found = reading(former_history, has_replicated, key, known);
            assert_eq!(found, (run.to_owned(), counts), "{former_history} {key} {known:?}");
        }
    }
}
