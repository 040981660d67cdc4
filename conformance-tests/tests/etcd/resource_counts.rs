//! The resources of a prefix at the server.

use std::collections::BTreeMap;

use leasehold_conformance::ResourceCounts;

use super::stored::Stored;

impl Stored<'_> {
    /// Counts all keys under the prefix. A key that is not Leasehold's fails the case.
    pub(super) fn resource_counts(&self) -> ResourceCounts {
        let mut counts = ResourceCounts::default();
        let mut queues = BTreeMap::<String, u64>::new();
        for key in self.side.keys(self.prefix).unwrap_or_else(|error| panic!("no keys: {error}")) {
            let text = String::from_utf8(key.key).expect("all keys are texts");
            match text[self.prefix.len()..].split_once('/') {
                // It guards against requests of withdrawn claims, and ends with the session.
                Some((".epochs", _)) => counts.tombstones += 1,
                Some((name, claim)) if claim.len() == 32 => *queues.entry(name.to_owned()).or_default() += 1,
                _ => panic!("a key that is no part of the format: {text:?}"),
            }
        }
        counts.leases = queues.len() as u64;
        counts.places = queues.values().map(|keys| keys - 1).sum();
        counts
    }
}
