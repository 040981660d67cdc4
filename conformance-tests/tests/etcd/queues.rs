//! Queues and watches, as far as they are specific to etcd.

use std::sync::Arc;
use std::time::Duration;

use leasehold::etcd::EtcdBackend;
use leasehold_conformance::{Direct, Fixture, PathFault, Route};
use leasehold_core::backend::{AcquireOutcome, Delivery, Event, PlaceNumber, RenewReply, RenewRequest};
use leasehold_core::{LockClient, LockGuard, LockName};
use leasehold_test_servers::EtcdKey;

use super::common::{SOON, Stopwatch, eventually, hold};
use super::fixture::{PASSWORD, PREFIX, USER, permit};
use super::one_member::OneMember;
use super::stored::Stored;
use super::support::case;

/// A long ttl.
const TTL: Duration = Duration::from_secs(20);

/// A message of the server, and no renewal.
const AT_ONCE: Duration = Duration::from_millis(1500);

/// After this time a watch is open. No renewal is due for three seconds more.
const SETTLED: Duration = Duration::from_millis(300);

fn name(text: &str) -> LockName {
    LockName::new(text).expect("a name")
}

async fn client(fixture: &OneMember) -> LockClient {
    LockClient::builder(fixture.backend(Route::Clear).await).ttl(TTL).wait(SOON).build().expect("a client")
}

fn waits(client: &LockClient, name: &str) -> tokio::task::JoinHandle<LockGuard> {
    let lock = client.lock(name);
    tokio::spawn(async move { lock.acquire().await.expect("the lock is granted") })
}

fn queue(fixture: &OneMember, name: &str) -> Vec<EtcdKey> {
    let deployment = fixture.deployment();
    let stored = Stored { side: deployment.side(), prefix: PREFIX };
    stored.queue(&self::name(name))
}

/// The etcd leases of a queue, in its order.
fn leases(fixture: &OneMember, name: &str) -> Vec<i64> {
    queue(fixture, name).iter().map(|key| key.lease).collect()
}

fn compact(fixture: &OneMember) {
    let deployment = fixture.deployment();
    let revision = deployment.side().revision().expect("a revision");
    deployment.side().compact(revision).expect("it is compacted");
}

#[test]
fn a_compaction_does_not_disturb_a_waiter() {
    case(async |fixture| {
        let (ann, bob) = (client(&fixture).await, client(&fixture).await);
        for round in 0..5 {
            let guard = hold(&ann, "compacted").await;
            let waiter = waits(&bob, "compacted");
            // In odd rounds, the compaction may come before bob has his place.
            if round % 2 == 0 {
                eventually("bob waits", || leases(&fixture, "compacted").len() == 2).await;
            }
            compact(&fixture);
            hold(&ann, "another").await.release().await.expect("a release");
            compact(&fixture);
            eventually("bob waits", || leases(&fixture, "compacted").len() == 2).await;
            guard.release().await.expect("a release");
            let stopwatch = Stopwatch::start();
            let next = waiter.await.expect("no panic");
            stopwatch.within(AT_ONCE, "bob gets the lock at once");
            next.release().await.expect("a release");
        }
        assert_eq!((ann.stats().lost, bob.stats().lost), (0, 0));
    });
}

/// A waiter whose etcd lease an operator has revoked learns of that at once. It requests another place, and its former
/// place blocks nobody.
#[test]
fn a_revoked_waiter_loses_its_place_at_once() {
    case(async |fixture| {
        let (ann, bob, carol) = (client(&fixture).await, client(&fixture).await, client(&fixture).await);
        let guard = hold(&ann, "revoked").await;
        let bobs = waits(&bob, "revoked");
        eventually("bob waits", || leases(&fixture, "revoked").len() == 2).await;
        let carols = waits(&carol, "revoked");
        eventually("carol waits", || leases(&fixture, "revoked").len() == 3).await;
        let before = leases(&fixture, "revoked");
        // After his watch has told bob that he waits.
        tokio::time::sleep(SETTLED).await;
        fixture.deployment().side().revoke(before[1]).expect("it is revoked");
        let stopwatch = Stopwatch::start();
        eventually("bob has another place", || {
            let now = leases(&fixture, "revoked");
            now.len() == 3 && now[..2] == [before[0], before[2]] && now[2] != before[1]
        })
        .await;
        stopwatch.within(AT_ONCE, "bob learns of it by his watch and not by a renewal");
        guard.release().await.expect("a release");
        let carols = carols.await.expect("no panic");
        assert!(!bobs.is_finished(), "bob overtook carol");
        carols.release().await.expect("a release");
        bobs.await.expect("no panic").release().await.expect("a release");
    });
}

