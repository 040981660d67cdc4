//! Fencing tokens, which protect a resource when a lease alone cannot.

use std::sync::Arc;

use leasehold_core::FencingToken;
use leasehold_core::backend::{AcquireOutcome, Delivery, RenewReply, RenewRequest, Restart, Scope};

use crate::clients::{LONG, client, hold, long_client};
use crate::direct::Direct;
use crate::fault::{Data, ServerFault, Tamper};
use crate::fixture::{Fixture, Route};
use crate::history::{History, Hold};
use crate::support::{eventually, join, name};
use crate::timing_control::in_time;

/// Invariant 2: a token is higher than every one before it, across releases, whichever client acquires.
pub async fn rises_across_releases(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let name = name("releases");
    let mut last = FencingToken::new(0);
    for round in 0..50 {
        let guard = hold(if round % 2 == 0 { &ann } else { &bob }, &name).await;
        assert!(guard.fencing_token() > last, "{last} was followed by {}", guard.fencing_token());
        assert_eq!(
            fixture.record(&name).await.last_token,
            Some(guard.fencing_token()),
            "not the token of the store's record"
        );
        last = guard.fencing_token();
        guard.release().await.expect("a release");
    }
}

/// Invariant 2: across expiry, without a release, and across a time in which the lock was free and unused.
pub async fn rises_across_expiry(fixture: &dyn Fixture) {
    let (ann, bob) = (Direct::new(fixture, Route::Clear).await, Direct::new(fixture, Route::Clear).await);
    let (name, ttl) = (name("expiry"), fixture.ttl());
    let mut last = FencingToken::new(0);
    for client in [&ann, &bob, &ann] {
        let grant = client.takes_over(&client.claim(&name), ttl, ttl).await;
        assert!(grant.token > last, "{last} was followed by {}", grant.token);
        last = grant.token;
    }
    let bound = ttl + ann.capabilities().takeover_slack;
    eventually(bound, "the lease ends", async || fixture.record(&name).await.lease().is_none()).await;
    tokio::time::sleep(ttl).await;
    let grant = bob.granted(&bob.claim(&name), ttl).await;
    assert!(grant.token > last, "{last} was followed by {}", grant.token);
}

/// Invariant 2: across handoffs, in the order in which the waiters hold the lock.
pub async fn rises_across_handoffs(fixture: &dyn Fixture) {
    let name = name("handoffs");
    let history = Arc::new(History::new());
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let client = long_client(fixture, Route::Clear).await;
        let (lock, history) = (client.lock(name.as_str()), history.clone());
        let name = name.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..10 {
                let guard = lock.acquire().await.expect("every waiter gets the lock");
                let from = history.now();
                history.push(Hold { lock: name.clone(), token: guard.fencing_token(), from, until: from });
                guard.release().await.expect("a release");
            }
        }));
    }
    for task in tasks {
        join(task).await;
    }
    assert_eq!(history.holds().len(), 80);
    history.check().unwrap_or_else(|violation| panic!("{violation}"));
}

/// Invariant 2: the counter outlives the lock's record.
pub async fn rises_across_a_removed_record(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let name = name("removed");
    let guard = hold(&ann, &name).await;
    let first = guard.fencing_token();
    match fixture.tamper(&name, Tamper::Remove).await {
        Ok(()) => {
            let second = hold(&bob, &name).await.fencing_token();
            assert!(second > first, "{first} was followed by {second} after its record was removed");
        }
        // A record that cannot be removed ends with the lease.
        Err(_) => {
            guard.release().await.expect("a release");
            tokio::time::sleep(fixture.ttl()).await;
            let second = hold(&bob, &name).await.fencing_token();
            assert!(second > first, "{first} was followed by {second} after its record had gone");
        }
    }
}

/// Invariant 2: across an orderly restart of the server with its data.
pub async fn rises_across_a_restart(fixture: &dyn Fixture) {
    across(fixture, ServerFault::Stop, Data::Kept).await;
}

/// Invariant 2: across a server that is killed, if its persistence keeps what it acknowledged.
pub async fn rises_across_a_kill(fixture: &dyn Fixture) {
    across(fixture, ServerFault::Kill, Data::Kept).await;
}

/// Invariant 2, outside the domain: across a server that comes back without its data.
pub async fn rises_across_lost_data(fixture: &dyn Fixture) {
    across(fixture, ServerFault::Kill, Data::Lost).await;
}

