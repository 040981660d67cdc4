//! Clients of a fixture, and common operations on them.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use leasehold_core::backend::{Capabilities, Waiting};
use leasehold_core::{Error, ErrorKind, LockClient, LockClientBuilder, LockGuard, LockName, LossReason, Result};

use crate::fixture::{Fixture, Route};
use crate::support::{AT_ONCE, eventually, name};
use crate::timing_control::in_time;

/// The ttl of a lease that does not end during a case, in ttls of the fixture: no delay of less than a second can be
/// confused with its end.
pub(crate) const LONG: u32 = 25;

/// The ttl of a lease whose renewals a case observes and that must not be lost, in ttls of the fixture. The machine may
/// pause for more than a second.
const STEADY: u32 = 5;

/// The ttl of a [`steady_client`].
pub(crate) fn steady_ttl(fixture: &dyn Fixture) -> Duration {
    fixture.ttl() * STEADY
}

/// How long a client of a case waits for a lock that will be free soon.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// A builder with the fixture's ttl. Its backend exists; nothing is connected.
pub(crate) async fn builder(fixture: &dyn Fixture, route: Route) -> LockClientBuilder {
    fixture
        .tune(LockClient::builder(fixture.backend(route).await).ttl(fixture.ttl()).wait(PATIENCE).label("conformance"))
}

/// A client with the fixture's ttl, which is short: its leases may end, and a busy machine may lose them.
pub(crate) async fn client(fixture: &dyn Fixture, route: Route) -> LockClient {
    build(builder(fixture, route).await)
}

/// A client with exactly the defaults of the library.
pub(crate) async fn default_client(fixture: &dyn Fixture, route: Route) -> LockClient {
    build(fixture.tune(LockClient::builder(fixture.backend(route).await)))
}

/// A client whose leases the case observes and that must not be lost.
pub(crate) async fn steady_client(fixture: &dyn Fixture, route: Route) -> LockClient {
    build(builder(fixture, route).await.ttl(steady_ttl(fixture)))
}

/// A client whose leases do not end during a case.
pub(crate) async fn long_client(fixture: &dyn Fixture, route: Route) -> LockClient {
    build(builder(fixture, route).await.ttl(long_ttl(fixture)))
}

/// The ttl of the leases of a [`long_client`].
pub(crate) fn long_ttl(fixture: &dyn Fixture) -> Duration {
    fixture.ttl() * LONG
}

/// A client with an operator's permissions.
pub(crate) async fn operator(fixture: &dyn Fixture) -> LockClient {
    build(fixture.tune(LockClient::builder(fixture.operator().await).ttl(fixture.ttl())))
}

/// The reply to an operator, which must not fail. `None` if the backend lacks this function, and fails as `NoAdmin` does:
/// another `Unsupported`, about a record for example, is a failure.
#[track_caller]
pub(crate) fn offered<T>(what: &str, reply: Result<T>) -> Option<T> {
    let is_lacking =
        |error: &Error| error.kind() == ErrorKind::Unsupported && error.to_string().contains("this backend cannot ");
    match reply {
        Err(error) if is_lacking(&error) => None,
        reply => Some(reply.expect(what)),
    }
}

/// A client whose leases do not end during a case, with an established connection: a fault then meets a request and not
/// a first connection.
pub(crate) async fn warm_client(fixture: &dyn Fixture, route: Route) -> LockClient {
    let client = long_client(fixture, route).await;
    hold(&client, &name("warm")).await.release().await.expect("a release");
    client
}

pub(crate) fn build(builder: LockClientBuilder) -> LockClient {
    builder.build().unwrap_or_else(|error| panic!("no client: {error:?}"))
}

/// Acquires a lock that must be granted.
#[track_caller]
pub(crate) fn hold(client: &LockClient, name: &LockName) -> impl Future<Output = LockGuard> + use<> {
    let (lock, caller) = (client.lock(name.as_str()), std::panic::Location::caller());
    async move { lock.acquire().await.unwrap_or_else(|error| panic!("not acquired: {error:?} (at {caller})")) }
}

/// Whether one attempt acquires the lock. The lock is released again.
pub(crate) async fn is_free(client: &LockClient, name: &LockName) -> bool {
    match client.lock(name.as_str()).try_acquire().await {
        Ok(Some(guard)) => {
            guard.release().await.expect("a granted lock can be released");
            true
        }
        Ok(None) => false,
        Err(error) => panic!("an attempt failed without a fault: {error:?}"),
    }
}

/// Waits until one attempt acquires the lock, at most for `bound`.
#[track_caller]
pub(crate) fn becomes_free(
    client: &LockClient,
    name: &LockName,
    bound: Duration,
    what: &str,
) -> impl Future<Output = ()> {
    eventually(bound, what, async || is_free(client, name).await)
}

/// The kind of an acquire's error.
#[track_caller]
pub(crate) fn kind_of<T: std::fmt::Debug>(outcome: &Result<T, Error>) -> ErrorKind {
    match outcome {
        Ok(value) => panic!("this must fail, and returned {value:?}"),
        Err(error) => error.kind(),
    }
}

/// Waits until a lease is lost, at most for `bound`, and says why.
#[track_caller]
pub(crate) fn lost(guard: &LockGuard, bound: Duration, what: &str) -> impl Future<Output = LossReason> {
    let in_time = in_time(bound, what, guard.lost());
    async move { in_time.await.reason }
}

/// The bound within which the next waiter acquires the lock after a release.
pub(crate) fn handoff_bound(capabilities: &Capabilities) -> Duration {
    match capabilities.waiting {
        Waiting::Poll => capabilities.takeover_slack,
        _ => AT_ONCE,
    }
}

/// How long a waiter with this ttl polls at the latest after its last poll, or renews its place.
pub(crate) fn poll_bound(capabilities: &Capabilities, ttl: Duration) -> Duration {
    ttl.min(capabilities.max_place_ttl) / 3
}

/// Waits until this many acquires of a client wait, are in the queue if the server keeps one, and can be notified.
#[track_caller]
pub(crate) fn queued(
    fixture: &dyn Fixture,
    client: &LockClient,
    name: &LockName,
    (here, at_server): (u64, u64),
) -> impl Future<Output = ()> {
    let keeps_queue = client.capabilities().waiting == Waiting::ServerQueue;
    let queued = eventually(Duration::from_secs(2), "the waiters are in the queue", async move || {
        client.stats().waiting == here && (!keeps_queue || fixture.record(name).await.waiting() == at_server)
    });
    async move {
        queued.await;
        fixture.connected().await;
    }
}

/// Polls a future at most this many times, each time it is woken, and then drops it. Returns its output if it has
/// ended.
pub async fn polled<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| {
        if left > 0 {
            left -= 1;
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
        }
        if left == 0 { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}
