//! Reads the stored format of a quorum without the library.

use std::time::Duration;

use leasehold_conformance::{Record, ResourceCounts};
use leasehold_core::{FencingToken, LockName};
use leasehold_test_servers::{RedisServer, Reply};

use super::fixture::PREFIX;

/// The longest encoded name in a key; part of the stored format.
const MAX_ENCODED: usize = 200;

/// How many servers make a majority of three.
const MAJORITY: usize = 2;

/// The keys on all servers.
pub(super) struct Stored<'a> {
    pub(super) servers: &'a [RedisServer],
}

/// The record of a lock on one server.
#[derive(Clone, Debug)]
pub(super) struct Vote {
    /// What is left of it, by the server's clock.
    pub(super) left: Duration,
    pub(super) fence: u64,
    pub(super) token: u64,
    pub(super) owner: [u8; 16],
}

/// What a server keeps about itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    pub(super) floor: u64,
    /// Above each of its fences.
    pub(super) high: u64,
    /// It votes in its present run.
    pub(super) is_settled: bool,
}

impl State {
    /// `None` if the server was never used.
    pub(super) fn of(server: &RedisServer) -> Option<Self> {
        let Reply::Bytes(raw) = query(server, &["GET", &format!("{PREFIX}quorum")]) else { return None };
        let run = server.info("server", "run_id").expect("INFO works");
        // version, run, servers, number, longest ttl, floor, the highest fence
        Some(Self { floor: number(&raw, 47), high: number(&raw, 55), is_settled: raw[1..41] == *run.as_bytes() })
    }
}

fn number(raw: &[u8], at: usize) -> u64 {
    let bytes = raw.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    u64::from_be_bytes(bytes.unwrap_or_else(|| panic!("eight bytes at {at} of {raw:?}")))
}

fn query(server: &RedisServer, command: &[&str]) -> Reply {
    server.command(command).unwrap_or_else(|error| panic!("{} fails: {error}", command[0]))
}

/// A server's clock, in µs.
fn now(server: &RedisServer) -> u64 {
    let time: Vec<u64> = query(server, &["TIME"]).items().iter().filter_map(|part| part.text().parse().ok()).collect();
    match time[..] {
        [seconds, micros] => seconds * 1_000_000 + micros,
        _ => panic!("TIME returns two numbers: {time:?}"),
    }
}

/// The vote in the record with this key; `None` if there is no record.
fn vote(server: &RedisServer, key: &str) -> Option<Vote> {
    let Reply::Bytes(raw) = query(server, &["GET", key]) else { return None };
    assert_eq!(raw.get(..4), Some(&b"\x01q\0\0"[..]), "a record of version 1 and kind q: {raw:?}");
    // version, kind, two bytes of flags, deadline, how long it is kept, tombstones, fence, token, vote, …
    let left = Duration::from_micros(number(&raw, 4).saturating_sub(now(server)));
    let owner = raw[44..60].try_into().expect("a vote has 16 bytes");
    Some(Vote { left, fence: number(&raw, 28), token: number(&raw, 36), owner })
}

impl Stored<'_> {
    /// The key of a lock's record.
    pub(super) fn key(name: &LockName) -> String {
        format!("{PREFIX}{{{}}}", name.encode(MAX_ENCODED))
    }

    /// The vote of one server.
    pub(super) fn vote(&self, server: usize, name: &LockName) -> Option<Vote> {
        vote(&self.servers[server], &Self::key(name))
    }

    /// The votes of all servers.
    pub(super) fn votes(&self, name: &LockName) -> Vec<Option<Vote>> {
        self.servers.iter().map(|server| vote(server, &Self::key(name))).collect()
    }

    /// What a majority of the servers says.
    pub(super) fn record(&self, name: &LockName) -> Record {
        let votes: Vec<Vote> = self.votes(name).into_iter().flatten().collect();
        let live = || votes.iter().filter(|vote| !vote.left.is_zero());
        // The lease ends with the vote that leaves fewer than a majority.
        let lease = live().find_map(|vote| {
            let mut left: Vec<_> = live().filter(|other| other.owner == vote.owner).map(|other| other.left).collect();
            left.sort_unstable();
            left.get(left.len().checked_sub(MAJORITY)?).copied()
        });
        let accepted = |token: u64| votes.iter().filter(|vote| vote.fence >= token).count() >= MAJORITY;
        let tokens = votes.iter().map(|vote| vote.token).filter(|token| *token > 0 && accepted(*token));
        Record { holders: lease.into_iter().collect(), last_token: tokens.max().map(FencingToken::new), waiters: None }
    }

    /// Counts all keys under the prefix on the server that has the most of each kind; a lease is one that no majority of
    /// the servers is free for. A key that is not Leasehold's fails the case.
    pub(super) fn resource_counts(&self) -> ResourceCounts {
        let mut most = ResourceCounts::default();
        let mut live = std::collections::HashMap::<String, usize>::new();
        for server in self.servers {
            let mut counts = ResourceCounts::default();
            for key in query(server, &["KEYS", "*"]).items().iter().map(Reply::text) {
                let Some(rest) = key.strip_prefix(PREFIX) else { panic!("a key without the prefix: {key:?}") };
                match rest.split_once('}').map(|(_, kind)| kind) {
                    Some("") if vote(server, &key).is_some_and(|vote| !vote.left.is_zero()) => {
                        *live.entry(key).or_default() += 1;
                    }
                    Some("") => counts.fences += 1,
                    Some(kind) if kind.starts_with(":t:") => counts.tombstones += 1,
                    None if matches!(rest, "quorum" | "quorum:since") => {}
                    _ => panic!("a key that is no part of the format: {key:?}"),
                }
            }
            most.fences = most.fences.max(counts.fences);
            most.tombstones = most.tombstones.max(counts.tombstones);
        }
        most.leases = live.values().filter(|count| **count >= MAJORITY).count() as u64;
        most
    }
}
