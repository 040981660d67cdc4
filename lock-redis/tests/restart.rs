//! Restarts without data. Nobody is granted a lock while an earlier holder may believe in its lease, whatever ttls
//! other clients have used. The clients of another server are not affected.

mod support;

use std::time::{Duration, Instant};

use leasehold_core::ErrorKind;
use leasehold_core::backend::AcquireOutcome;
use leasehold_redis::RedisBackend;
use support::{Backend, Redis, claim, ms};

const HOLDERS_TTL: Duration = ms(5_000);

/// What the client that acquires after the restart did before it.
#[derive(Clone, Copy, Debug)]
enum Before {
    NeverLocked,
    Locked(Duration),
}

/// What happens to the holder.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Holder {
    Reconnects,
    StaysCutOff,
}

/// Retries with `ttl` until the lock is granted. Returns the time of the grant.
async fn granted_at(backend: &Backend, ttl: Duration) -> Instant {
    let until = Instant::now() + ms(60_000);
    loop {
        match backend.try_acquire(&claim("job", 2), ttl).await {
            Ok(AcquireOutcome::Granted(_)) => return Instant::now(),
            other => assert!(Instant::now() < until, "it waits for ever: {other:?}"),
        }
        tokio::time::sleep(ms(5)).await;
    }
}

/// After an empty restart, a client acquires with a short ttl. It is not granted the lock before the holder's lease has
/// ended.
async fn after_an_empty_restart(before: Before, holder: Holder) {
    let mut server = Redis::start(&[]);
    let (mut ann, mut bob) = (server.backend("").await, server.backend("").await);
    ann.subscribed().await;
    bob.subscribed().await;
    if let Before::Locked(ttl) = before {
        bob.granted(&claim("other", 2), ttl).await;
        bob.release(&claim("other", 2)).await.unwrap();
    }
    let sent = Instant::now();
    ann.granted(&claim("job", 1), HOLDERS_TTL).await;
    // A lost message is one of the limits of exclusion.
    bob.caught_up(&server).await;
    server.kill();
    if holder == Holder::StaysCutOff {
        drop(ann);
        server.start_again();
    } else {
        server.start_again();
        ann.subscribed().await;
    }
    let at = granted_at(&bob, ms(200)).await;
    let waited = at.duration_since(sent);
    assert!(waited >= HOLDERS_TTL, "{before:?}, {holder:?}: granted {waited:?} after a lease of {HOLDERS_TTL:?} began");
}

#[tokio::test]
async fn whatever_a_client_has_locked_it_waits_for_a_holder_that_reconnects_or_stays_cut_off() {
    let mut all = tokio::task::JoinSet::new();
    for before in [Before::NeverLocked, Before::Locked(ms(1000)), Before::Locked(ms(7000))] {
        for holder in [Holder::Reconnects, Holder::StaysCutOff] {
            all.spawn(after_an_empty_restart(before, holder));
        }
    }
    all.join_all().await;
}

#[tokio::test]
async fn a_client_that_connected_later_reads_what_is_in_use() {
    let mut server = Redis::start(&[]);
    let ann = server.backend("").await;
    let sent = Instant::now();
    ann.granted(&claim("job", 1), HOLDERS_TTL).await;
    let bob = server.backend("").await;
    drop(ann);
    server.kill();
    server.start_again();
    let waited = granted_at(&bob, ms(200)).await.duration_since(sent);
    assert!(waited >= HOLDERS_TTL, "granted {waited:?} after a lease of {HOLDERS_TTL:?} began");
}

#[tokio::test]
async fn a_client_of_another_server_waits_alone() {
    let mut server = Redis::start(&[]);
    let (url, gate) = server.gated_url();
    let stranger = Backend::new(RedisBackend::connect(&url).await.unwrap());
    stranger.granted(&claim("job", 1), ms(30_000)).await;
    // Another server takes its address, and is in use before the stranger is there again.
    gate.set_open(false);
    server.kill();
    server.start_again();
    let user = server.backend("").await;
    user.granted(&claim("job", 1), ms(10_000)).await;
    gate.set_open(true);
    let until = Instant::now() + ms(10_000);
    let refused = loop {
        let refused = stranger.try_acquire(&claim("other", 2), ms(30_000)).await.unwrap_err();
        if refused.to_string().contains("restarted") {
            break refused;
        }
        assert!(Instant::now() < until, "{refused:?}");
        tokio::time::sleep(ms(5)).await;
    };
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    let text = refused.to_string();
    assert!(text.contains(" ms") && text.contains("restart=trust"), "{text}");
    server.backend("").await.granted(&claim("newcomer", 1), ms(10_000)).await;
    user.granted(&claim("more", 1), ms(20_000)).await;
}
