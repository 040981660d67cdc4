//! The queue at the server: order, handoff, dead places, withdrawal.

mod support;

use std::sync::Arc;

use leasehold_core::ErrorKind;
use leasehold_core::backend::{AcquireOutcome, Claim, OwnerToken, PlaceNumber, ReleaseOutcome, RenewReply};
use redis::Value;
use support::{Redis, claim, ms};

const LONG: std::time::Duration = ms(30_000);

fn owner(number: u8) -> OwnerToken {
    OwnerToken::from_bytes([number; 16])
}

#[tokio::test]
async fn a_released_lock_goes_to_the_oldest_place_and_its_client_is_notified() {
    let server = Redis::start(&[]);
    let (mut ann, mut bob) = (server.backend("").await, server.backend("").await);
    ann.subscribed().await;
    bob.subscribed().await;
    let first = ann.granted(&claim("job", 1), LONG).await;
    let (second, retry_after) = bob.queued(&claim("job", 2), LONG).await;
    assert!(retry_after > ms(20_000) && retry_after <= LONG, "{retry_after:?}");
    let (third, _) = ann.queued(&claim("job", 3), LONG).await;
    assert!(first.confirmation.place < second && second < third);
    assert_eq!(bob.queued(&claim("job", 2), LONG).await.0, second, "a repeated request keeps its place");

    assert_eq!(ann.release(&claim("job", 1)).await.unwrap(), ReleaseOutcome::Released);
    let (pushed, place, token) = bob.pushed().await;
    assert_eq!((pushed, place), (owner(2), second));
    assert!(token > first.token.get());
    // The place's own deadline is kept: nobody has renewed it to the ttl of a lease yet.
    let held = bob.try_acquire(&claim("job", 4), LONG).await.unwrap();
    assert!(matches!(held, AcquireOutcome::Contended { retry_after } if retry_after <= ms(10_000)), "{held:?}");
    match bob.renew_one(&claim("job", 2), second, LONG).await {
        RenewReply::Granted(grant) => {
            assert_eq!((grant.confirmation.place, grant.token.get(), grant.confirmation.ttl), (second, token, LONG));
        }
        other => panic!("{other:?}"),
    }
    let again = bob.granted(&claim("job", 2), LONG).await;
    assert_eq!((again.confirmation.place, again.token.get()), (second, token));

    bob.release(&claim("job", 2)).await.unwrap();
    let (pushed, place, higher) = ann.pushed().await;
    assert_eq!((pushed, place), (owner(3), third));
    assert!(higher > token);
    ann.release(&claim("job", 3)).await.unwrap();
    assert_eq!(
        server.command(&["KEYS", "test:{job}*"]).await,
        Value::Array(vec![Value::BulkString(b"test:{job}".to_vec())])
    );

    // What was contended once is an ordinary lock again, with numbers and tokens that go on rising.
    let last = ann.granted(&claim("job", 5), LONG).await;
    assert!(last.token.get() > higher && last.confirmation.place > third);
}