#[test]
fn a_revoked_holder_is_notified_at_once() {
    case(async |fixture| {
        let ann = client(&fixture).await;
        let (one, two) = (hold(&ann, "one").await, hold(&ann, "two").await);
        tokio::time::sleep(SETTLED).await;
        let lease = leases(&fixture, "one")[0];
        fixture.deployment().side().revoke(lease).expect("it is revoked");
        let stopwatch = Stopwatch::start();
        for guard in [&one, &two] {
            guard.lost().await;
            stopwatch.within(AT_ONCE, "the loss is pushed");
        }
        // The client opens another session.
        assert!(hold(&ann, "three").await.is_held());
        assert_ne!(leases(&fixture, "three"), [lease]);
    });
}

#[test]
fn two_claims_on_one_lease_are_two_owners() {
    case(async |fixture| {
        let ann = Direct::new(&fixture, Route::Clear).await;
        let (first, second) = (ann.claim(&name("shared")), ann.claim(&name("shared")));
        ann.granted(&first, TTL / 2).await;
        let place = ann.not_granted(&second, TTL / 2).await;
        let both = leases(&fixture, "shared");
        assert!(both.len() == 2 && both[0] == both[1], "the claims have different sessions");
        ann.release(&second, Delivery::Confirmed).await.expect("a release");
        assert_eq!(leases(&fixture, "shared").len(), 1, "the second claim ended the first one");
        let renewed = ann.renew(RenewRequest::new(second, place, TTL / 2)).await;
        assert!(matches!(renewed, RenewReply::Lost), "{renewed:?}");
        ann.release(&first, Delivery::Confirmed).await.expect("a release");
        assert_eq!(leases(&fixture, "shared").len(), 0);
    });
}

#[test]
fn ten_thousand_names_are_watched_on_one_stream() {
    const NAMES: u64 = 10_000;
    case(async |fixture| {
        // A busy machine may take longer than a second for the requests of a hundred tasks.
        let url = fixture.url(Route::Clear, "").replace("timeout=1s", "timeout=10s");
        let connect = async || Direct::attach(Arc::new(EtcdBackend::connect(&url).await.expect("a connection")));
        let (ann, bob) = (Arc::new(connect().await), Arc::new(connect().await));
        let names: Vec<_> = (0..NAMES).map(|index| name(&format!("name {index}"))).collect();
        let claims = |client: &Arc<Direct>| -> Vec<_> { names.iter().map(|name| client.claim(name)).collect() };
        let (holders, waiters) = (claims(&ann), claims(&bob));
        for (holders, waiters) in holders.chunks(100).zip(waiters.chunks(100)) {
            let mut tasks = tokio::task::JoinSet::new();
            for (holder, waiter) in holders.iter().cloned().zip(waiters.iter().cloned()) {
                let (ann, bob) = (ann.clone(), bob.clone());
                tasks.spawn(async move {
                    ann.granted(&holder, TTL * 100).await;
                    let reply = bob.acquire(&waiter, TTL * 100).await;
                    assert!(matches!(reply, Ok(AcquireOutcome::Queued { .. })), "{reply:?}");
                });
            }
            tasks.join_all().await;
        }
        let statistics = || fixture.deployment().side().statistics().expect("statistics");
        eventually("every name is watched", || statistics().watches() >= NAMES).await;
        assert!(statistics().open_streams()["Watch"] <= 2, "more than one stream for each client");
        bob.take_events();
        let middle = &holders[holders.len() / 2];
        ann.release(middle, Delivery::Confirmed).await.expect("a release");
        let stopwatch = Stopwatch::start();
        let mut events = Vec::new();
        while events.is_empty() {
            stopwatch.within(AT_ONCE, "the next claim is notified");
            tokio::time::sleep(Duration::from_millis(5)).await;
            events = bob.take_events();
        }
        assert!(matches!(&events[..], [Event::Granted { place, .. }] if *place > PlaceNumber::NONE), "{events:?}");
    });
}

