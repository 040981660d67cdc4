//! Calls that are dropped at any await leave clean connections: no open transaction, and no reply that the next call
//! takes for its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::mysql::MySqlBackend;
use leasehold_conformance::{Direct, Fixture, PathFault, Route, polled};
use leasehold_core::backend::{AcquireOutcome, Claim, Delivery, ReleaseOutcome, RenewReply, RenewRequest};
use leasehold_core::{ErrorKind, LockName};

use super::strategy::MySqlFixture;
use super::support::{SOON, case};

const TTL: Duration = Duration::from_secs(30);

/// More awaits than any call has.
const MOST_AWAITS: usize = 2_000;

/// How long requests and replies take.
const DELAY: Duration = Duration::from_micros(300);

/// A call of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Acquire,
    AcquireHeld,
    TryAcquireHeld,
    Renew,
    Release,
    Withdraw,
    Inspect,
    List,
    Break,
    Examine,
}

const CALLS: [Call; 10] = [
    Call::Acquire,
    Call::AcquireHeld,
    Call::TryAcquireHeld,
    Call::Renew,
    Call::Release,
    Call::Withdraw,
    Call::Inspect,
    Call::List,
    Call::Break,
    Call::Examine,
];

/// A client whose first call has to connect.
fn cold(fixture: &MySqlFixture) -> Direct {
    let backend = MySqlBackend::connect_lazy(&fixture.url(Route::Faulty, "&connections=1"));
    Direct::attach(Arc::new(backend.expect("the URL is right")))
}

fn name(text: &str) -> LockName {
    LockName::new(text).expect("a name")
}

/// Runs the call for `claim`, or about the lock of `held`.
async fn run(call: Call, ann: &Direct, claim: &Claim, held: &Claim) {
    let admin = ann.backend().admin().expect("supported");
    let renewal = RenewRequest::new(held.clone(), leasehold_core::backend::PlaceNumber::NONE, TTL);
    match call {
        Call::Acquire | Call::AcquireHeld => drop(ann.acquire(claim, TTL).await),
        Call::TryAcquireHeld => drop(ann.try_acquire(claim, TTL).await),
        Call::Renew => drop(ann.renew(renewal).await),
        Call::Release => drop(ann.release(held, Delivery::Confirmed).await),
        Call::Withdraw => drop(ann.release(held, Delivery::InDoubt).await),
        Call::Inspect => drop(admin.inspect(held.name()).await),
        Call::List => drop(admin.list("", 10).await),
        Call::Break => {
            let token = leasehold_core::FencingToken::new(1);
            drop(admin.break_lock(held.name(), token).await);
        }
        Call::Examine => drop(admin.examine().await),
    }
}

/// The next calls of the client have the replies that belong to them.
async fn has_the_right_replies(ann: &Direct, bob: &Direct, what: &str) {
    let name = name("afterwards");
    let (first, second) = (ann.claim(&name), ann.claim(&name));
    let until = Instant::now() + SOON;
    let grant = loop {
        match ann.acquire(&first, TTL).await {
            Ok(AcquireOutcome::Granted(grant)) => break grant,
            // A call that was dropped may have its connection until it ends.
            Err(error) if error.kind() == ErrorKind::Unavailable && Instant::now() < until => {}
            other => panic!("{what}: {other:?}"),
        }
    };
    let refused = ann.try_acquire(&second, TTL).await;
    assert!(matches!(refused, Ok(AcquireOutcome::Contended { .. })), "{what}: {refused:?}");
    let renewal = RenewRequest::new(first.clone(), grant.confirmation.place, TTL);
    let renewed = ann.renew(renewal).await;
    assert!(matches!(renewed, RenewReply::Renewed(_)), "{what}: {renewed:?}");
    let seen = ann.backend().admin().expect("supported").inspect(&name).await;
    let seen = seen.unwrap_or_else(|error| panic!("{what}: {error:?}")).expect("it is held");
    assert_eq!(seen.holder().map(|lease| lease.token), Some(grant.token), "{what}");
    let released = ann.release(&first, Delivery::Confirmed).await;
    assert!(matches!(released, Ok(ReleaseOutcome::Released)), "{what}: {released:?}");
    let other = bob.claim(&name);
    let next = bob.granted(&other, TTL).await;
    assert!(next.token > grant.token, "{what}");
    bob.release(&other, Delivery::Confirmed).await.expect("a release");
}

/// Drops the call at each of its awaits. Returns how many it has.
async fn drop_at_every_await(fixture: &MySqlFixture, call: Call, is_cold: bool) -> usize {
    let bob = Direct::new(fixture, Route::Clear).await;
    for times in 0..MOST_AWAITS {
        let what = format!("{call:?}, dropped at await {times}, {}", if is_cold { "cold" } else { "warm" });
        let held = match call {
            Call::AcquireHeld | Call::TryAcquireHeld => bob.claim(&name("held")),
            _ => bob.claim(&name("own")),
        };
        // The client of the call holds the lock, unless the call has to connect. A renewal opens a connection of its
        // own in any case. A release that changes no row ends the transaction on the connection of the lease, whichever
        // client calls it.
        let ann = cold(fixture);
        let runs_as_holder = call == Call::Renew || call == Call::Release && !MySqlFixture::RENEWALS_WRITE;
        let is_other = held.name().as_str() == "held" || is_cold && !runs_as_holder;
        let holder = if is_other { &bob } else { &ann };
        if call != Call::Acquire {
            holder.granted(&held, TTL).await;
        }
        if !is_cold {
            has_the_right_replies(&ann, &bob, &what).await;
        }
        let claim = ann.claim(held.name());
        let ended = polled(times + 1, run(call, &ann, &claim, &held)).await.is_some();
        // As lock-core does with a claim whose call was dropped.
        ann.release(&claim, Delivery::InDoubt).await.unwrap_or_else(|error| panic!("{what}: {error:?}"));
        has_the_right_replies(&ann, &bob, &what).await;
        holder.release(&held, Delivery::InDoubt).await.unwrap_or_else(|error| panic!("{what}: {error:?}"));
        let until = Instant::now() + SOON;
        loop {
            let counts = fixture.resource_counts().await;
            if counts.is_clean() {
                break;
            }
            assert!(Instant::now() < until, "{what}: {counts:?} stay");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if ended {
            return times;
        }
    }
    panic!("{call:?} does not end");
}

async fn drop_calls(fixture: &MySqlFixture, is_cold: bool) {
    // Without the delay, a reply has sometimes arrived before the call waits for it.
    fixture.path(PathFault::Delay(DELAY)).await;
    for call in CALLS {
        let awaits = drop_at_every_await(fixture, call, is_cold).await;
        println!("{call:?}: {awaits} awaits");
        assert!(awaits > 0, "{call:?} never waits");
    }
}

#[test]
fn warm_calls_can_be_dropped_at_every_await() {
    case(async |fixture| drop_calls(&fixture, false).await);
}

#[test]
fn calls_that_connect_can_be_dropped_at_every_await() {
    case(async |fixture| drop_calls(&fixture, true).await);
}