async fn across(fixture: &dyn Fixture, end: ServerFault, data: Data) {
    let ann = client(fixture, Route::Clear).await;
    let name = name("restart");
    let guard = hold(&ann, &name).await;
    let first = guard.fencing_token();
    let restarted = match fixture.server(end).await {
        Ok(()) => fixture.server(ServerFault::Start(data)).await,
        unsupported => unsupported,
    };
    if let Err(unsupported) = restarted {
        // Without a server there is no restart. The data end with the process, and the capabilities state that.
        assert!(!unsupported.reason.is_empty());
        let (capabilities, reason) = (ann.capabilities(), unsupported.reason);
        if unsupported.is_by_nature() {
            // Tokens count the history of this store. Without its data it would be another store.
            assert_eq!(capabilities.restart, Restart::KeepsAll, "{reason}");
            assert!(!capabilities.limits_of_exclusion.is_empty(), "{reason}");
            fixture.server(ServerFault::Start(Data::Kept)).await.expect("a killed server can be started");
            return fixture.empty("a store without its data is another store, and the limits of exclusion name it");
        }
        assert!(capabilities.scope == Scope::Process || unsupported.is_withheld(), "{reason}");
        return;
    }
    drop(guard);
    let bob = client(fixture, Route::Clear).await;
    // A backend may withhold new grants until all leases that it does not know of have ended.
    let lock = bob.lock(name.as_str());
    let mut second = None;
    let bound = fixture.ttl() * LONG + fixture.back_within();
    eventually(bound, "the lock is granted after the restart", async || {
        second = lock.acquire().await.ok().map(|guard| guard.fencing_token());
        second.is_some()
    })
    .await;
    let second = second.expect("it was granted");
    assert!(second > first, "{first} was followed by {second} after a restart");
}

/// Invariants 2 and 7: a stale holder keeps its own token. No request returns the current token to it.
pub async fn a_stale_token_stays_its_own(fixture: &dyn Fixture) {
    let (ann, bob) = (Direct::new(fixture, Route::Clear).await, Direct::new(fixture, Route::Clear).await);
    let (name, ttl) = (name("stale"), fixture.ttl());
    let claim = ann.claim(&name);
    let first = ann.granted(&claim, ttl).await;
    let second = bob.takes_over(&bob.claim(&name), ttl, ttl * LONG).await;
    assert!(second.token > first.token);
    // By an acquire of the same claim, and by a renewal.
    let again = ann.acquire(&claim, ttl).await;
    assert!(!matches!(again, Ok(AcquireOutcome::Granted(_))), "a stale claim was granted: {again:?}");
    let renewed = ann.renew(RenewRequest::new(claim.clone(), first.confirmation.place, ttl)).await;
    assert!(!matches!(renewed, RenewReply::Granted(_) | RenewReply::Renewed(_)), "{renewed:?}");
    let _ = ann.release(&claim, Delivery::Confirmed).await;
    assert_eq!(fixture.record(&name).await.last_token, Some(second.token), "a stale claim raised the counter");

    let ann = client(fixture, Route::Clear).await;
    let other = crate::support::name("stale guard");
    let guard = ann.lock(other.as_str()).without_renewal().acquire().await.expect("nothing is broken");
    let token = guard.fencing_token();
    let next = bob.takes_over(&bob.claim(&other), ttl, ttl).await;
    assert!(!guard.is_held() && guard.fencing_token() == token && next.token > token);
}

/// A resource that a lock protects. It remembers the highest token and refuses writes with a lower one.
#[derive(Default)]
struct Resource {
    highest: Option<FencingToken>,
    written: Vec<&'static str>,
}

impl Resource {
    fn write(&mut self, token: FencingToken, line: &'static str) -> bool {
        let fresh = self.highest.is_none_or(|highest| token >= highest);
        if fresh {
            self.highest = Some(token);
            self.written.push(line);
        }
        fresh
    }
}

/// The protected resource refuses the late write of a holder that was paused.
pub async fn a_late_write_is_refused(fixture: &dyn Fixture) {
    let (ann, bob) = (client(fixture, Route::Clear).await, client(fixture, Route::Clear).await);
    let name = name("late write");
    let mut resource = Resource::default();
    let late = ann.lock(name.as_str()).without_renewal().acquire().await.expect("nothing is broken");
    assert!(resource.write(late.fencing_token(), "ann, in time"));
    let bound = fixture.ttl() + bob.capabilities().takeover_slack;
    let next = in_time(bound, "taken over from a fixed lease", hold(&bob, &name)).await;
    assert!(resource.write(next.fencing_token(), "bob"));
    assert!(!resource.write(late.fencing_token(), "ann, too late"), "a late write was accepted");
    assert!(resource.write(next.fencing_token(), "bob again"));
    assert_eq!(resource.written, ["ann, in time", "bob", "bob again"]);
}
