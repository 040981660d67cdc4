//! One holder at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::{ErrorKind, LockClient, LockGuard, LockName};

use crate::clients::{becomes_free, client, handoff_bound, hold, is_free, kind_of, long_client};
use crate::fixture::{Fixture, Route};
use crate::history::History;
use crate::support::{AT_ONCE, join, name};
use crate::timing_control::in_time;

/// Invariant 1: while one client holds the lock, another cannot acquire it, neither with one attempt nor by waiting.
/// After the release it can.
pub async fn one_holder_at_a_time(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let name = name("basic");
    let guard = hold(&ann, &name).await;
    assert!(!is_free(&bob, &name).await, "two clients hold one lock");
    let waited = bob.lock(name.as_str()).wait(fixture.ttl() * 2).acquire().await;
    assert_eq!(kind_of(&waited), ErrorKind::Timeout);
    assert!(guard.is_held(), "the holder lost its lock to a waiter");
    let first = guard.fencing_token();
    guard.release().await.expect("a release");
    assert!(hold(&bob, &name).await.fencing_token() > first);
}

/// Invariants 1 and 15: two names are two locks.
pub async fn two_names_are_two_locks(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let (left, right) = (name("left"), name("right"));
    let one = hold(&ann, &left).await;
    let other = bob.lock(right.as_str()).try_acquire().await.expect("nothing is broken").expect("the lock is free");
    one.release().await.expect("a release");
    assert!(other.is_held() && !is_free(&ann, &right).await, "the release of one lock ended another");
    assert!(is_free(&ann, &left).await);
}

/// Invariants 1 and 10: after a release the lock is free at once, again and again.
pub async fn free_again_after_each_release(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let name = name("again");
    for round in 0..20 {
        let holder = if round % 3 == 0 { &bob } else { &ann };
        let guard = holder.lock(name.as_str()).try_acquire().await.expect("nothing is broken");
        let guard = guard.unwrap_or_else(|| panic!("the lock is still held in round {round}, after its release"));
        guard.release().await.expect("a release");
    }
}

/// A counter that loses increments if two holders raise it at once, because a step is not atomic.
#[derive(Default)]
struct Counter(AtomicU64);

impl Counter {
    async fn step(&self) {
        let seen = self.0.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.0.store(seen + 1, Ordering::SeqCst);
    }
}

async fn count(fixture: &dyn Fixture, clients: usize, tasks: usize, rounds: usize) {
    let counter = Arc::new(Counter::default());
    let name = name("counter");
    let mut working = Vec::new();
    let mut members = Vec::new();
    for _ in 0..clients {
        members.push(long_client(fixture, Route::Clear).await);
    }
    for task in 0..tasks {
        let (lock, counter) = (members[task % clients].lock(name.as_str()), counter.clone());
        working.push(tokio::spawn(async move {
            for _ in 0..rounds {
                let guard = lock.acquire().await.expect("every waiter gets the lock");
                counter.step().await;
                guard.release().await.expect("a release");
            }
        }));
    }
    let turns = u32::try_from(tasks * rounds).expect("a few turns");
    let bound = handoff_bound(&members[0].capabilities()) * turns;
    in_time(bound, "every client has had all its turns", async {
        for task in working {
            join(task).await;
        }
    })
    .await;
    assert_eq!(counter.0.load(Ordering::SeqCst), (tasks * rounds) as u64, "increments were lost: two held at once");
}

/// Invariant 1, by an oracle: two clients that take turns lose no increment of a counter.
pub async fn two_clients_and_a_counter(fixture: &dyn Fixture) {
    count(fixture, 2, 2, 40).await;
}

/// Invariants 1 and 13, by an oracle: a hundred tasks of four clients lose no increment of a counter.
pub async fn a_hundred_tasks_and_a_counter(fixture: &dyn Fixture) {
    count(fixture, 4, 100, 2).await;
}

/// Invariants 1 and 2: the recorded history of many clients, some of whose holders die, has no overlap, and its tokens
/// rise in the order of the grants.
pub async fn the_history_of_many_clients(fixture: &dyn Fixture) {
    let history = Arc::new(History::new());
    let mut working = Vec::new();
    for member in 0..4_u64 {
        let client = client(fixture, Route::Clear).await;
        for task in 0..4 {
            let (client, history, ttl) = (client.clone(), history.clone(), fixture.ttl());
            working.push(tokio::spawn(async move {
                for round in 0..6 {
                    let name = name(if (task + round) % 2 == 0 { "even" } else { "odd" });
                    let dies = member == 0 && round == 2 && task < 2;
                    visit(&client, &name, &history, dies, ttl).await;
                }
            }));
        }
    }
    for task in working {
        join(task).await;
    }
    assert_eq!(history.holds().len(), 96);
    history.check().unwrap_or_else(|violation| panic!("{violation}"));
}

/// Holds the lock once, for a moment or until the lease has expired.
async fn visit(client: &LockClient, name: &LockName, history: &History, dies: bool, ttl: Duration) {
    let lock = client.lock(name.as_str());
    let guard = if dies { lock.without_renewal().acquire().await } else { lock.acquire().await };
    let guard = guard.expect("every waiter gets the lock");
    let from = history.now();
    let record = |guard: &LockGuard| history.ends(name, guard.fencing_token(), from, || guard.is_held());
    if dies {
        tokio::time::sleep(ttl / 2).await;
        record(&guard);
        guard.lost().await;
    } else {
        tokio::time::sleep(Duration::from_micros(500)).await;
        record(&guard);
        // A busy machine may have lost the lease. The history shows whether exclusion held.
        let _ = guard.release().await;
    }
}

/// Invariants 1 and 15: two hundred locks are held at once, each by one client.
pub async fn many_locks_at_once(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let names: Vec<_> = (0..200).map(|index| name(&format!("lock {index}"))).collect();
    let mut guards = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let holder = if index % 2 == 0 { &ann } else { &bob };
        let guard = holder.lock(name.as_str()).try_acquire().await.expect("nothing is broken");
        guards.push(guard.unwrap_or_else(|| panic!("{name:?} is held by the holder of another name")));
    }
    for (index, name) in names.iter().enumerate() {
        let other = if index % 2 == 0 { &bob } else { &ann };
        assert!(!is_free(other, name).await, "{name:?} has two holders");
    }
    assert!(guards.iter().all(LockGuard::is_held));
}

/// Invariants 1 and 14: one client does not hold a lock twice, neither with two attempts nor by waiting.
pub async fn one_client_excludes_itself(fixture: &dyn Fixture) {
    let ann = long_client(fixture, Route::Clear).await;
    let name = name("self");
    let guard = hold(&ann, &name).await;
    assert!(!is_free(&ann, &name).await, "one client holds a lock twice");
    let waited = ann.lock(name.as_str()).wait(fixture.ttl()).acquire().await;
    assert_eq!(kind_of(&waited), ErrorKind::Timeout);
    assert!(guard.is_held());
    guard.release().await.expect("a release");
    // A waiter that gave up may still be leaving the queue.
    becomes_free(&ann, &name, AT_ONCE, "the lock is free after its release").await;
}