/// The server keeps a deleted key in its index, which each acquire reads, until the next compaction.
#[test]
fn a_client_uses_its_keys_again() {
    case(async |fixture| {
        let (ann, bob) = (client(&fixture).await, client(&fixture).await);
        let mut keys = std::collections::BTreeSet::new();
        for round in 0..100 {
            let guard = hold(&ann, "again").await;
            let waiter = (round % 10 == 0).then(|| waits(&bob, "again"));
            if waiter.is_some() {
                eventually("bob waits", || leases(&fixture, "again").len() == 2).await;
            }
            keys.extend(queue(&fixture, "again").into_iter().map(|key| key.key));
            guard.release().await.expect("a release");
            if let Some(waiter) = waiter {
                waiter.await.expect("no panic").release().await.expect("a release");
            }
        }
        // The next claim may begin before the last one has quite ended.
        assert!(keys.len() <= 6, "two clients used {} keys", keys.len());
    });
}

/// Otherwise a handoff would take two more round trips.
#[test]
fn a_client_that_queues_again_soon_opens_no_watch() {
    /// How long a client still watches a lock after its last claim. A round in which the machine paused for longer
    /// proves nothing.
    const LINGER: Duration = Duration::from_millis(50);
    case(async |fixture| {
        let (mut holder, mut next) = (client(&fixture).await, client(&fixture).await);
        let statistics = || fixture.deployment().side().statistics().expect("statistics");
        let messages = || statistics().requests().get("Watch").copied().unwrap_or_default();
        let mut guard = hold(&holder, "contended").await;
        let mut waiter = waits(&next, "contended");
        eventually("both watch", || statistics().watches() == 2).await;
        let (mut shown, stopwatch) = (0, Stopwatch::start());
        while shown < 5 {
            stopwatch.within(SOON * 3, &format!("{shown} of 5 rounds were shorter than {LINGER:?}"));
            let (before, begin) = (messages(), std::time::Instant::now());
            guard.release().await.expect("a release");
            let last = std::mem::replace(&mut waiter, waits(&holder, "contended"));
            eventually("it queues again", || leases(&fixture, "contended").len() == 2).await;
            let is_soon = begin.elapsed() < LINGER;
            guard = last.await.expect("no panic");
            std::mem::swap(&mut holder, &mut next);
            if is_soon {
                tokio::time::sleep(LINGER * 2).await;
                assert_eq!(messages(), before, "a client that queues again after {:?}", begin.elapsed());
                shown += 1;
            }
        }
        drop(guard);
        drop(waiter.await.expect("no panic"));
        eventually("no lock is watched any more", || statistics().watches() == 0).await;
    });
}

/// The server refuses a watch and does not say which one. A client opens it again, but not as fast as the server
/// refuses. Bob holds, because a refusal ends the wait of a client that waits.
#[test]
fn a_client_whose_watches_are_refused_asks_seldom_and_goes_on() {
    const SECONDS: u64 = 3;
    case(async |fixture| {
        let bob = LockClient::builder(fixture.backend(Route::Faulty).await).ttl(TTL).wait(SOON).build();
        let guard = hold(&bob.expect("a client"), "refused").await;
        let watches = || fixture.deployment().side().statistics().expect("statistics").watches();
        eventually("bob watches", || watches() == 1).await;
        fixture.deployment().side().set_user(USER, PASSWORD, &[]).expect("it is set");
        fixture.path(PathFault::Disconnect).await;
        fixture.heal().await;
        let requests = || fixture.deployment().side().statistics().expect("statistics").requests();
        let before = requests();
        tokio::time::sleep(Duration::from_secs(SECONDS)).await;
        for (method, count) in requests() {
            let more = count - before.get(&method).copied().unwrap_or_default();
            assert!(more <= 20 * SECONDS, "{more} requests of {method}");
        }
        permit(fixture.deployment().side()).expect("it is set");
        let stopwatch = Stopwatch::start();
        eventually("bob watches again", || watches() == 1).await;
        // The change has made his log-in out of date, and his next renewal is far away.
        stopwatch.within(AT_ONCE, "bob watches again");
        // After the read that follows the watch.
        tokio::time::sleep(SETTLED).await;
        assert!(guard.is_held());
        let lease = leases(&fixture, "refused")[0];
        fixture.deployment().side().revoke(lease).expect("it is revoked");
        let stopwatch = Stopwatch::start();
        guard.lost().await;
        stopwatch.within(AT_ONCE / 3, "bob learns of the loss at once");
    });
}
