//! Reads the stored format of etcd without the library.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_conformance::{Record, ResourceCounts};
use leasehold_core::{FencingToken, LockName};
use leasehold_test_servers::{EtcdKey, EtcdSide};

/// The server counts what is left of a lease in whole seconds, rounded down.
pub(super) const SECOND: Duration = Duration::from_secs(1);

/// The keys below a prefix.
pub(super) struct Stored<'a> {
    pub(super) side: &'a EtcdSide,
    /// Ends with a slash.
    pub(super) prefix: &'a str,
}

impl Stored<'_> {
    /// The keys of a lock, in the order of their creation.
    pub(super) fn queue(&self, name: &LockName) -> Vec<EtcdKey> {
        let mut keys = self.side.keys(self.queue_prefix(name)).unwrap_or_else(|error| panic!("no keys: {error}"));
        keys.sort_by_key(|key| key.create_revision);
        keys
    }

    pub(super) fn queue_prefix(&self, name: &LockName) -> String {
        let mut encoded = String::new();
        for byte in name.as_str().bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => encoded.push(char::from(byte)),
                _ => encoded.push_str(&format!("%{byte:02X}")),
            }
        }
        format!("{}{encoded}/", self.prefix)
    }

    /// What is left of a lease at most, by the server's clock.
    fn left(&self, lease: i64) -> Duration {
        match self.side.lease(lease).unwrap_or_else(|error| panic!("no lease: {error}")) {
            Some(lease) => (lease.left + SECOND).min(lease.ttl),
            None => Duration::ZERO,
        }
    }

    pub(super) fn record(&self, name: &LockName) -> Record {
        let queue = self.queue(name);
        let Some(first) = queue.first() else { return Record::default() };
        Record {
            holders: vec![self.left(first.lease)],
            last_token: Some(FencingToken::new(u64::try_from(first.create_revision).expect("a revision is positive"))),
            waiters: Some(queue.len() as u64 - 1),
        }
    }

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
