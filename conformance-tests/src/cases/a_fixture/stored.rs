//! What a fixture provides, and what it reads at the server.

use std::time::Duration;

use leasehold_core::backend::{Delivery, RenewRequest, TtlScope, Waiting};

use super::long;
use crate::direct::Direct;
use crate::fault::PathFault;
use crate::fixture::{Fixture, Record, ResourceCounts, Route};
use crate::support::{AT_ONCE, Stopwatch, becomes, eventually, name};

/// `Fixture::new`: no lock exists yet, and no request was sent.
pub async fn begins_empty(fixture: &dyn Fixture) {
    assert_eq!(
        fixture.resource_counts().await,
        ResourceCounts::default(),
        "Fixture::new: the namespace is not a fresh one"
    );
    assert_eq!(fixture.record(&name("nobody")).await, Record::default(), "Fixture::record of an unused lock");
    assert_eq!(fixture.served().await, 0, "Fixture::served: no request was sent yet");
}

/// `Fixture::backend_with_retention`: the record of a free lock is removed after that time.
pub async fn has_a_backend_with_a_retention(fixture: &dyn Fixture) {
    const WHAT: &str = "Fixture::backend_with_retention";
    const RETENTION: Duration = Duration::from_secs(1);
    let backend = match fixture.backend_with_retention(RETENTION).await {
        Ok(backend) => backend,
        Err(unsupported) => {
            return assert!(!unsupported.reason.trim().is_empty(), "{WHAT}: unsupported without a reason");
        }
    };
    let (ann, name, ttl) = (Direct::attach(backend), name("retained"), fixture.ttl());
    let mut others = 0;
    let cycle = async |name| {
        let claim = ann.claim(&name);
        ann.granted(&claim, ttl).await;
        ann.release(&claim, Delivery::Confirmed).await.expect("a release");
    };
    cycle(name.clone()).await;
    let stopwatch = Stopwatch::start();
    while fixture.record(&name).await != Record::default() {
        stopwatch.within(RETENTION * 8, &format!("{WHAT}: the record of a free lock is removed after {RETENTION:?}"));
        // Enough writes for a store that looks for old records once every few hundred writes.
        for _ in 0..20 {
            others += 1;
            cycle(crate::support::name(&format!("other {others}"))).await;
        }
        tokio::time::sleep(RETENTION / 20).await;
    }
    stopwatch.not_before(RETENTION / 2, WHAT);
}

/// `Fixture::resource_counts`: counts leases, places and connections, and shows when they are gone. Notes and counters stay for a
/// documented time. A store that shows none of them is reported.
pub async fn counts_what_the_server_holds(fixture: &dyn Fixture) {
    const WHAT: &str = "Fixture::resource_counts";
    let (ann, bob) = (Direct::warm(fixture, Route::Clear).await, Direct::warm(fixture, Route::Clear).await);
    let ttl = long(fixture);
    fixture.connected().await;
    let before = fixture.resource_counts().await;
    assert!(before.connections > 0, "{WHAT}: two clients are connected: {before:?}");
    let claims = ["one", "two"].map(|text| ann.claim(&name(text)));
    for claim in &claims {
        ann.granted(claim, ttl).await;
    }
    let held = fixture.resource_counts().await;
    assert_eq!(held.leases, before.leases + 2, "{WHAT}: leases, when two were granted: {held:?}");
    let waiter = bob.claim(claims[0].name());
    bob.not_granted(&waiter, ttl).await;
    let places = u64::from(bob.capabilities().waiting == Waiting::ServerQueue);
    let waits = async || fixture.resource_counts().await.places == before.places + places;
    eventually(AT_ONCE, &format!("{WHAT}: places, when one waits"), waits).await;
    bob.release(&waiter, Delivery::Confirmed).await.expect("a waiter leaves");
    for claim in &claims {
        ann.release(claim, Delivery::Confirmed).await.expect("a release");
    }
    let after = becomes(AT_ONCE, WHAT, async || fixture.resource_counts().await, ResourceCounts::is_clean).await;
    if after.fences == 0 {
        fixture.empty("its resource counts show no counters of free locks");
    }
    ann.release(&ann.claim(&name("withdrawn")), Delivery::InDoubt).await.expect("a withdraw");
    if fixture.resource_counts().await.tombstones == after.tombstones {
        fixture.empty("its resource counts show no notes about withdrawn claims");
    }
    drop((ann, bob));
    let gone = async || fixture.resource_counts().await.connections == 0;
    eventually(Duration::from_secs(2), "Fixture::resource_counts: no client and no connection is left", gone).await;
}

/// `Fixture::served`: each request counts, and the requests of the fixture itself do not.
pub async fn counts_what_is_served(fixture: &dyn Fixture) {
    const WHAT: &str = "Fixture::served";
    let (ann, name, ttl) = (Direct::warm(fixture, Route::Clear).await, name("served"), long(fixture));
    fixture.connected().await;
    let claim = ann.claim(&name);
    let mut before = fixture.served().await;
    let mut rises = async |verb: &str| {
        let now = fixture.served().await;
        assert!(now > before, "{WHAT}: {verb} was served, and it is still {now}");
        before = now;
    };
    let grant = ann.granted(&claim, ttl).await;
    rises("an acquire").await;
    ann.renew(RenewRequest::new(claim.clone(), grant.confirmation.place, ttl)).await;
    // The grant may have confirmed the session, so that the renewal needs no request.
    if ann.capabilities().ttl_scope != TtlScope::Session {
        rises("a renewal").await;
    }
    ann.release(&claim, Delivery::Confirmed).await.expect("a release");
    rises("a release").await;
    fixture.record(&name).await;
    fixture.resource_counts().await;
    fixture.path(PathFault::DropTraffic).await;
    fixture.heal().await;
    assert_eq!(fixture.served().await, before, "{WHAT}: a request of the fixture itself counts");
}
