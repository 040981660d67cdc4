//! Reads the stored format of Redis without the library.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_conformance::Record;
use leasehold_core::{FencingToken, LockName};
use leasehold_test_servers::{RedisServer, Reply};

/// The longest encoded name in a key; part of the stored format.
const MAX_ENCODED: usize = 200;

/// Reads the keys of one prefix.
pub(super) struct Stored<'a> {
    server: &'a RedisServer,
    pub(super) prefix: &'a str,
}

/// The first fields of the record of a lock, a packed big-endian string.
pub(super) struct Head {
    /// When the lease ends, in µs of the server's clock.
    pub(super) deadline: u64,
    token: u64,
}

impl Head {
    pub(super) fn read(raw: &[u8]) -> Self {
        assert_eq!(raw.get(..2), Some(&b"\x01x"[..]), "a record of version 1 and kind x: {raw:?}");
        // version, kind, two bytes of flags, deadline, how long it is kept; with a flag three numbers about places;
        // token, …
        let token = if raw.get(2..4) == Some(&[0, 0]) { 20 } else { 44 };
        Self { deadline: number(raw, 4), token: number(raw, token) }
    }
}

fn number(raw: &[u8], at: usize) -> u64 {
    let bytes = raw.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    u64::from_be_bytes(bytes.unwrap_or_else(|| panic!("eight bytes at {at} of {raw:?}")))
}

impl<'a> Stored<'a> {
    pub(super) fn new(server: &'a RedisServer, prefix: &'a str) -> Self {
        Self { server, prefix }
    }

    /// The key of a lock's record.
    pub(super) fn key(&self, name: &LockName) -> String {
        format!("{}{{{}}}", self.prefix, name.encode(MAX_ENCODED))
    }

    /// The key of a lock's queue.
    pub(super) fn queue_key(&self, name: &LockName) -> String {
        format!("{}:q", self.key(name))
    }

    pub(super) fn record(&self, name: &LockName) -> Record {
        let Reply::Bytes(raw) = self.query(&["GET", &self.key(name)]) else { return Record::default() };
        let head = Head::read(&raw);
        let waiters = Some(self.live_places(&self.queue_key(name)));
        let left = head.deadline.saturating_sub(self.now());
        Record {
            holders: (left > 0).then(|| Duration::from_micros(left)).into_iter().collect(),
            last_token: (head.token > 0).then(|| FencingToken::new(head.token)),
            waiters,
        }
    }

    /// The number of live places of a queue: its numeric fields whose deadline has not passed.
    pub(super) fn live_places(&self, queue: &str) -> u64 {
        let flat = self.query(&["HGETALL", queue]).items();
        let fields: HashMap<String, &Reply> =
            flat.chunks_exact(2).map(|pair| (pair[0].text(), &pair[1])).filter(|(field, _)| is_number(field)).collect();
        let now = self.now();
        let lives = |entry: &&Reply| matches!(entry, Reply::Bytes(raw) if number(raw, 16) > now);
        fields.into_values().filter(lives).count() as u64
    }

    /// The server's clock, in µs.
    pub(super) fn now(&self) -> u64 {
        let time: Vec<u64> = self.query(&["TIME"]).items().iter().filter_map(|part| part.text().parse().ok()).collect();
        match time[..] {
            [seconds, micros] => seconds * 1_000_000 + micros,
            _ => panic!("TIME returns two numbers: {time:?}"),
        }
    }

    pub(super) fn query(&self, command: &[&str]) -> Reply {
        self.server.command(command).unwrap_or_else(|error| panic!("{} fails: {error}", command[0]))
    }
}

fn is_number(field: &str) -> bool {
    !field.is_empty() && field.bytes().all(|byte| byte.is_ascii_digit())
}
