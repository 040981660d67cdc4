//! What a client knows of the runs of its server, or of each node of its cluster, and of the ttls in use.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_core::backend::kit::restart::{CheckContext, Decision, Epoch, OnRestart, Reading, UnknownFormat};
use tokio::time::Instant;

/// The runs belong to a node, whatever address it has. The ttls belong to all nodes: the locks of a slot that is moved
/// keep theirs.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
    of: HashMap<String, Epoch>,
    /// Knows the ttls only.
    ttls: Epoch,
}

impl Epochs {
    /// As [`Epoch::run`], for the node with this name; that of a single server is empty.
    pub(crate) fn run(&self, node: &str) -> Option<&str> {
        self.of.get(node)?.run()
    }

    /// As [`Epoch::needs_reading`].
    pub(crate) fn needs_reading(&self, node: &str, ttl: Duration, now: Instant) -> bool {
        self.of.get(node).map_or(!ttl.is_zero(), |epoch| epoch.needs_reading(ttl, now))
    }

    /// As [`Epoch::receive`]: the nodes of a cluster forward each other's messages.
    pub(crate) fn receive(&mut self, message: &str, now: Instant) {
        self.ttls.receive(message, now);
    }

    /// As [`Epoch::evaluate`], with the setting for a node that was promoted: this client may have locked on the node
    /// that it replaces, whose name nobody knows any more.
    pub(crate) fn evaluate(
        &mut self,
        node: &str,
        was_promoted: bool,
        reading: &Reading,
        mut check: CheckContext,
    ) -> Result<Decision, UnknownFormat> {
        let has_locked_elsewhere = self.of.iter().any(|(other, epoch)| other != node && epoch.run().is_some());
        if was_promoted && has_locked_elsewhere && check.on_restart == OnRestart::QuarantineKnown {
            check.on_restart = OnRestart::Quarantine;
        }
        let epoch = self.of.entry(node.to_owned()).or_default();
        epoch.learn(&self.ttls, check.now);
        let decision = epoch.evaluate(reading, check);
        self.ttls.learn(epoch, check.now);
        decision
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::backend::kit::restart::Grants;

    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    fn evaluate(epochs: &mut Epochs, node: &str, run: &str, key: &str, was_promoted: bool, ttl: Duration) -> Decision {
        let reading =
            Reading { run: run.to_owned(), uptime: None, now: Duration::from_secs(86_400), key: key.to_owned() };
        let now = Instant::now();
        let check = CheckContext { on_restart: OnRestart::QuarantineKnown, ttl, requested: now, now };
        epochs.evaluate(node, was_promoted, &reading, check).unwrap()
    }

    #[test]
    fn a_ttl_of_one_node_counts_on_the_others() {
        let mut epochs = Epochs::default();
        let Decision::Write(key) = evaluate(&mut epochs, "a", "a/1", "", false, TTL) else { panic!("a new ttl") };
        assert!(key.starts_with("1 a/1 30000:"), "{key}");
        let Decision::Write(key) = evaluate(&mut epochs, "b", "b/1", "", false, Duration::from_secs(1)) else {
            panic!("a new ttl")
        };
        assert!(key.contains(" 30000:"), "{key}");
    }

    #[test]
    fn a_promoted_node_without_a_key_waits_for_a_client_that_has_locked_elsewhere() {
        let newcomer = &mut Epochs::default();
        let Decision::Write(key) = evaluate(newcomer, "b", "b/1~x", "", true, TTL) else { panic!("a new ttl") };
        assert!(key.starts_with("1 b/1~x "), "no other run is known: {key}");
        let client = &mut Epochs::default();
        let Decision::Write(key) = evaluate(client, "a", "a/1", "", false, TTL) else { panic!("a new ttl") };
        assert_eq!(evaluate(client, "a", "a/1", &key, false, TTL), Decision::Grants(Grants::Allowed));
        let Decision::Write(key) = evaluate(client, "b", "b/1~x", "", true, TTL) else { panic!("a new ttl") };
        let Decision::Grants(Grants::After(wait)) = evaluate(client, "b", "b/1~x", &key, true, TTL) else {
            panic!("it waits: {key}")
        };
        assert!(wait > TTL * 9 / 10, "{wait:?}");
        // A node that was never promoted has only been added.
        let Decision::Write(key) = evaluate(client, "c", "c/1", "", false, TTL) else { panic!("a new ttl") };
        assert_eq!(evaluate(client, "c", "c/1", &key, false, TTL), Decision::Grants(Grants::Allowed));
    }

    #[test]
    fn a_run_belongs_to_a_node() {
        let client = &mut Epochs::default();
        let Decision::Write(key) = evaluate(client, "a", "a/1", "", false, TTL) else { panic!("a new ttl") };
        assert_eq!(evaluate(client, "a", "a/1", &key, false, TTL), Decision::Grants(Grants::Allowed));
        // It has restarted without its data, at whatever address.
        let Decision::Write(key) = evaluate(client, "a", "a/2", "", false, TTL) else { panic!("a new run") };
        let decision = evaluate(client, "a", "a/2", &key, false, TTL);
        assert!(matches!(decision, Decision::Grants(Grants::After(_))), "{decision:?}");
    }
}
