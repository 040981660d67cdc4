//! What the queue at the server stores and reads. The suite and `same_rules` compare what it decides.

mod support;

use std::sync::Arc;

use leasehold_core::backend::{Claim, OwnerToken, PlaceNumber, ReleaseOutcome, RenewReply};
use redis::Value;
use support::{Redis, claim, ms};

const LONG: std::time::Duration = ms(30_000);

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
        // The queue ends when its last place is left.
        backend.queued(&claim("job", 2), LONG).await;
        assert_eq!(backend.release(&claim("job", 2)).await.unwrap(), ReleaseOutcome::Released);
        assert_eq!(server.command(&["EXISTS", "test:{job}:q"]).await, Value::Int(0));
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
