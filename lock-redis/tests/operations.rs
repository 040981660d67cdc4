//! Requests that share calls, and the bytes that requests leave at a real server.

mod support;

use std::sync::Arc;

use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Claim, LockBackend, OwnerToken, PlaceNumber, RenewReply, RenewRequest,
};
use leasehold_core::{ErrorKind, HolderInfo, LockName};
use redis::Value;
use support::{Redis, claim, ms, patient, try_request};

fn confirmed(answer: &RenewReply) -> std::time::Duration {
    match answer {
        RenewReply::Renewed(confirmation) => confirmation.ttl,
        other => panic!("not renewed but {other:?}"),
    }
}

#[tokio::test]
async fn waiting_requests_share_calls_and_each_gets_its_own_reply() {
    let server = Redis::start(&[]);
    let backend = server.backend("").await;
    backend.granted(&claim("warm", 1), ms(1000)).await;
    server.command(&["SET", "test:{n7}", "x"]).await;
    server.command(&["LPUSH", "test:{n8}", "x"]).await;
    let before = server.sent("evalsha").await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..200u32 {
        let inner = backend.inner.clone();
        // Two ttls, which cannot share a call, and two claims per lock.
        let ttl = if number % 3 == 0 { ms(5000) } else { ms(6000) };
        let name = format!("n{}", number / 2);
        tasks.spawn(async move {
            let answer = inner.acquire(&try_request(&claim(&name, 1 + (number % 2) as u8), ttl)).await;
            (name, ttl, answer)
        });
    }
    let (mut granted, mut held, mut refused) = (0, 0, Vec::new());
    while let Some(done) = tasks.join_next().await {
        let (name, ttl, answer) = done.unwrap();
        match answer {
            Ok(AcquireOutcome::Granted(grant)) => {
                assert_eq!(grant.confirmation.ttl, ttl);
                granted += 1;
            }
            Ok(AcquireOutcome::Contended { .. }) => held += 1,
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
                refused.push(name);
            }
        }
    }
    refused.sort();
    assert_eq!((granted, held), (98, 98), "one of two gets each lock");
    assert_eq!(refused, ["n7", "n7", "n8", "n8"], "what is wrong with one lock harms no other");
    let calls = server.sent("evalsha").await - before;
    assert!(calls < 60, "{calls} calls for 200 requests");
    assert_eq!(server.command(&["GET", "test:{n7}"]).await, Value::BulkString(b"x".to_vec()));
    assert_eq!(server.command(&["LLEN", "test:{n8}"]).await, Value::Int(1));
}

#[tokio::test]
async fn one_poisoned_lease_of_a_batch_fails_alone() {
    let server = Redis::start(&[]);
    let backend = server.backend("").await;
    let mut leases = Vec::new();
    for number in 0..250 {
        let claim = claim(&format!("n{number}"), 1);
        let place = backend.granted(&claim, ms(30_000)).await.confirmation.place;
        leases.push(RenewRequest::new(claim, place, ms(30_000)));
    }
    server.command(&["DEL", "test:{n3}", "test:{n4}", "test:{n120}"]).await;
    server.command(&["LPUSH", "test:{n3}", "x"]).await;
    server.command(&["SET", "test:{n4}", "short"]).await;
    for (number, answer) in backend.renew(&leases).await.into_iter().enumerate() {
        match (number, answer) {
            (3 | 4, RenewReply::Unknown(error)) => assert_eq!(error.kind(), ErrorKind::Unsupported),
            (120, RenewReply::Lost) => {}
            (3 | 4 | 120, other) => panic!("{number}: {other:?}"),
            (_, answer) => assert_eq!(confirmed(&answer), ms(30_000), "{number}"),
        }
    }
}

/// Cuts a record into its fields.
fn fields(record: &[u8], widths: &[usize]) -> Vec<u64> {
    let mut rest = record;
    widths
        .iter()
        .map(|&width| {
            let (field, more) = rest.split_at(width);
            rest = more;
            field.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
        })
        .collect()
}

