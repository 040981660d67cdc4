//! What the server has and does, where the library could report the same without it.

use std::time::Duration;

use leasehold_conformance::harness::{Fault, FaultProxy, Reach};
use leasehold_conformance::{Direct, Fixture, PathFault, Route};
use leasehold_core::backend::{AcquireOutcome, LONGEST_PLACE_TTL};
use leasehold_core::{ErrorKind, LockClient, LockName};

use super::common::{SOON, Stopwatch, eventually, hold};
use super::fixture::PREFIX;
use super::one_member::OneMember;
use super::stored::Stored;
use super::support::case;

/// No renewal is due for seconds, and no etcd lease ends by itself.
const TTL: Duration = Duration::from_secs(60);

const AT_ONCE: Duration = Duration::from_millis(700);

/// How long to wait until a client has done what follows the opening of a watch.
const SETTLED: Duration = Duration::from_millis(300);

async fn client(fixture: &OneMember, route: Route) -> LockClient {
    LockClient::builder(fixture.backend(route).await).ttl(TTL).wait(SOON).build().expect("a client")
}

fn etcd_leases(fixture: &OneMember) -> usize {
    fixture.deployment().side().leases().expect("leases").len()
}

fn watches(fixture: &OneMember) -> u64 {
    fixture.deployment().side().statistics().expect("statistics").watches()
}

/// Otherwise each fixed lease leaves an etcd lease, which the server counts down and keeps in memory until its ttl is
/// over.
#[test]
fn the_etcd_lease_of_a_fixed_lease_ends_with_its_claim() {
    case(async |fixture| {
        let (ann, bob) = (client(&fixture, Route::Clear).await, client(&fixture, Route::Clear).await);
        let fixed = |client: &LockClient| client.lock("fixed").without_renewal();
        let held = hold(&ann, "held").await;
        let before = etcd_leases(&fixture);
        let only = async |expected: usize, what: &str| {
            let stopwatch = Stopwatch::start();
            eventually(what, || etcd_leases(&fixture) == before + expected).await;
            stopwatch.within(AT_ONCE, what);
        };
        fixed(&ann).acquire().await.expect("it is free").release().await.expect("a release");
        only(0, "it was released").await;

        let guard = fixed(&ann).acquire().await.expect("it is free");
        assert!(fixed(&bob).try_acquire().await.expect("no fault").is_none());
        only(1, "another one was refused").await;

        let waiter = fixed(&bob).wait(SETTLED).acquire().await.expect_err("ann holds it");
        assert_eq!(waiter.kind(), ErrorKind::Timeout);
        only(1, "another one has waited").await;

        let waiter = tokio::spawn({
            let lock = fixed(&bob);
            async move { lock.acquire().await.expect("the lock is granted") }
        });
        only(2, "another one waits").await;
        guard.release().await.expect("a release");
        let guard = waiter.await.expect("no panic");
        only(1, "it was granted out of the queue").await;
        guard.release().await.expect("a release");
        only(0, "that was released").await;
        held.release().await.expect("a release");
    });
}

/// Otherwise a waiter that died blocks the lock for its whole ttl.
#[test]
fn a_place_has_a_short_etcd_lease_however_long_the_ttl() {
    case(async |fixture| {
        let (ann, bob) = (Direct::new(&fixture, Route::Clear).await, Direct::new(&fixture, Route::Clear).await);
        // The second time, the client has a session for places already.
        for name in ["first", "second"].map(|name| LockName::new(name).expect("a name")) {
            bob.granted(&bob.claim(&name), TTL).await;
            ann.not_granted(&ann.claim(&name), TTL).await;
            let deployment = fixture.deployment();
            let queue = Stored { side: deployment.side(), prefix: PREFIX }.queue(&name);
            let ttls =
                queue.iter().map(|key| deployment.side().lease(key.lease).expect("a reply").expect("a lease").ttl);
            assert_eq!(ttls.collect::<Vec<_>>(), [TTL, LONGEST_PLACE_TTL]);
        }
    });
}

#[test]
fn a_broken_stream_is_opened_again_for_holders_and_waiters() {
    case(async |fixture| {
        let (ann, bob) = (client(&fixture, Route::Faulty).await, client(&fixture, Route::Clear).await);
        let held = hold(&ann, "ann's").await;
        let guard = hold(&bob, "bob's").await;
        let lock = ann.lock("bob's");
        let waiter = tokio::spawn(async move { lock.acquire().await.expect("the lock is granted") });
        eventually("every lock is watched", || watches(&fixture) == 3).await;
        for _ in 0..2 {
            fixture.path(PathFault::Disconnect).await;
            eventually("the stream is closed", || watches(&fixture) == 1).await;
            fixture.heal().await;
            let stopwatch = Stopwatch::start();
            eventually("every lock is watched again", || watches(&fixture) == 3).await;
            stopwatch.within(AT_ONCE, "the stream is opened again");
        }
        tokio::time::sleep(SETTLED).await;
        guard.release().await.expect("a release");
        let stopwatch = Stopwatch::start();
        waiter.await.expect("no panic").release().await.expect("a release");
        stopwatch.within(AT_ONCE, "ann gets the lock");
        delete(&fixture, "ann's");
        let stopwatch = Stopwatch::start();
        held.lost().await;
        stopwatch.within(AT_ONCE, "ann learns of her loss");
    });
}

/// A stream whose packets vanish looks like one without news. The pings of the etcd client would detect it only after
/// seven seconds.
#[test]
fn a_silent_stream_is_tested() {
    case(async |fixture| {
        let ann = client(&fixture, Route::Faulty).await;
        let held = hold(&ann, "silent").await;
        eventually("it is watched", || watches(&fixture) == 1).await;
        tokio::time::sleep(SETTLED).await;
        vanish(&fixture);
        delete(&fixture, "silent");
        let stopwatch = Stopwatch::start();
        held.lost().await;
        // Two seconds of silence, the bound of the test, and another connection.
        stopwatch.within(Duration::from_secs(5), "ann learns of her loss");
    });
}

/// A client of one member waits for a late reply for the bound of a call. Then it opens another connection.
#[test]
fn a_connection_without_replies_is_replaced() {
    case(async |fixture| {
        let ann = Direct::warm(&fixture, Route::Faulty).await;
        // The watch still tells of that release. If the event arrives during the first call, the server is only slow.
        tokio::time::sleep(SETTLED).await;
        vanish(&fixture);
        let mut outcomes = Vec::new();
        for index in 0..3 {
            let claim = ann.claim(&LockName::new(format!("lock {index}")).expect("a name"));
            outcomes.push(ann.try_acquire(&claim, fixture.ttl() * 20).await);
        }
        assert!(matches!(outcomes[2], Ok(AcquireOutcome::Granted(_))), "{outcomes:?}");
    });
}

/// Every packet of the open connections is lost from now on.
fn vanish(fixture: &OneMember) {
    fixture.proxies().for_each(|proxy: &FaultProxy| proxy.apply_to(Fault::DropTraffic, Reach::Open));
}

/// Deletes the key of a lock, as an operator does.
fn delete(fixture: &OneMember, name: &str) {
    let deployment = fixture.deployment();
    let stored = Stored { side: deployment.side(), prefix: PREFIX };
    let queue = stored.queue_prefix(&LockName::new(name).expect("a name"));
    assert_eq!(deployment.side().delete_all(queue).expect("it is deleted"), 1);
}
