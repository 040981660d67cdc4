//! Resources at the server and in the client after all locks are released.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::{AcquireOutcome, Delivery};
use leasehold_core::{ErrorKind, KeeperRuntime, LockClient};

use crate::clients::{build, builder, hold, kind_of, long_client};
use crate::direct::Direct;
use crate::fault::{PathFault, ServerFault};
use crate::fixture::{Fixture, ResourceCounts, Route};
use crate::support::{AT_ONCE, BACK, OwnRuntime, becomes, eventually, join, name};

/// The number of cycles of a case.
const CYCLES: usize = 1000;

/// The resource counts of the server while its connected clients are idle.
async fn at_rest(fixture: &dyn Fixture) -> ResourceCounts {
    fixture.connected().await;
    fixture.resource_counts().await
}

/// Invariant 17: the server is back at its baseline. What remains is documented, and is bounded by the number of names
/// and of claims that have a request without a reply.
async fn baseline(fixture: &dyn Fixture, before: ResourceCounts, names: u64, in_doubt: u64) {
    let what = format!("the server is back at its baseline, which was {before:?}");
    let is_back = |now: &ResourceCounts| now.is_clean() && now.connections <= before.connections;
    let last = becomes(Duration::from_secs(1), &what, async || fixture.resource_counts().await, is_back).await;
    assert!(last.fences <= before.fences + names, "{names} names, and fencing records for {last:?}");
    assert!(
        last.tombstones <= before.tombstones + in_doubt,
        "claims were withdrawn as in doubt although their requests got replies"
    );
}

fn idle(client: &LockClient) {
    let stats = client.stats();
    assert_eq!((stats.held, stats.waiting), (0, 0), "the client is not back at its baseline: {stats:?}");
}

/// Invariant 17: a thousand acquires and releases.
pub async fn a_thousand_cycles_leave_nothing(fixture: &dyn Fixture) {
    let ann = long_client(fixture, Route::Clear).await;
    hold(&ann, &name("first")).await.release().await.expect("a release");
    let before = at_rest(fixture).await;
    for cycle in 0..CYCLES {
        let guard = hold(&ann, &name(&format!("cycle {}", cycle % 10))).await;
        if cycle % 2 == 0 {
            guard.release().await.expect("a release");
        }
    }
    baseline(fixture, before, 10, 0).await;
    idle(&ann);
}

/// Invariant 17: a thousand contended acquires of several clients.
pub async fn a_thousand_contended_cycles_leave_nothing(fixture: &dyn Fixture) {
    const CLIENTS: usize = 5;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let client = long_client(fixture, Route::Clear).await;
        hold(&client, &name("first")).await.release().await.expect("a release");
        clients.push(client);
    }
    let before = at_rest(fixture).await;
    let mut tasks = Vec::new();
    for client in &clients {
        let lock = client.lock("contended");
        tasks.push(tokio::spawn(async move {
            for _ in 0..CYCLES / CLIENTS {
                lock.acquire().await.expect("every client gets the lock").release().await.expect("a release");
            }
        }));
    }
    for task in tasks {
        join(task).await;
    }
    baseline(fixture, before, 1, 0).await;
    clients.iter().for_each(idle);
}

/// Invariant 17: a thousand acquires that time out, and a thousand that are cancelled, while another holds.
pub async fn a_thousand_waits_in_vain_leave_nothing(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let name = name("timed out");
    hold(&ann, &name).await.release().await.expect("a release");
    let guard = hold(&bob, &name).await;
    let before = at_rest(fixture).await;
    let mut in_doubt = 0;
    for round in 0..CYCLES / 50 {
        let mut tasks = Vec::new();
        for task in 0..100 {
            let lock = ann.lock(name.as_str()).wait(Duration::from_millis(task % 3 * 10 + 5));
            tasks.push(tokio::spawn(async move { lock.acquire().await }));
        }
        for (index, task) in tasks.into_iter().enumerate() {
            if (index + round) % 2 == 0 {
                task.abort();
                drop(task.await);
                continue;
            }
            match kind_of(&join(task).await) {
                ErrorKind::Timeout => {}
                // Such a short wait can end before the first reply.
                ErrorKind::Indeterminate => in_doubt += 1,
                other => panic!("a wait without a grant ends with {other:?}"),
            }
        }
    }
    guard.release().await.expect("a release");
    baseline(fixture, before, 1, in_doubt).await;
    idle(&ann);
}