#[tokio::test]
async fn golden_bytes_of_records_never_change() {
    let server = Redis::start(&[]);
    let backend = server.backend("&retention=10m").await;
    let get = || async {
        match server.command(&["GET", "test:{a%2Fb}"]).await {
            Value::BulkString(record) => record,
            other => panic!("{other:?}"),
        }
    };
    let token = backend.granted(&claim("a/b", 0xAB), ms(30_000)).await.token.get();
    let record = get().await;
    // version, kind, flags, deadline, kept, fence, owner, holder
    let [version, kind, flags, deadline, kept, fence] = fields(&record, &[1, 1, 2, 8, 8, 8])[..] else { panic!() };
    assert_eq!((version, kind, flags, fence), (1, u64::from(b'x'), 0, token));
    assert_eq!(deadline, token + 30_000_000, "granted at TIME, for the ttl");
    assert_eq!(kept, deadline + 2 * 600_000_000);
    assert_eq!(record[28..44], [0xAB; 16]);
    let holder = std::str::from_utf8(&record[44..]).unwrap();
    assert!(
        holder.starts_with('\t') && holder.ends_with("\ttester"),
        "without the name, which the key contains: {holder}"
    );
    assert_eq!(server.command(&["PEXPIRETIME", "test:{a%2Fb}"]).await, Value::Int((kept / 1000 + 1) as i64));
    // An inspection writes nothing.
    let (inner, name) = (backend.inner.clone(), LockName::new("a/b").unwrap());
    let inspect = || async { inner.admin().unwrap().inspect(&name).await.unwrap().unwrap() };
    assert!(inspect().await.is_held());
    assert_eq!(get().await, record);

    // With a place in the queue: places, place and tombstones stand before the fence.
    let (place, _) = backend.queued(&claim("a/b", 0xCD), ms(30_000)).await;
    let record = get().await;
    let all = fields(&record, &[1, 1, 2, 8, 8, 8, 8, 8, 8]);
    assert_eq!(all[..4], [1, u64::from(b'x'), 5, deadline]);
    assert_eq!(all[5..], [place.get(), token, 0, token]);
    assert_eq!(place.get(), token + 1);
    assert_eq!(record[52..68], [0xAB; 16]);
    let field = |field: &str| {
        let field = field.to_owned();
        let server = &server;
        async move { server.command(&["HGET", "test:{a%2Fb}:q", &field]).await }
    };
    assert_eq!(field("h").await, Value::BulkString(place.to_string().into_bytes()));
    let Value::BulkString(entry) = field(&place.to_string()).await else { panic!("no entry") };
    assert_eq!(entry[..16], [0xCD; 16]);
    let channel = usize::from(entry[24]);
    assert!(entry[25..25 + channel].starts_with(b"test:c:"));
    assert_eq!(std::str::from_utf8(&entry[25 + channel..]).unwrap(), holder);

    // Released, handed over and released: only the deadline and the token change.
    backend.release(&claim("a/b", 0xAB)).await.unwrap();
    let handed = get().await;
    assert_eq!(fields(&handed, &[1, 1, 2])[2], 6, "came from a place, and the queue is empty");
    assert_eq!(server.command(&["EXISTS", "test:{a%2Fb}:q"]).await, Value::Int(0));
    backend.release(&claim("a/b", 0xCD)).await.unwrap();
    assert_eq!(fields(&get().await, &[1, 1, 2, 8])[3], 0);
    let seen = inspect().await;
    assert_eq!((&seen.holders[..], seen.waiters), (&[][..], Some(0)));
    assert!(seen.last_token.is_some_and(|last| last.get() > token), "the token of the handoff is the last one");
}

/// Requests that wait for the connection share calls, and a call sends the options and the holder once.
#[tokio::test]
async fn each_of_many_acquires_at_once_stores_its_own_holder() {
    let server = Redis::start(&[]);
    let backend = server.backend("").await;
    let mut calls = tokio::task::JoinSet::new();
    let claims: Vec<_> = (0..40)
        .map(|number: u8| {
            let holder = HolderInfo::of_this_process(&format!("label {}", number / 10)).unwrap();
            // Every other key has only the digest of the name.
            let name =
                if number.is_multiple_of(2) { format!("short{number}") } else { "l".repeat(201 + usize::from(number)) };
            let name = LockName::new(name).unwrap();
            Claim::new(name, OwnerToken::from_bytes([number; 16]), Arc::new(holder))
        })
        .collect();
    for claim in claims.clone() {
        let backend = backend.inner.clone();
        calls.spawn(async move { backend.acquire(&AcquireRequest::new(claim, ms(30_000))).await });
    }
    for answer in calls.join_all().await {
        assert!(matches!(answer, Ok(AcquireOutcome::Granted(_))), "{answer:?}");
    }
    let Value::Array(keys) = server.command(&["KEYS", "test:{*}"]).await else { panic!("no keys") };
    let mut stored = Vec::new();
    for key in keys {
        let Value::BulkString(key) = key else { panic!("{key:?}") };
        let key = String::from_utf8(key).unwrap();
        let Value::BulkString(record) = server.command(&["GET", &key]).await else { panic!("no record") };
        let (name, holder) = HolderInfo::decode(std::str::from_utf8(&record[44..]).unwrap()).unwrap();
        stored.push((record[28], name, holder.label));
    }
    stored.sort_unstable();
    let begin = |number: u8| if number.is_multiple_of(2) { String::new() } else { "l".repeat(200) };
    let expected: Vec<_> = (0..40).map(|number| (number, begin(number), format!("label {}", number / 10))).collect();
    assert_eq!(stored, expected);
}

#[tokio::test]
async fn a_record_of_another_format_is_an_error_and_never_a_grant() {
    let server = Redis::start(&[]);
    let backend = server.backend("").await;
    backend.granted(&claim("job", 1), ms(1000)).await;
    backend.release(&claim("job", 1)).await.unwrap();
    let Value::BulkString(good) = server.command(&["GET", "test:{job}"]).await else { panic!("no record") };
    // Only the three known flags are accepted.
    for (at, byte) in [(0, 2u8), (0, 0), (1, b's'), (2, 1), (3, 8), (3, 1)] {
        let mut odd = good.clone();
        odd[at] = byte;
        let mut set = redis::Cmd::new();
        set.arg("SET").arg("test:{job}").arg(&odd);
        let url = server.url().replace("?prefix=test:", "");
        let client = redis::Client::open(url).unwrap();
        let mut connection = client.get_multiplexed_async_connection_with_config(&patient()).await.unwrap();
        connection.send_packed_command(&set).await.unwrap().extract_error().unwrap();

        let error = backend.acquire(&claim("job", 2), ms(1000)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "byte {at} = {byte}: {error:?}");
        assert_eq!(backend.release(&claim("job", 1)).await.unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(backend.withdraw(&claim("job", 1)).await.unwrap_err().kind(), ErrorKind::Unsupported);
        let answer = backend.renew_one(&claim("job", 1), PlaceNumber::NONE, ms(1000)).await;
        assert!(matches!(&answer, RenewReply::Unknown(error) if error.kind() == ErrorKind::Unsupported), "{answer:?}");
        assert_eq!(server.command(&["GET", "test:{job}"]).await, Value::BulkString(odd));
    }
}
