//! The lease keeper renews leases and reports losses.

mod guarantees;
mod hooks;
mod outages;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::backend::LossNotice;
use leasehold_core::{ErrorKind, KeeperRuntime, LossReason};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

pub use self::guarantees::*;
pub use self::outages::*;
use crate::clients::{
    becomes_free, build, builder, client, hold, is_free, kind_of, long_client, lost, steady_client, steady_ttl,
};
use crate::fault::Tamper;
use crate::fixture::{Fixture, Route};
use crate::jumping_clock::JumpingClock;
use crate::support::{AT_ONCE, LOST_BY, OwnRuntime, Stopwatch, eventually, join, name};
use crate::timing_control::in_time;

/// Invariants 1 and 4: a lease is held for three times its ttl, and no other client gets the lock meanwhile.
pub async fn holds_for_three_ttls(fixture: &dyn Fixture) {
    let (ann, bob) = (steady_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let (name, ttl) = (name("three ttls"), steady_ttl(fixture));
    let guard = hold(&ann, &name).await;
    let stopwatch = Stopwatch::start();
    while stopwatch.elapsed() < ttl * 3 {
        assert!(!is_free(&bob, &name).await, "taken from its holder after {:?} of {ttl:?}", stopwatch.elapsed());
        assert!(guard.is_held(), "lost after {:?} of {ttl:?}", stopwatch.elapsed());
        tokio::time::sleep(ttl / 50).await;
    }
    guard.release().await.expect("a release");
    assert_eq!(ann.stats().lost, 0);
}

/// The second lease of a name is renewed like the first one.
pub async fn the_next_lease_of_a_name_is_renewed_again(fixture: &dyn Fixture) {
    let (ann, bob) = (steady_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let (name, ttl) = (name("again"), steady_ttl(fixture));
    for round in 0..2 {
        let guard = hold(&ann, &name).await;
        tokio::time::sleep(ttl * 3 / 2).await;
        assert!(guard.is_held(), "lease {round} of one name was not renewed");
        assert!(!is_free(&bob, &name).await, "lease {round} of one name was not renewed at the server");
        guard.release().await.expect("a release");
    }
}

/// Invariant 17: ten thousand acquires and releases leave nothing in the keeper. One lease is then renewed once per
/// period, and no more often.
pub async fn ten_thousand_cycles_leave_one_renewal_per_period(fixture: &dyn Fixture) {
    const PERIODS: u32 = 5;
    let ann = steady_client(fixture, Route::Clear).await;
    let (lock, ttl) = (ann.lock("cycles"), steady_ttl(fixture));
    // Concurrently, because each cycle takes two round trips.
    let tasks: Vec<_> = (0..5)
        .map(|index| {
            let lock = ann.lock(format!("cycles {index}"));
            tokio::spawn(async move {
                for _ in 0..2_000 {
                    lock.acquire().await.expect("nothing is broken").release().await.expect("a release");
                }
            })
        })
        .collect();
    for task in tasks {
        join(task).await;
    }
    let guard = lock.acquire().await.expect("nothing is broken");
    // The first renewal may have to connect.
    eventually(ttl, "it is renewed", async || ann.stats().renewed > 0).await;
    let stopwatch = Stopwatch::start();
    let before = fixture.served().await;
    let shortest = Stopwatch::start();
    // Sleeps until the middle between two renewals.
    tokio::time::sleep(ttl / 3 * PERIODS + ttl / 6).await;
    // A fixture may take its time to count.
    let slept = shortest.elapsed();
    let (renewals, took) = (fixture.served().await - before, stopwatch.elapsed());
    let most = took.as_secs_f64() / (ttl / 3).as_secs_f64();
    let lag = stopwatch.lag() * PERIODS;
    let least = slept.saturating_sub(lag).as_secs_f64() / (ttl / 3).as_secs_f64() - 1.0;
    assert!(renewals as f64 <= most, "{renewals} renewals in {took:?}: more than one per period of {:?}", ttl / 3);
    assert!(renewals as f64 >= least, "{renewals} renewals in {took:?}: fewer than one per period of {:?}", ttl / 3);
    assert!(guard.is_held());
}

/// Invariant 8: the client sends no request for a claim after its release.
pub async fn silence_after_the_release(fixture: &dyn Fixture) {
    let ann = steady_client(fixture, Route::Clear).await;
    let (name, ttl) = (name("silence after the release"), steady_ttl(fixture));
    let guard = hold(&ann, &name).await;
    tokio::time::sleep(ttl / 2).await;
    guard.release().await.expect("a release");
    stays_silent(fixture, ttl, "its lease was released").await;
}

/// Invariant 8: after a guard is dropped, the client sends only the release.
pub async fn silence_after_the_drop(fixture: &dyn Fixture) {
    let (ann, bob) = (steady_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let (name, ttl) = (name("silence after the drop"), steady_ttl(fixture));
    let guard = hold(&ann, &name).await;
    tokio::time::sleep(ttl / 2).await;
    let before = fixture.served().await;
    drop(guard);
    // Reads the record, because the requests of a client would count.
    eventually(AT_ONCE, "a dropped guard releases", async || fixture.record(&name).await.lease().is_none()).await;
    assert!(fixture.served().await - before <= 2, "a drop sends one release, beside a renewal in flight");
    stays_silent(fixture, ttl, "its guard was dropped").await;
    assert!(is_free(&bob, &name).await);
}

/// Invariant 8: the client sends no request after a loss, and the holder's release does not end the next lease.
pub async fn silence_after_the_loss(fixture: &dyn Fixture) {
    let ann = client(fixture, Route::Clear).await;
    let (name, ttl) = (name("silence after the loss"), fixture.ttl());
    let guard = hold(&ann, &name).await;
    if fixture.tamper(&name, Tamper::Remove).await.is_err() {
        // If records cannot be removed, only a fixed lease can be lost.
        guard.release().await.expect("a release");
        let guard = ann.lock(name.as_str()).without_renewal().acquire().await.expect("nothing is broken");
        lost(&guard, ttl, "a fixed lease ends").await;
        return stays_silent(fixture, ttl, "its fixed lease has ended").await;
    }
    lost(&guard, ttl, "a lease that is gone is reported").await;
    tokio::time::sleep(AT_ONCE).await;
    stays_silent(fixture, ttl, "its lease was lost").await;
}

async fn stays_silent(fixture: &dyn Fixture, ttl: Duration, since: &str) {
    let before = fixture.served().await;
    tokio::time::sleep(ttl).await;
    assert_eq!(fixture.served().await, before, "a client still sends requests after {since}");
}

/// Invariant 6: when a lease is gone, its holder is notified: at once if the store pushes losses, otherwise by the next
/// renewal.
pub async fn a_lease_that_is_gone_is_reported(fixture: &dyn Fixture) {
    let ann = steady_client(fixture, Route::Clear).await;
    let (name, ttl) = (name("gone"), steady_ttl(fixture));
    let guard = hold(&ann, &name).await;
    if fixture.tamper(&name, Tamper::Remove).await.is_err() {
        // If records cannot be removed, only the end of a fixed lease can be reported.
        guard.release().await.expect("a release");
        let fixed = ann.lock(name.as_str()).without_renewal().acquire().await.expect("nothing is broken");
        assert_eq!(lost(&fixed, ttl, "a fixed lease ends").await, LossReason::Expired);
        return;
    }
    let bound = match ann.capabilities().loss_notice {
        LossNotice::Pushed => AT_ONCE,
        _ => ttl / 3 + AT_ONCE,
    };
    assert_eq!(lost(&guard, bound, "a lease that is gone is reported").await, LossReason::Gone);
    assert!(!guard.is_held());
}

/// Invariant 6: the client counts a loss once, and every call of the holder returns the same loss.
pub async fn a_loss_is_reported_once_and_stays(fixture: &dyn Fixture) {
    let ann = client(fixture, Route::Clear).await;
    let guard = ann.lock("once").without_renewal().acquire().await.expect("nothing is broken");
    let (stopwatch, valid) = (Stopwatch::start(), guard.validity());
    let both = async { tokio::join!(guard.lost(), guard.lost()) };
    let (first, second) = in_time(valid + LOST_BY, "a loss is reported when the validity ends", both).await;
    stopwatch.not_before(valid, "the loss was reported before the validity ended");
    assert_eq!((first, second), (guard.lost().await, first));
    assert_eq!(first.reason, LossReason::Expired);
    let counted = async || (ann.stats().lost, ann.stats().held) == (1, 0);
    eventually(AT_ONCE, "one lease was lost", counted).await;
    let refused = guard.release().await;
    assert_eq!(kind_of(&refused), ErrorKind::Lost);
    tokio::time::sleep(AT_ONCE).await;
    assert_eq!(ann.stats().lost, 1, "one loss is counted");
}

/// The loss ends the work that a guard runs, and nothing ends it before.
pub async fn guarded_work_ends_with_the_lease(fixture: &dyn Fixture) {
    let ann = client(fixture, Route::Clear).await;
    let lock = ann.lock("work").without_renewal();
    let guard = lock.acquire().await.expect("nothing is broken");
    let (stopwatch, valid) = (Stopwatch::start(), guard.validity());
    let work = guard.run(std::future::pending::<()>());
    let ended = in_time(valid + LOST_BY, "the work is ended with the lease", work).await;
    assert_eq!(kind_of(&ended), ErrorKind::Lost);
    stopwatch.not_before(valid, "the work was ended before the lease");
    drop(guard);
    // `Lock::run` ends the same way, and returns the output of work that ends in time.
    let bound = fixture.ttl() + ann.capabilities().takeover_slack;
    becomes_free(&ann, &name("work"), bound, "the lost lease ends").await;
    let ended = lock.run(|_| std::future::pending::<()>()).await;
    assert_eq!(kind_of(&ended), ErrorKind::Lost);
    let output = ann.lock("work in time").run(async |_| "done").await;
    assert_eq!(output.expect("it ends in time"), "done");
}

/// The keeper has its own thread and renews leases while every worker of the user's runtime is blocked.
pub async fn a_starved_runtime_loses_nothing(fixture: &dyn Fixture) {
    const WORKERS: usize = 2;
    let (ann, bob) = (steady_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let (name, ttl) = (name("starved"), steady_ttl(fixture));
    let user = OwnRuntime::new(WORKERS);
    let guard = join(user.spawn(hold(&ann, &name))).await;
    let asleep = Arc::new(AtomicU64::new(0));
    for _ in 0..WORKERS {
        let asleep = asleep.clone();
        user.spawn(async move {
            asleep.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(ttl * 2);
        });
    }
    eventually(AT_ONCE, "every worker sleeps", async || asleep.load(Ordering::SeqCst) == WORKERS as u64).await;
    let stopwatch = Stopwatch::start();
    let starved = user.spawn(async {});
    tokio::time::sleep(ttl * 3 / 2).await;
    assert!(!is_free(&bob, &name).await, "the lease of a starved runtime was not renewed");
    assert!(!starved.is_finished(), "the runtime was not starved");
    join(starved).await;
    stopwatch.not_before(ttl * 3 / 2, "the runtime was not starved");
    assert!(guard.is_held() && ann.stats().lost == 0, "a starved runtime lost its lease");
    let stats = ann.stats();
    assert!(stats.renewed > 2, "the lease was renewed too rarely in one and a half ttls: {stats:?}");
    assert_eq!(stats.renewal_errors, 0, "renewals failed while the runtime was starved");
}

/// Invariant 5: after a pause of the whole process `is_held` is false on the first call, before any task has run; the
/// next holder keeps its lease.
pub async fn a_paused_process_learns_of_its_loss_at_once(fixture: &dyn Fixture) {
    let (builder, bob) = (builder(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let (name, ttl) = (name("paused"), fixture.ttl());
    let (holds, held) = oneshot::channel();
    let (woke, awake) = oneshot::channel();
    let process = std::thread::spawn({
        let name = name.clone();
        move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                // Client and keeper share one thread. While it sleeps, both are stopped, as in a paused process.
                let ann = build(builder.keeper(KeeperRuntime::CurrentRuntime));
                let guard = hold(&ann, &name).await;
                let _ = holds.send(guard.fencing_token());
                std::thread::sleep(ttl * 3);
                let (first, valid) = (guard.is_held(), guard.validity());
                let reason = guard.lost().await.reason;
                let released = guard.release().await;
                let _ = woke.send((first, valid, reason, released.map_err(|error| error.kind())));
            });
        }
    });
    let stale = held.await.expect("the lock is held");
    let bound = ttl + bob.capabilities().takeover_slack;
    let guard = in_time(bound, "taken over from a paused holder", hold(&bob, &name)).await;
    let (first, valid, reason, released) = awake.await.expect("the process continues");
    assert!(!first && valid.is_zero(), "after a pause the guard reports held: {first}, valid for {valid:?}");
    assert_eq!((reason, released), (LossReason::Expired, Err(ErrorKind::Lost)));
    assert!(guard.fencing_token() > stale);
    tokio::time::sleep(AT_ONCE).await;
    assert!(guard.is_held() && !is_free(&bob, &name).await, "a paused holder ended the next holder's lease");
    process.join().expect("the process ends without a panic");
}

/// Invariants 5 and 6: when the holder's clock passes the validity without a timer, as after a suspend, the guard is no
/// longer held at once, and tasks that wait for the loss are notified.
pub async fn a_clock_that_jumps_ends_the_validity(fixture: &dyn Fixture) {
    let clock = Arc::new(JumpingClock::default());
    let ann = build(builder(fixture, Route::Clear).await.clock(clock.clone()));
    let ttl = fixture.ttl() * 20;
    let guard = Arc::new(ann.lock("suspend").ttl(ttl).acquire().await.expect("nothing is broken"));
    let waiting = tokio::spawn({
        let guard = guard.clone();
        async move { guard.lost().await }
    });
    tokio::time::sleep(AT_ONCE).await;
    assert!(guard.is_held());
    clock.jump(ttl);
    assert!(!guard.is_held(), "the guard reads the state of a task and not the clock");
    let loss = in_time(AT_ONCE, "a task that waits for the loss is notified", join(waiting)).await;
    assert_eq!(loss.reason, LossReason::Expired);
    eventually(AT_ONCE, "the loss is counted", async || ann.stats().lost == 1).await;
}
