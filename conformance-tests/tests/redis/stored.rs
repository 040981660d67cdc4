//! What Leasehold stores in Redis, read without the library that wrote it.

use std::collections::HashMap;
use std::time::Duration;

use conformance_tests::harness::{RedisServer, Reply};
use conformance_tests::{Census, Record};
use lock_core::{FencingToken, LockName};

/// The longest encoded name in a key; part of the stored format.
const MAX_ENCODED: usize = 200;

/// Reads the keys of one prefix.
pub(super) struct Stored<'a> {
    server: &'a RedisServer,
    prefix: &'a str,
}

/// What is read of the record of a lock: the beginning of a packed string, big endian.
struct Head {
    /// When the lease ends, in µs of the server's clock.
    deadline: u64,
    token: u64,
}

impl Head {
    fn read(raw: &[u8]) -> Self {
        assert_eq!(raw.get(..2), Some(&b"\x01x"[..]), "a record of version 1 and kind x: {raw:?}");
        Self { deadline: number(raw, 3), token: number(raw, 11) }
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
        let Reply::Bytes(raw) = self.ask(&["GET", &self.key(name)]) else { return Record::default() };
        let head = Head::read(&raw);
        let waiters = self.live_places(&self.queue_key(name));
        let left = head.deadline.saturating_sub(self.now());
        Record {
            lease: (left > 0).then(|| Duration::from_micros(left)),
            last_token: (head.token > 0).then(|| FencingToken::new(head.token)),
            waiters,
        }
    }

    /// Everything under the prefix. Keys that are not Leasehold's fail the case.
    pub(super) fn census(&self) -> Census {
        let mut census = Census::default();
        for key in self.keys() {
            let rest = key.strip_prefix(self.prefix).unwrap_or(&key).to_owned();
            match rest.rsplit_once('}').map(|(_, kind)| kind) {
                Some("") => match self.ask(&["GET", &key]) {
                    Reply::Bytes(raw) if Head::read(&raw).deadline > self.now() => census.leases += 1,
                    Reply::Bytes(_) => census.fences += 1,
                    _ => {}
                },
                Some(":q") => match self.live_places(&key) {
                    // Its places are dead; it ends by itself.
                    0 => census.other += 1,
                    places => census.places += places,
                },
                Some(kind) if kind.starts_with(":t:") => census.tombstones += 1,
                Some(kind) if kind.starts_with(":f:") => {}
                None if rest == "epoch" => {}
                _ => panic!("a key that is no part of the format: {key:?}"),
            }
        }
        census
    }

    /// All keys under the prefix. Owner tokens are part of some: they are shown in no text.
    fn keys(&self) -> Vec<String> {
        let (mut keys, mut cursor) = (Vec::new(), "0".to_owned());
        loop {
            let mut page = self.ask(&["SCAN", &cursor, "MATCH", &format!("{}*", self.prefix), "COUNT", "1000"]).items();
            keys.extend(page.pop().map(Reply::items).unwrap_or_default().iter().map(Reply::text));
            cursor = page.pop().map(|cursor| cursor.text()).unwrap_or_default();
            if cursor == "0" {
                keys.sort();
                keys.dedup();
                return keys;
            }
        }
    }

    /// How many places of a queue live: its fields that are numbers, and whose entry (owner, deadline, …) has not
    /// passed.
    fn live_places(&self, queue: &str) -> u64 {
        let flat = self.ask(&["HGETALL", queue]).items();
        let fields: HashMap<String, &Reply> =
            flat.chunks_exact(2).map(|pair| (pair[0].text(), &pair[1])).filter(|(field, _)| is_number(field)).collect();
        let now = self.now();
        let lives = |entry: &&Reply| matches!(entry, Reply::Bytes(raw) if number(raw, 16) > now);
        fields.into_values().filter(lives).count() as u64
    }

    /// The server's clock, in µs.
    fn now(&self) -> u64 {
        let time: Vec<u64> = self.ask(&["TIME"]).items().iter().filter_map(|part| part.text().parse().ok()).collect();
        match time[..] {
            [seconds, micros] => seconds * 1_000_000 + micros,
            _ => panic!("TIME answers two numbers: {time:?}"),
        }
    }

    fn ask(&self, command: &[&str]) -> Reply {
        self.server.command(command).unwrap_or_else(|error| panic!("{} fails: {error}", command[0]))
    }
}

fn is_number(field: &str) -> bool {
    !field.is_empty() && field.bytes().all(|byte| byte.is_ascii_digit())
}
