//! Reads the stored format of etcd without the library.

use std::time::Duration;

use leasehold_conformance::Record;
use leasehold_core::{FencingToken, LockName};
use leasehold_test_servers::{EtcdKey, EtcdSide, percent_encoded};

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
        format!("{}{}/", self.prefix, percent_encoded(name.as_str()))
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
}