#[tokio::test]
async fn a_place_is_renewed_like_a_lease_and_dies_like_one() {
    let server = Redis::start(&[]);
    let backend = server.backend("").await;
    let holder = backend.granted(&claim("job", 1), LONG).await;
    let (second, _) = backend.queued(&claim("job", 2), ms(2000)).await;
    let (third, _) = backend.queued(&claim("job", 3), ms(2000)).await;
    // The third lives on while the second dies.
    let started = std::time::Instant::now();
    while started.elapsed() < ms(2500) {
        match backend.renew_one(&claim("job", 3), third, ms(2000)).await {
            RenewReply::Waiting { confirmation, retry_after } => {
                assert_eq!((confirmation.place, confirmation.ttl), (third, ms(2000)));
                assert!(retry_after > ms(20_000));
            }
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(ms(20)).await;
    }
    assert!(matches!(backend.renew_one(&claim("job", 2), second, ms(2000)).await, RenewReply::Lost));
    // A dead place is gone. Its owner may queue again at the end.
    let (anew, _) = backend.queued(&claim("job", 2), LONG).await;
    assert!(anew > third);
    backend.renew_one(&claim("job", 3), third, LONG).await;
    backend.release(&claim("job", 1)).await.unwrap();
    assert!(matches!(backend.renew_one(&claim("job", 3), third, LONG).await, RenewReply::Granted(_)));
    assert!(matches!(backend.renew_one(&claim("job", 2), anew, LONG).await, RenewReply::Waiting { .. }));
    backend.release(&claim("job", 3)).await.unwrap();
    let RenewReply::Granted(last) = backend.renew_one(&claim("job", 2), anew, LONG).await else {
        panic!("not granted")
    };
    assert!(last.token > holder.token);
}

#[tokio::test]
async fn dead_places_at_the_head_are_skipped() {
    let server = Redis::start(&[]);
    let backend = server.backend("").await;
    backend.granted(&claim("job", 1), LONG).await;
    for number in 2..10 {
        backend.queued(&claim("job", number), ms(100)).await;
    }
    let (living, _) = backend.queued(&claim("job", 10), LONG).await;
    tokio::time::sleep(ms(150)).await;
    backend.release(&claim("job", 1)).await.unwrap();
    assert!(matches!(backend.renew_one(&claim("job", 10), living, LONG).await, RenewReply::Granted(_)));
    backend.release(&claim("job", 10)).await.unwrap();
    assert_eq!(server.command(&["EXISTS", "test:{job}:q"]).await, Value::Int(0));
}

#[tokio::test]
async fn any_request_hands_the_lock_of_a_dead_holder_to_the_queue_and_none_passes_it() {
    let server = Redis::start(&[]);
    let mut backend = server.backend("").await;
    backend.subscribed().await;
    backend.granted(&claim("job", 1), ms(2000)).await;
    let (second, _) = backend.queued(&claim("job", 2), LONG).await;
    tokio::time::sleep(ms(2050)).await;
    // A newcomer tries to acquire: the lock goes to the waiter.
    let held = backend.try_acquire(&claim("job", 3), LONG).await.unwrap();
    assert!(matches!(held, AcquireOutcome::Contended { .. }), "{held:?}");
    let (pushed, place, _) = backend.pushed().await;
    assert_eq!((pushed, place), (owner(2), second));
}

#[tokio::test]
async fn an_abandoned_place_is_gone_and_delays_nobody() {
    let server = Redis::start(&[]);
    let backend = server.backend("").await;
    backend.granted(&claim("job", 1), LONG).await;
    backend.queued(&claim("job", 2), LONG).await;
    let (third, _) = backend.queued(&claim("job", 3), LONG).await;
    assert_eq!(backend.release(&claim("job", 2)).await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(backend.release(&claim("job", 2)).await.unwrap(), ReleaseOutcome::NotHeld);
    backend.release(&claim("job", 1)).await.unwrap();
    assert!(matches!(backend.renew_one(&claim("job", 3), third, LONG).await, RenewReply::Granted(_)));

    // Removing the last place deletes the queue.
    backend.queued(&claim("job", 4), LONG).await;
    assert_eq!(backend.release(&claim("job", 4)).await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(server.command(&["EXISTS", "test:{job}:q"]).await, Value::Int(0));
}

#[tokio::test]
async fn a_withdrawn_claim_does_not_come_back() {
    let server = Redis::start(&[]);
    let backend = server.backend("").await;
    // A lock that nobody ever held, a free lock, a held lock, and one in whose queue the claim has a place.
    backend.granted(&claim("free", 9), LONG).await;
    backend.release(&claim("free", 9)).await.unwrap();
    backend.granted(&claim("held", 1), LONG).await;
    backend.granted(&claim("queue", 9), LONG).await;
    backend.queued(&claim("queue", 1), LONG).await;
    for (name, outcome) in [
        ("fresh", ReleaseOutcome::NotHeld),
        ("free", ReleaseOutcome::NotHeld),
        ("held", ReleaseOutcome::Released),
        ("queue", ReleaseOutcome::Released),
    ] {
        assert_eq!(backend.withdraw(&claim(name, 1)).await.unwrap(), outcome, "{name}");
        let error = backend.acquire(&claim(name, 1), LONG).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{name}: {error:?}");
        assert_eq!(backend.withdraw(&claim(name, 1)).await.unwrap(), ReleaseOutcome::NotHeld, "{name}");
        // Other claims are not affected.
        match backend.acquire(&claim(name, 2), LONG).await.unwrap() {
            AcquireOutcome::Granted(_) => assert_ne!(name, "queue"),
            AcquireOutcome::Queued { .. } => assert_eq!(name, "queue"),
            other => panic!("{name}: {other:?}"),
        }
        backend.release(&claim(name, 2)).await.unwrap();
        let Value::Int(left) = server.command(&["PTTL", &format!("test:{{{name}}}:t:{}", "\u{1}".repeat(16))]).await
        else {
            panic!("no time")
        };
        assert!((30_000..=60_000).contains(&left), "{name}: {left}");
    }
}

#[tokio::test]
async fn a_withdrawn_claim_is_remembered_for_its_own_ttl_and_a_minute_at_least() {
    let server = Redis::start(&[]);
    let backend = server.backend("").await;
    let day = ms(24 * 3600 * 1000);
    backend.granted(&claim("day", 3), day).await;
    backend.release(&claim("day", 3)).await.unwrap();
    for (owner, ttl, kept) in [(1, ms(120_000), 100_000..=120_000), (2, LONG, 40_000..=60_000)] {
        let claim = claim("job", owner);
        backend.granted(&claim, ttl).await;
        backend.withdraw(&claim).await.unwrap();
        let tombstone = format!("test:{{job}}:t:{}", char::from(owner).to_string().repeat(16));
        let Value::Int(left) = server.command(&["PTTL", &tombstone]).await else { panic!("no time") };
        assert!(kept.contains(&left), "with a ttl of {ttl:?}: {left} ms");
    }
}

#[tokio::test]
async fn a_removed_record_removes_its_queue() {
    let server = Redis::start(&[]);
    let backend = server.backend("").await;
    backend.granted(&claim("job", 1), LONG).await;
    let (second, _) = backend.queued(&claim("job", 2), LONG).await;
    server.command(&["DEL", "test:{job}"]).await;
    assert!(matches!(backend.renew_one(&claim("job", 1), PlaceNumber::NONE, LONG).await, RenewReply::Lost));
    assert!(matches!(backend.renew_one(&claim("job", 2), second, LONG).await, RenewReply::Lost));
    backend.granted(&claim("job", 3), LONG).await;
    // The new queue does not contain the old places.
    let (fourth, _) = backend.queued(&claim("job", 4), LONG).await;
    assert!(fourth > second);
    backend.release(&claim("job", 3)).await.unwrap();
    assert!(matches!(backend.renew_one(&claim("job", 4), fourth, LONG).await, RenewReply::Granted(_)));
    // And a queue that was removed under its record is an empty one.
    backend.queued(&claim("job", 5), LONG).await;
    server.command(&["DEL", "test:{job}:q"]).await;
    let (sixth, _) = backend.queued(&claim("job", 6), LONG).await;
    backend.release(&claim("job", 4)).await.unwrap();
    assert!(matches!(backend.renew_one(&claim("job", 6), sixth, LONG).await, RenewReply::Granted(_)));
}

#[tokio::test]
async fn a_handoff_costs_two_commands_however_many_wait() {
    let server = Redis::start(&[]);
    for waiters in [2u8, 100] {
        let mut backend = server.backend("").await;
        backend.subscribed().await;
        let name = format!("job{waiters}");
        backend.granted(&claim(&name, 0), LONG).await;
        for number in 1..=waiters {
            backend.queued(&claim(&name, number), LONG).await;
        }
        let before = server.sent("evalsha").await;
        for number in 0..waiters {
            backend.release(&claim(&name, number)).await.unwrap();
            assert_eq!(backend.pushed().await.0, owner(number + 1));
        }
        assert_eq!(server.sent("evalsha").await - before, u64::from(waiters), "the release alone hands on");
    }
}

#[tokio::test]
async fn a_handoff_does_not_scan_abandoned_places() {
    let server = Redis::start(&[]);
    let backend = server.backend("").await;
    let party = |number: u16| {
        let mut owner = [0xff; 16];
        owner[..2].copy_from_slice(&number.to_be_bytes());
        let any = claim("job", 0);
        let holder = Arc::new(any.holder().clone());
        Claim::new(any.name().clone(), OwnerToken::from_bytes(owner), holder)
    };
    for gone in [20, 2_000] {
        backend.granted(&claim("job", 1), LONG).await;
        backend.queued(&claim("job", 2), LONG).await;
        // They queue in a row, and leave from both ends and from the middle.
        for number in 0..gone {
            backend.queued(&party(number), LONG).await;
        }
        let mut order: Vec<_> = (0..gone).collect();
        order.sort_by_key(|number| (number % 3, number.wrapping_mul(7919) % 1009));
        for number in order {
            assert_eq!(backend.release(&party(number)).await.unwrap(), ReleaseOutcome::Released);
        }
        let (last, _) = backend.queued(&claim("job", 3), LONG).await;
        assert_eq!(backend.release(&claim("job", 1)).await.unwrap(), ReleaseOutcome::Released);
        let before = server.sent("hget").await;
        assert_eq!(backend.release(&claim("job", 2)).await.unwrap(), ReleaseOutcome::Released);
        let reads = server.sent("hget").await - before;
        assert!(reads <= 10, "{reads} fields were read after {gone} abandoned places");
        assert!(matches!(backend.renew_one(&claim("job", 3), last, LONG).await, RenewReply::Granted(_)));
        backend.release(&claim("job", 3)).await.unwrap();
        assert_eq!(server.command(&["EXISTS", "test:{job}:q"]).await, Value::Int(0));
    }
}
