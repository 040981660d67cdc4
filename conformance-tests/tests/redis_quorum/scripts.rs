//! The script of a server by itself: replies that a client meets only by chance.

use std::time::Duration;

use leasehold_conformance::Data;

use super::fixture::PREFIX;
use super::group::{Group, case, name};
use super::stored::Stored;

const SOURCE: &str = include_str!("../../../lock-redis/src/quorum/scripts/exchange.lua");

/// A request, as the header of the script describes it.
#[derive(Clone, Copy)]
pub(super) struct Operation {
    pub(super) code: u8,
    pub(super) ttl: Duration,
    pub(super) token: u64,
    pub(super) vote: u8,
}

/// Sends requests for one lock in one call, and returns the codes of the replies.
pub(super) fn exchange(group: &Group, server: usize, lock: &str, operations: &[Operation]) -> String {
    exchange_with(group, server, lock, operations, Duration::from_secs(600))
}

/// The same with another retention.
pub(super) fn exchange_with(
    group: &Group,
    server: usize,
    lock: &str,
    operations: &[Operation],
    retention: Duration,
) -> String {
    let mut common = group.servers[server].info("server", "run_id").expect("INFO works").into_bytes();
    common.extend(u64::try_from(retention.as_micros()).expect("a retention").to_be_bytes());
    let mut packed = Vec::new();
    for Operation { code, ttl, token, vote } in operations {
        packed.extend([*code, 0]);
        packed.extend(u32::try_from(ttl.as_millis()).expect("a ttl").to_be_bytes());
        packed.extend(token.to_be_bytes());
        packed.extend([*vote; 16]);
    }
    let mut call = vec![b"EVAL".to_vec(), SOURCE.into(), (operations.len() + 1).to_string().into_bytes()];
    call.push(format!("{PREFIX}quorum").into_bytes());
    call.extend(operations.iter().map(|_| Stored::key(&name(lock)).into_bytes()));
    call.extend([common, packed]);
    let reply = group.servers[server].command(&call).unwrap_or_else(|error| panic!("the script fails: {error}"));
    reply.items()[1].text()
}

/// A request for a vote, of this claim.
pub(super) fn vote(claim: u8, ttl: Duration, token: u64) -> Operation {
    Operation { code: b'v', ttl, token, vote: claim }
}

const TTL: Duration = Duration::from_secs(20);

fn of(code: u8, vote: u8, token: u64) -> Operation {
    Operation { code, ttl: TTL, token, vote }
}

/// A token that equals the fence may be the guess of a claim that lost, or that of a break: not a token for this lease.
#[test]
fn a_server_accepts_a_token_only_above_its_fence() {
    case(3, async |group| {
        let _client = group.direct("").await;
        let token = group.state(0).expect("a state").high + 1_000_000;
        let at = |operations: &[Operation]| exchange(&group, 0, "fence", operations);
        assert_eq!(at(&[of(b'v', 1, token), of(b'w', 1, 0)]), "g1");
        assert_eq!(at(&[of(b'v', 2, token), of(b'a', 2, token - 1), of(b'a', 2, token)]), "vll");
        // The second copy of a raise that was accepted, and one of another claim.
        assert_eq!(at(&[of(b'a', 2, token + 1), of(b'a', 2, token + 1), of(b'a', 3, token + 2)]), "ggl");
        let stored = group.votes(&[0], "fence")[0].clone().expect("a record");
        assert_eq!((stored.fence, stored.token, stored.owner), (token + 1, token + 1, [2; 16]));
        assert!(group.state(0).expect("a state").high > token, "a floor is read from it");
    });
}

/// A vote looks for its tombstone only while the record says that there may be one.
#[test]
fn a_record_is_kept_as_long_as_its_tombstone() {
    case(3, async |group| {
        let _client = group.direct("").await;
        let minute = Operation { code: b't', ttl: Duration::from_secs(60), token: 0, vote: 1 };
        assert_eq!(exchange_with(&group, 0, "gone", &[minute], Duration::from_secs(1)), "0");
        let key = Stored::key(&name("gone"));
        let left = |key: &[u8]| group.servers[0].command(&[b"PTTL", key]).expect("PTTL works").int().expect("a number");
        let tombstone = left(&[key.as_bytes(), b":t:", &[1; 16]].concat());
        assert!(tombstone > 50_000 && left(key.as_bytes()) >= tombstone, "the record ends before");
        assert_eq!(exchange(&group, 0, "gone", &[vote(1, TTL, 1), vote(2, TTL, 1)]), "dv");
    });
}

/// A vote that was broken does not come back, neither by a join nor by a put-back, nor by a late request.
#[test]
fn a_broken_vote_does_not_come_back() {
    case(3, async |mut group| {
        let _client = group.direct("").await;
        let at = |group: &Group, operations: &[Operation]| exchange(group, 0, "broken", operations);
        assert_eq!(at(&group, &[of(b'v', 1, 1), of(b'b', 1, u64::MAX >> 12), of(b'r', 1, 1)]), "vgf");
        assert_eq!(at(&group, &[of(b'j', 1, 1), of(b'v', 1, 1), of(b'J', 1, 1)]), "fdf");
        // It was never here: its request is on the way, or the holder would have joined.
        assert_eq!(at(&group, &[of(b'b', 2, 1), of(b'j', 2, 1), of(b'j', 3, 1)]), "vfj");
        group.restart(0, Data::Kept);
        assert_eq!(at(&group, &[of(b'w', 3, 0), of(b'p', 1, 1), of(b'p', 2, 1), of(b'p', 4, 1)]), "1ffp");
    });
}

/// A lease that shall end sooner does so on every way that a renewal can take.
#[test]
fn an_exact_renewal_ends_sooner_on_every_way() {
    case(3, async |mut group| {
        let _client = group.direct("").await;
        let left = |group: &Group| group.votes(&[0], "exact")[0].clone().expect("a record").left;
        let second = |code| Operation { code, ttl: Duration::from_secs(1), token: 1, vote: 1 };
        for restarts in [false, true] {
            if restarts {
                exchange(&group, 0, "exact", &[vote(1, TTL, 1)]);
                group.restart(0, Data::Kept);
            }
            for (at_least, exact) in [(b'r', b'R'), (b'j', b'J'), (b'p', b'P')] {
                let long = if restarts { of(b'r', 1, 1) } else { vote(1, TTL, 1) };
                exchange(&group, 0, "exact", &[long]);
                assert_eq!(exchange(&group, 0, "exact", &[second(at_least)]), "r");
                assert!(left(&group) > TTL / 2, "{}", char::from(at_least));
                assert_eq!(exchange(&group, 0, "exact", &[second(exact)]), "r");
                assert!(left(&group) <= Duration::from_secs(1), "{}", char::from(exact));
            }
        }
    });
}
