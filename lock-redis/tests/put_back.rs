//! A holder puts its lease back after the server has lost it, and nobody else's lock suffers. The rules are in
//! `src/put_back.rs`.

mod support;

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::{Claim, LockBackend, PlaceNumber, ReleaseOutcome, RenewPolicy, RenewReply, RenewRequest};
use leasehold_core::{ErrorKind, FencingToken, LockClient};
use leasehold_redis::{FencedScript, RedisBackend};
use redis::Value;
use support::{Backend, Redis, claim, ms};

const TTL: Duration = ms(20_000);

/// For tests that wait until the quarantine is over.
const SHORT: Duration = ms(3_000);

/// What the server has of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    is_live: bool,
    token: u64,
    owner: [u8; 16],
    holder: String,
}

async fn record(server: &Redis, name: &str) -> Option<Record> {
    let script = "local time = redis.call('TIME') local raw = redis.call('GET', KEYS[1]) \
         if not raw then return false end \
         local at = string.byte(raw, 4) == 0 and 21 or 45 \
         local live = struct.unpack('>I8', raw, 5) > time[1] * 1000000 + time[2] \
         return {live and 1 or 0, struct.unpack('>I8', raw, at), string.sub(raw, at + 8, at + 23), \
         string.sub(raw, at + 24)}";
    let reply = server.command(&["EVAL", script, "1", &format!("test:{{{name}}}")]).await;
    let Value::Array(parts) = reply else { return None };
    let [Value::Int(is_live), Value::Int(token), Value::BulkString(owner), Value::BulkString(holder)] = &parts[..]
    else {
        panic!("{parts:?}")
    };
    Some(Record {
        is_live: *is_live == 1,
        token: u64::try_from(*token).expect("a token"),
        owner: owner[..].try_into().expect("an owner"),
        holder: String::from_utf8_lossy(holder).into_owned(),
    })
}

/// What is left of the lease of a lock.
async fn left(server: &Redis, name: &str) -> Duration {
    let script = "local time = redis.call('TIME') local raw = redis.call('GET', KEYS[1]) \
         return math.floor((struct.unpack('>I8', raw, 5) - time[1] * 1000000 - time[2]) / 1000)";
    let reply = server.command(&["EVAL", script, "1", &format!("test:{{{name}}}")]).await;
    let Value::Int(left) = reply else { panic!("{reply:?}") };
    ms(u64::try_from(left).unwrap_or(0))
}

/// Kills the server, and starts it with the data of its last SAVE, if there was one. Waits until the clients have read
/// it.
async fn restart(server: &mut Redis, clients: &mut [&mut Backend]) {
    server.kill();
    server.start_again();
    for client in clients {
        client.subscribed().await;
    }
}

async fn backend(server: &Redis, more: &str) -> Backend {
    let mut backend = server.backend(more).await;
    backend.subscribed().await;
    backend
}

#[track_caller]
fn is_renewed(reply: RenewReply, place: PlaceNumber) {
    match reply {
        RenewReply::Renewed(confirmation) => assert_eq!(confirmation.place, place),
        other => panic!("not renewed but {other:?}"),
    }
}

#[track_caller]
fn is_lost(reply: RenewReply) {
    assert!(matches!(reply, RenewReply::Lost), "not lost but {reply:?}");
}

#[tokio::test]
async fn a_lease_comes_back_with_its_token_its_holder_and_its_place() {
    let mut server = Redis::start(&[]);
    let mut ann = backend(&server, "").await;
    let claim = claim("job", 1);
    let grant = ann.granted(&claim, TTL).await;
    let place = grant.confirmation.place;
    let before = record(&server, "job").await;
    for _ in 0..2 {
        restart(&mut server, &mut [&mut ann]).await;
        assert_eq!(record(&server, "job").await, None, "the data is lost");
        is_renewed(ann.renew_one(&claim, place, TTL).await, place);
        assert_eq!(record(&server, "job").await, before);
        // As an ordinary renewal, and by the reply that a lost one is followed by.
        is_renewed(ann.renew_one(&claim, place, TTL).await, place);
    }
    assert_eq!(ann.release(&claim).await.unwrap(), ReleaseOutcome::Released);
    assert!(!record(&server, "job").await.expect("a record").is_live);
}

