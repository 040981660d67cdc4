//! A server that lost acknowledged data: a holder from before the loss holds its lock until its ttl is over, so the
//! client grants no lock until then. No server can promise exclusion across lost data by itself. The holder is cut off
//! here, as one that died: `put_back.rs` has those that put their leases back.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use leasehold_conformance::{Data, Fixture, PathFault, Route};
use leasehold_core::{LockClient, LockName, LossReason};

use super::support::{Redis, SOON, Stopwatch, builder, builder_by, case, client, client_by, eventually, hold};

const TTL: Duration = Duration::from_secs(4);

/// The server counts how long it runs in whole seconds.
const WHOLE_SECOND: Duration = Duration::from_secs(1);

/// How long a client may take to detect that the server is back: pauses between two attempts, and one call.
const RECONNECT: Duration = Duration::from_millis(1_400);

/// A client that [`cut_off`] reaches.
async fn holder(fixture: &Redis, ttl: Duration) -> LockClient {
    client_by(fixture, Route::Faulty, ttl).await
}

/// The clients of [`holder`] reach no server until the path heals.
async fn cut_off(fixture: &Redis) {
    fixture.path(PathFault::Disconnect).await;
}

/// Restarts the server without its data. Returns the period within which it started.
pub(super) fn lose_everything(fixture: &Redis) -> RangeInclusive<Instant> {
    fixture.server().kill().expect("it runs");
    let begun = Instant::now();
    fixture.server().start_again(Data::Lost).expect("it starts");
    begun..=Instant::now()
}

/// The earliest moment at which the lease of a lock can end, by the server's own record.
async fn lease_ends(fixture: &Redis, name: &str) -> Instant {
    let before = Instant::now();
    before + fixture.record(&LockName::new(name).unwrap()).await.lease().expect("it is held")
}

/// Waits until a client has recorded that the server was restarted.
async fn noted(fixture: &Redis) {
    eventually("a client has detected the new server", || {
        fixture.server().command(&["EXISTS", "leasehold:epoch"]).is_ok_and(|reply| reply.int() == Some(1))
    })
    .await;
}

#[test]
fn no_lock_is_granted_while_a_lease_from_before_may_be_valid() {
    case(|fixture| async move {
        let (ann, bob) = (holder(&fixture, TTL).await, client(&fixture, TTL).await);
        hold(&bob, "other").await.release().await.expect("a release");
        let guard = hold(&ann, "lost").await;
        let stopwatch = Stopwatch::start();
        cut_off(&fixture).await;
        let ends = lease_ends(&fixture, "lost").await;
        let restarted = lose_everything(&fixture);

        let next = hold(&bob, "lost").await;
        let at = Instant::now();
        assert!(at >= ends, "granted {:?} before the lease from before the restart had ended", ends - at);
        assert!(!guard.is_held(), "the holder from before still holds its lease");
        assert!(next.fencing_token() > guard.fencing_token());
        let bound = TTL + WHOLE_SECOND + RECONNECT + stopwatch.lag();
        let took = at - *restarted.end();
        assert!(took <= bound, "the wait took {took:?} of {bound:?}");
        assert!(matches!(guard.lost().await.reason, LossReason::Gone | LossReason::Expired));
    });
}

#[test]
fn a_newcomer_waits_as_well() {
    case(|fixture| async move {
        let (ann, bob) = (holder(&fixture, TTL).await, client(&fixture, TTL).await);
        hold(&bob, "other").await.release().await.expect("a release");
        let guard = hold(&ann, "lost").await;
        cut_off(&fixture).await;
        let ends = lease_ends(&fixture, "lost").await;
        lose_everything(&fixture);
        noted(&fixture).await;
        // It has never connected to the server before, and reads what Bob has written. It has a short ttl.
        let newcomer = client(&fixture, Duration::from_millis(200)).await;
        let next = newcomer.lock("lost").acquire().await.expect("the lock comes free");
        assert!(Instant::now() >= ends, "the newcomer was granted a lock that another client still held");
        assert!(!guard.is_held());
        assert!(next.fencing_token() > guard.fencing_token());
    });
}

#[test]
fn a_waiter_from_before_is_served_when_the_wait_is_over() {
    case(|fixture| async move {
        let (ann, bob) = (holder(&fixture, TTL).await, client(&fixture, TTL).await);
        let guard = hold(&ann, "lost").await;
        let waiting = tokio::spawn(async move { hold(&bob, "lost").await.fencing_token() });
        let name = LockName::new("lost").unwrap();
        while fixture.record(&name).await.waiting() == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        cut_off(&fixture).await;
        let ends = lease_ends(&fixture, "lost").await;
        lose_everything(&fixture);
        let token = tokio::time::timeout(SOON, waiting).await.expect("it is served").expect("it does not panic");
        assert!(Instant::now() >= ends, "the waiter was granted a lock that another client still held");
        assert!(token > guard.fencing_token());
    });
}

/// The time until a client with these settings gets a lock of a server that was just started without data, at least and
/// at most.
async fn first_grant(fixture: &Redis, more: &str) -> RangeInclusive<Duration> {
    let started = lose_everything(fixture);
    let client: LockClient = builder(fixture, more).await.ttl(TTL).build().expect("a client");
    hold(&client, "first").await.release().await.expect("a release");
    started.end().elapsed()..=started.start().elapsed()
}

#[test]
fn an_unknown_server_is_used_at_once_or_after_a_wait_as_configured() {
    case(|fixture| async move {
        let stopwatch = Stopwatch::start();
        let took = first_grant(&fixture, "").await;
        assert!(*took.start() <= TTL / 2 + stopwatch.lag(), "this server was unknown: {took:?}");
        let took = first_grant(&fixture, "&restart=quarantine").await;
        assert!(*took.end() >= TTL, "a client may hold a lock of the server's last run: {took:?}");
    });
}

#[test]
fn trust_never_waits() {
    case(|fixture| async move {
        let ann = builder_by(&fixture, Route::Faulty, "&restart=trust").await.ttl(TTL * 4).build().expect("a client");
        let guard = hold(&ann, "trust").await;
        let stopwatch = Stopwatch::start();
        cut_off(&fixture).await;
        lose_everything(&fixture);
        let other = builder(&fixture, "&restart=trust").await.ttl(TTL * 4).build().expect("a client");
        let next = hold(&other, "trust").await;
        stopwatch.within(TTL / 2, "trust does not wait");
        fixture.heal().await;
        // Exclusion ends here, as the capabilities state. The order of the tokens does not.
        assert!(next.fencing_token() > guard.fencing_token());
        assert_eq!(guard.lost().await.reason, LossReason::Gone);
    });
}

#[test]
fn with_its_data_a_server_keeps_holders_and_makes_newcomers_wait() {
    case(|fixture| async move {
        let (ann, bob) = (client(&fixture, TTL).await, client(&fixture, TTL).await);
        hold(&bob, "other").await.release().await.expect("a release");
        let guard = hold(&ann, "kept").await;
        fixture.server().kill().expect("it runs");
        fixture.server().start_again(Data::Kept).expect("it starts");
        assert!(bob.lock("kept").wait(TTL * 2).acquire().await.is_err(), "another got a lock that is held");
        assert!(guard.is_held(), "{:?}", ann.stats());
        let token = guard.fencing_token();
        guard.release().await.expect("a release");
        assert!(hold(&bob, "kept").await.fencing_token() > token);
    });
}