/// Invariant 17: the runtime of a client has as many tasks as before.
pub async fn no_task_is_left_behind(fixture: &dyn Fixture) {
    // On a runtime of its own, which nothing else uses.
    let (builder, bob) = (builder(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let runtime = OwnRuntime::new(1);
    let (held, ttl) = (name("held by another"), fixture.ttl() * 20);
    let guard = hold(&bob, &held).await;
    let ann = join(runtime.spawn(async move { build(builder.ttl(ttl).keeper(KeeperRuntime::CurrentRuntime)) })).await;
    let work = |cycles: usize| {
        let (ann, held) = (ann.clone(), held.clone());
        async move {
            for cycle in 0..cycles {
                let guard = ann.lock("cycle").acquire().await.expect("nothing is broken");
                let wait = Duration::from_micros(cycle as u64 % 7 * 100);
                let _ = tokio::time::timeout(wait, ann.lock(held.as_str()).acquire()).await;
                drop(guard);
            }
        }
    };
    join(runtime.spawn(work(20))).await;
    let alive = || runtime.metrics().num_alive_tasks();
    fixture.connected().await;
    tokio::time::sleep(AT_ONCE * 2).await;
    let before = alive();
    join(runtime.spawn(work(300))).await;
    eventually(Duration::from_secs(1), "no task is left", async || alive() <= before).await;
    drop(guard);
    drop(ann);
}

/// Invariant 17: the keeper ends when its last client, guard and acquire are dropped. It then drops the backend and its
/// connections.
pub async fn a_dropped_client_releases_everything(fixture: &dyn Fixture) {
    let baseline = fixture.resource_counts().await.connections;
    let backend = fixture.backend(Route::Clear).await;
    let watched = Arc::downgrade(&backend);
    let ann = build(LockClient::builder(backend).ttl(fixture.ttl() * 20));
    let (first, second) = (hold(&ann, &name("first")).await, hold(&ann, &name("second")).await);
    let clone = ann.clone();
    drop(ann);
    first.release().await.expect("a guard and a clone keep the client alive");
    drop(clone);
    assert!(second.is_held() && watched.strong_count() > 0, "a guard keeps the client alive");
    drop(second);
    eventually(Duration::from_secs(2), "the backend is dropped", async || watched.strong_count() == 0).await;
    let closed = async || fixture.resource_counts().await.connections == baseline;
    eventually(Duration::from_secs(2), "its connections are closed", closed).await;
    assert!(fixture.resource_counts().await.is_clean(), "the last guard was released before the client ended");
}

/// Invariant 17: a connection whose call got no reply is closed, or used again. Otherwise each short pause of the
/// server would cost the client one more, until the server accepts none.
pub async fn calls_without_replies_leave_no_connection(fixture: &dyn Fixture) {
    let (ann, ttl) = (Direct::warm(fixture, Route::Faulty).await, fixture.ttl() * 20);
    let before = at_rest(fixture).await.connections;
    let stands_still = fixture.server(ServerFault::Pause).await.is_ok();
    let bound = BACK + ann.capabilities().call_bound;
    for round in 0..5 {
        if !stands_still {
            fixture.path(PathFault::DropTraffic).await;
        } else if round > 0 {
            fixture.server(ServerFault::Pause).await.expect("a server can be paused again");
        }
        let unanswered = ann.acquire(&ann.claim(&name(&format!("unanswered {round}"))), ttl).await;
        assert!(unanswered.is_err(), "a paused server has replied: {unanswered:?}");
        if stands_still {
            fixture.server(ServerFault::Resume).await.expect("a paused server can be resumed");
        } else {
            fixture.heal().await;
        }
        let answered = async || {
            let claim = ann.claim(&name("answered"));
            let granted = matches!(ann.acquire(&claim, ttl).await, Ok(AcquireOutcome::Granted(_)));
            let released = ann.release(&claim, Delivery::InDoubt).await.is_ok();
            granted && released
        };
        eventually(bound, "calls get replies again", answered).await;
    }
    fixture.connected().await;
    // A client may keep the connections that it needs for several calls at once.
    let spare = 2;
    let closed = |now: &ResourceCounts| now.connections <= before + spare;
    let what = format!("connections without replies are closed; there were {before} before");
    becomes(BACK, &what, async || fixture.resource_counts().await, closed).await;
}