#[tokio::test]
async fn each_lease_of_a_batch_comes_back_and_nothing_else_does() {
    let mut server = Redis::start(&[]);
    let mut ann = backend(&server, "").await;
    let (mut leases, mut tokens) = (Vec::new(), Vec::new());
    for number in 0..100 {
        let claim = claim(&format!("n{number}"), 1);
        // Some are renewed to another ttl than most, which takes another argument.
        let ttl = if number % 7 == 0 { TTL * 2 } else { TTL };
        let grant = ann.granted(&claim, ttl).await;
        leases.push(RenewRequest::new(claim, grant.confirmation.place, ttl));
        tokens.push(grant.token.get());
    }
    // One was deleted before the restart, one was released, and one was never granted.
    server.command(&["DEL", "test:{n3}"]).await;
    is_lost(ann.renew(&leases[3..4]).await.remove(0));
    ann.release(&leases[50].claim).await.unwrap();
    leases.push(RenewRequest::new(claim("never", 1), PlaceNumber::new(7), TTL));
    leases.swap(20, 100);
    tokens.push(0);
    tokens.swap(20, 100);
    restart(&mut server, &mut [&mut ann]).await;
    for (number, reply) in ann.renew(&leases[..100]).await.into_iter().enumerate() {
        let request = &leases[number];
        let record = record(&server, request.claim.name().as_str()).await;
        match number {
            3 | 20 | 50 => {
                is_lost(reply);
                assert_eq!(record, None, "{number}");
            }
            _ => {
                is_renewed(reply, request.place);
                let record = record.expect("it is back");
                assert_eq!((record.is_live, record.token, record.owner), (true, tokens[number], [1; 16]), "{number}");
                let left = left(&server, request.claim.name().as_str()).await;
                assert!(left <= request.ttl && left > request.ttl - ms(5_000), "{number}: {left:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_lease_that_was_deleted_in_this_run_stays_lost() {
    let mut server = Redis::start(&[]);
    let mut ann = backend(&server, "").await;
    let (first, second) = (claim("job", 1), claim("other", 1));
    let place = ann.granted(&first, TTL).await.confirmation.place;
    let other = ann.granted(&second, TTL).await.confirmation.place;
    server.command(&["DEL", "test:{job}"]).await;
    is_lost(ann.renew_one(&first, place, TTL).await);
    restart(&mut server, &mut [&mut ann]).await;
    is_lost(ann.renew_one(&first, place, TTL).await);
    // Also one that was put back.
    is_renewed(ann.renew_one(&second, other, TTL).await, other);
    server.command(&["DEL", "test:{other}"]).await;
    is_lost(ann.renew_one(&second, other, TTL).await);
    assert_eq!((record(&server, "job").await, record(&server, "other").await), (None, None));
}

#[tokio::test]
async fn a_released_claim_does_not_come_back() {
    let mut server = Redis::start(&[]);
    let (mut ann, twin) = (backend(&server, "").await, server.backend("").await);
    // A claim of the same owner that knows of no release, as a renewal that is still on its way.
    let (claims, late) = (["told", "doubt", "after"].map(|name| claim(name, 1)), [1, 2].map(|_| claim("after", 1)));
    let mut places = Vec::new();
    for claim in &claims {
        places.push(ann.granted(claim, TTL).await.confirmation.place);
    }
    for claim in &late {
        ann.granted(claim, TTL).await;
    }
    let in_doubt = claim("doubt", 1);
    ann.granted(&in_doubt, TTL).await;
    ann.release(&claims[0]).await.unwrap();
    restart(&mut server, &mut [&mut ann]).await;

    is_lost(ann.renew_one(&claims[0], places[0], TTL).await);
    // Withdrawn in this run, which has no record of it.
    assert_eq!(twin.withdraw(&claims[1]).await.unwrap(), ReleaseOutcome::NotHeld);
    is_lost(ann.renew_one(&in_doubt, places[1], TTL).await);
    assert!(!record(&server, "doubt").await.expect("a record for the tombstone").is_live);
    // Put back and released in this run.
    is_renewed(ann.renew_one(&claims[2], places[2], TTL).await, places[2]);
    is_renewed(ann.renew_one(&late[0], places[2], TTL).await, places[2]);
    ann.release(&claims[2]).await.unwrap();
    is_lost(ann.renew_one(&late[1], places[2], TTL).await);
    assert!(!record(&server, "after").await.expect("a record").is_live);
}

/// A client that does not wait, or did not know that it had to, was granted the lock in this run.
#[tokio::test]
async fn a_later_grant_wins_also_when_it_has_ended() {
    let mut server = Redis::start(&[]);
    let mut ann = backend(&server, "").await;
    let (held, ended) = (claim("held", 1), claim("ended", 1));
    let place = ann.granted(&held, TTL).await.confirmation.place;
    let other = ann.granted(&ended, TTL).await.confirmation.place;
    restart(&mut server, &mut [&mut ann]).await;
    let bob = server.backend("&restart=trust").await;
    let next = bob.granted(&claim("held", 2), TTL).await.token.get();
    bob.granted(&claim("ended", 2), TTL).await;
    bob.release(&claim("ended", 2)).await.unwrap();
    is_lost(ann.renew_one(&held, place, TTL).await);
    is_lost(ann.renew_one(&ended, other, TTL).await);
    let record = record(&server, "held").await.expect("bob's");
    assert_eq!((record.is_live, record.token, record.owner), (true, next, [2; 16]));
}

#[tokio::test]
async fn a_client_that_trusts_the_server_puts_back_too_and_is_first_or_too_late() {
    let mut server = Redis::start(&[]);
    let mut ann = backend(&server, "&restart=trust").await;
    let claims = [claim("first", 1), claim("late", 1)];
    let mut places = Vec::new();
    for claim in &claims {
        places.push(ann.granted(claim, TTL).await.confirmation.place);
    }
    restart(&mut server, &mut [&mut ann]).await;
    let bob = server.backend("&restart=trust").await;
    bob.granted(&claim("late", 2), TTL).await;
    is_renewed(ann.renew_one(&claims[0], places[0], TTL).await, places[0]);
    is_lost(ann.renew_one(&claims[1], places[1], TTL).await);
    bob.queued(&claim("first", 2), TTL).await;
}

#[tokio::test]
async fn a_break_during_the_quarantine_wins_before_and_after() {
    let mut server = Redis::start(&[]);
    let mut ann = backend(&server, "").await;
    let (before, after) = (claim("before", 1), claim("after", 1));
    let first = ann.granted(&before, TTL).await;
    let second = ann.granted(&after, TTL).await;
    let twin = claim("after", 1);
    ann.granted(&twin, TTL).await;
    restart(&mut server, &mut [&mut ann]).await;
    let operator = server.backend("").await;
    let admin = operator.inner.admin().expect("Redis can");
    let broken = |claim: &Claim, token: FencingToken| {
        let name = claim.name().clone();
        async move { admin.break_lock(&name, token).await.expect("a reply") }
    };
    // The server does not know the lease. It must not come back after that.
    assert_eq!(broken(&before, first.token).await, None);
    is_lost(ann.renew_one(&before, first.confirmation.place, TTL).await);
    assert!(!record(&server, "before").await.expect("a record").is_live);

    is_renewed(ann.renew_one(&after, second.confirmation.place, TTL).await, second.confirmation.place);
    let raised = broken(&after, second.token).await.expect("it was held");
    assert!(raised > second.token);
    // Without the reply to the put-back, the next renewal asks for it again.
    is_lost(ann.renew_one(&twin, second.confirmation.place, TTL).await);
    let record = record(&server, "after").await.expect("a record");
    assert_eq!((record.is_live, record.token), (false, raised.get()));
}

/// A token that no lock has had must not keep its record for years.
#[tokio::test]
async fn a_break_with_a_token_of_the_future_writes_nothing() {
    let server = Redis::start(&[]);
    let operator = server.backend("").await;
    let admin = operator.inner.admin().expect("Redis can");
    let token = FencingToken::new(4_000_000_000_000_000);
    assert_eq!(admin.break_lock(claim("job", 1).name(), token).await.unwrap(), None);
    assert_eq!(record(&server, "job").await, None);
}

/// The server is promoted between the reading and the renewal. Its connections stay open.
#[tokio::test]
async fn nothing_is_put_back_in_another_run_than_the_one_that_was_read() {
    let mut server = Redis::start(&[]);
    let mut ann = backend(&server, "").await;
    let claim = claim("job", 1);
    let grant = ann.granted(&claim, TTL).await;
    restart(&mut server, &mut [&mut ann]).await;
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    server.command(&["REPLICAOF", "NO", "ONE"]).await;
    match ann.renew_one(&claim, grant.confirmation.place, TTL).await {
        RenewReply::Unknown(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(record(&server, "job").await, None);
    // It has read the run again.
    is_renewed(ann.renew_one(&claim, grant.confirmation.place, TTL).await, grant.confirmation.place);
    assert_eq!(record(&server, "job").await.expect("it is back").token, grant.token.get());
}

/// As on a replica that lags: the lock looks held by its former holder.
#[tokio::test]
async fn an_older_record_gives_way() {
    let mut server = Redis::start(&[]);
    let (mut ann, bob) = (backend(&server, "").await, server.backend("").await);
    let (former, claim) = (claim("job", 2), claim("job", 1));
    bob.granted(&former, TTL).await;
    server.command(&["SAVE"]).await;
    bob.release(&former).await.unwrap();
    let grant = ann.granted(&claim, TTL).await;
    restart(&mut server, &mut [&mut ann]).await;
    assert_eq!(record(&server, "job").await.expect("old data").owner, [2; 16]);
    is_renewed(ann.renew_one(&claim, grant.confirmation.place, TTL).await, grant.confirmation.place);
    let record = record(&server, "job").await.expect("it is back");
    assert_eq!((record.is_live, record.token, record.owner), (true, grant.token.get(), [1; 16]));
}

/// As with snapshots: the server has the lease, but not its last renewals.
#[tokio::test]
async fn a_lease_that_has_run_out_in_old_data_comes_back() {
    let mut server = Redis::start(&[]);
    let mut ann = backend(&server, "").await;
    let claim = claim("job", 1);
    let grant = ann.granted(&claim, ms(200)).await;
    server.command(&["SAVE"]).await;
    is_renewed(ann.renew_one(&claim, grant.confirmation.place, TTL).await, grant.confirmation.place);
    tokio::time::sleep(ms(250)).await;
    restart(&mut server, &mut [&mut ann]).await;
    assert!(!record(&server, "job").await.expect("old data").is_live);
    is_renewed(ann.renew_one(&claim, grant.confirmation.place, TTL).await, grant.confirmation.place);
    let record = record(&server, "job").await.expect("it is back");
    assert_eq!((record.is_live, record.token), (true, grant.token.get()));
}

/// The server could have dropped the record of a later grant.
#[tokio::test]
async fn a_ttl_longer_than_the_retention_does_not_come_back() {
    let mut server = Redis::start(&[]);
    let mut ann = backend(&server, "&retention=5s").await;
    let (long, fits) = (claim("long", 1), claim("fits", 1));
    let place = ann.granted(&long, ms(5_001)).await.confirmation.place;
    let other = ann.granted(&fits, ms(5_000)).await.confirmation.place;
    restart(&mut server, &mut [&mut ann]).await;
    is_renewed(ann.renew_one(&fits, other, ms(5_000)).await, other);
    is_lost(ann.renew_one(&long, place, ms(5_001)).await);
    assert_eq!(record(&server, "long").await, None);
}

#[tokio::test]
async fn an_ended_validity_does_not_come_back() {
    let mut server = Redis::start(&[]);
    let mut ann = backend(&server, "").await;
    let claim = claim("job", 1);
    let place = ann.granted(&claim, ms(1_000)).await.confirmation.place;
    server.kill();
    tokio::time::sleep(ms(1_000)).await;
    server.start_again();
    ann.subscribed().await;
    is_lost(ann.renew_one(&claim, place, ms(1_000)).await);
    assert_eq!(record(&server, "job").await, None);
}

/// It was released within its `min_hold`.
#[tokio::test]
async fn a_lease_that_runs_out_comes_back_for_its_rest() {
    let mut server = Redis::start(&[]);
    let mut ann = backend(&server, "").await;
    let claim = claim("job", 1);
    let place = ann.granted(&claim, TTL).await.confirmation.place;
    restart(&mut server, &mut [&mut ann]).await;
    let request = |policy| {
        let mut request = RenewRequest::new(claim.clone(), place, ms(400));
        request.policy = policy;
        request
    };
    is_renewed(ann.renew(&[request(RenewPolicy::Exactly)]).await.remove(0), place);
    assert!(record(&server, "job").await.expect("it is back").is_live);
    tokio::time::sleep(ms(450)).await;
    assert!(!record(&server, "job").await.expect("a record").is_live);
    is_lost(ann.renew(&[request(RenewPolicy::AtLeast)]).await.remove(0));
}

#[tokio::test]
async fn a_full_server_takes_a_lease_back() {
    let mut server = Redis::start(&[]);
    let mut ann = backend(&server, "").await;
    let (old, lost) = (claim("old", 1), claim("lost", 1));
    let first = ann.granted(&old, ms(200)).await.confirmation.place;
    server.command(&["SAVE"]).await;
    is_renewed(ann.renew_one(&old, first, TTL).await, first);
    let second = ann.granted(&lost, TTL).await.confirmation.place;
    tokio::time::sleep(ms(250)).await;
    restart(&mut server, &mut [&mut ann]).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    for (claim, place) in [(old, first), (lost, second)] {
        is_renewed(ann.renew_one(&claim, place, TTL).await, place);
        assert!(record(&server, claim.name().as_str()).await.expect("it is back").is_live);
    }
}

/// Waiters lose their places with the data. The holder comes first, and new places have higher numbers.
#[tokio::test]
async fn waiters_queue_again_behind_the_holder() {
    let mut server = Redis::start(&[]);
    let (mut ann, mut bob) = (backend(&server, "").await, backend(&server, "").await);
    let claim_of_ann = claim("job", 1);
    let grant = ann.granted(&claim_of_ann, SHORT).await;
    let (waiter, place) = (claim("job", 2), grant.confirmation.place);
    let (earlier, _) = bob.queued(&waiter, SHORT).await;
    restart(&mut server, &mut [&mut ann, &mut bob]).await;
    is_renewed(ann.renew_one(&claim_of_ann, place, SHORT).await, place);
    is_lost(bob.renew_one(&waiter, earlier, SHORT).await);
    let until = tokio::time::Instant::now() + SHORT * 3;
    let later = loop {
        is_renewed(ann.renew_one(&claim_of_ann, place, SHORT).await, place);
        match bob.acquire(&claim("job", 3), SHORT).await {
            Ok(leasehold_core::backend::AcquireOutcome::Queued { confirmation, .. }) => break confirmation.place,
            Ok(other) => panic!("{other:?}"),
            Err(error) => assert!(error.to_string().contains("restarted"), "{error}"),
        }
        assert!(tokio::time::Instant::now() < until, "the quarantine does not end");
        tokio::time::sleep(ms(20)).await;
    };
    assert!(later > earlier, "{later} after {earlier}");
    ann.release(&claim_of_ann).await.unwrap();
    let RenewReply::Granted(next) = bob.renew_one(&claim("job", 3), later, SHORT).await else { panic!("not granted") };
    assert!(next.token > grant.token);
}

/// As on a replica that lacks a handoff: the new holder still has its place there. Those behind it keep theirs.
#[tokio::test]
async fn a_handoff_that_the_server_lacks_leaves_the_places_behind_it() {
    let mut server = Redis::start(&[]);
    let (mut ann, mut bob) = (backend(&server, "").await, backend(&server, "").await);
    let (first, second, third) = (claim("job", 1), claim("job", 2), claim("job", 3));
    ann.granted(&first, SHORT).await;
    let (own, _) = bob.queued(&second, SHORT).await;
    let (behind, _) = ann.queued(&third, SHORT).await;
    server.command(&["SAVE"]).await;
    ann.release(&first).await.unwrap();
    let RenewReply::Granted(grant) = bob.renew_one(&second, own, SHORT).await else { panic!("not handed over") };
    restart(&mut server, &mut [&mut ann, &mut bob]).await;
    is_renewed(bob.renew_one(&second, own, SHORT).await, own);
    let reply = ann.renew_one(&third, behind, SHORT).await;
    assert!(matches!(&reply, RenewReply::Waiting { confirmation, .. } if confirmation.place == behind), "{reply:?}");
    let record = record(&server, "job").await.expect("it is back");
    assert_eq!((record.is_live, record.token, record.owner), (true, grant.token.get(), [2; 16]));
    // No lock is handed over during the quarantine.
    bob.release(&second).await.unwrap();
    let until = tokio::time::Instant::now() + SHORT * 3;
    let next = loop {
        match ann.renew_one(&third, behind, SHORT).await {
            RenewReply::Granted(next) => break next,
            RenewReply::Waiting { .. } => {}
            other => panic!("{other:?}"),
        }
        assert!(tokio::time::Instant::now() < until, "the place is not served");
        tokio::time::sleep(ms(20)).await;
    };
    assert!(next.token > grant.token);
}

/// Such places are numbered far below the place of the lease. A handoff would scan all numbers between them.
#[tokio::test]
async fn a_queue_that_is_older_than_the_lease_is_dropped() {
    let mut server = Redis::start(&[]);
    let (mut ann, mut bob) = (backend(&server, "").await, backend(&server, "").await);
    let (first, second, third) = (claim("job", 1), claim("job", 2), claim("job", 3));
    ann.granted(&first, TTL).await;
    let (place, _) = bob.queued(&second, TTL).await;
    server.command(&["SAVE"]).await;
    bob.release(&second).await.unwrap();
    ann.release(&first).await.unwrap();
    let grant = ann.granted(&third, TTL).await;
    restart(&mut server, &mut [&mut ann, &mut bob]).await;
    assert_eq!(server.command(&["EXISTS", "test:{job}:q"]).await, Value::Int(1), "the old queue");
    is_renewed(ann.renew_one(&third, grant.confirmation.place, TTL).await, grant.confirmation.place);
    assert_eq!(server.command(&["EXISTS", "test:{job}:q"]).await, Value::Int(0));
    is_lost(bob.renew_one(&second, place, TTL).await);
}

#[tokio::test]
async fn a_fenced_write_works_again() {
    let mut server = Redis::start(&[]);
    let connect = RedisBackend::connect(&server.url()).await.expect("a connection");
    let backend = Arc::new(connect);
    let client = LockClient::new(backend.clone());
    let guard = client.lock("account").ttl(SHORT).acquire().await.unwrap();
    let fence = backend.fence(&guard);
    let (add, balance) = (FencedScript::new("return redis.call('INCRBY', KEYS[1], ARGV[1])"), fence.key("balance"));
    fence.run(&add, &[&balance], &["10"]).await.unwrap();
    server.kill();
    server.start_again();
    let token = guard.fencing_token().get();
    let until = tokio::time::Instant::now() + SHORT;
    while record(&server, "account").await.is_none_or(|record| record.token != token) {
        assert!(tokio::time::Instant::now() < until, "the lease is not put back");
        tokio::time::sleep(ms(5)).await;
    }
    assert_eq!(fence.run(&add, &[&balance], &["1"]).await.unwrap(), Value::Int(1));
    assert!(guard.is_held());
}
