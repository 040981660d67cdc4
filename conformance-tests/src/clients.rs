//! Clients of a fixture, and what the cases do with them again and again.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use leasehold_core::backend::{Capabilities, Waiting};
use leasehold_core::{Error, ErrorKind, LockClient, LockClientBuilder, LockGuard, LockName, LossReason};

use crate::fixture::{Fixture, Route};
use crate::support::{AT_ONCE, eventually, name};
use crate::timing_control::in_time;

/// So many ttls is a lease whose end plays no part in a case: nothing that takes part of a second can be mistaken for it.
pub(crate) const LONG: u32 = 25;

/// So many ttls is a lease whose renewals a case looks at and that must not be lost: the machine may stand still for a second
/// and more, and does.
const STEADY: u32 = 5;

/// The ttl of a [`steady_client`].
pub(crate) fn steady_ttl(fixture: &dyn Fixture) -> Duration {
    fixture.ttl() * STEADY
}

/// How long a client of a case waits for a lock that will be free soon.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// A client with the fixture's ttl. Its backend is already there; nothing is connected.
pub(crate) async fn builder(fixture: &dyn Fixture, route: Route) -> LockClientBuilder {
    fixture
        .tune(LockClient::builder(fixture.backend(route).await).ttl(fixture.ttl()).wait(PATIENCE).label("conformance"))
}

/// A client with the fixture's ttl, which is short: its leases are meant to end, or a busy machine may lose them.
pub(crate) async fn client(fixture: &dyn Fixture, route: Route) -> LockClient {
    build(builder(fixture, route).await)
}

/// A client with exactly the defaults of the library.
pub(crate) async fn default_client(fixture: &dyn Fixture, route: Route) -> LockClient {
    build(fixture.tune(LockClient::builder(fixture.backend(route).await)))
}

/// A client whose leases are renewed while the case looks on, and must not be lost.
pub(crate) async fn steady_client(fixture: &dyn Fixture, route: Route) -> LockClient {
    build(builder(fixture, route).await.ttl(steady_ttl(fixture)))
}

/// A client with a ttl that plays no part.
pub(crate) async fn long_client(fixture: &dyn Fixture, route: Route) -> LockClient {
    build(builder(fixture, route).await.ttl(fixture.ttl() * LONG))
}

/// A client that may also do what takes an operator's permissions.
pub(crate) async fn operator(fixture: &dyn Fixture) -> LockClient {
    build(fixture.tune(LockClient::builder(fixture.operator().await).ttl(fixture.ttl())))
}

/// A client with a ttl that plays no part, whose line to the server is good already: what breaks now breaks on its way.
pub(crate) async fn warm_client(fixture: &dyn Fixture, route: Route) -> LockClient {
    let client = long_client(fixture, route).await;
    hold(&client, &name("warm")).await.release().await.expect("a release");
    client
}

pub(crate) fn build(builder: LockClientBuilder) -> LockClient {
    builder.build().unwrap_or_else(|error| panic!("no client: {error:?}"))
}

/// Acquires what has to be granted.
#[track_caller]
pub(crate) fn hold(client: &LockClient, name: &LockName) -> impl Future<Output = LockGuard> + use<> {
    let (lock, caller) = (client.lock(name.as_str()), std::panic::Location::caller());
    async move { lock.acquire().await.unwrap_or_else(|error| panic!("not acquired: {error:?} (at {caller})")) }
}

/// Whether one attempt gets the lock; it is released again.
pub(crate) async fn is_free(client: &LockClient, name: &LockName) -> bool {
    match client.lock(name.as_str()).try_acquire().await {
        Ok(Some(guard)) => {
            guard.release().await.expect("what was just granted can be released");
            true
        }
        Ok(None) => false,
        Err(error) => panic!("an attempt failed with nothing broken: {error:?}"),
    }
}

/// Waits until one attempt gets the lock, at most for `bound`.
#[track_caller]
pub(crate) fn becomes_free(
    client: &LockClient,
    name: &LockName,
    bound: Duration,
    what: &str,
) -> impl Future<Output = ()> {
    eventually(bound, what, async || is_free(client, name).await)
}

/// What an acquire failed with.
#[track_caller]
pub(crate) fn kind_of<T: std::fmt::Debug>(outcome: &Result<T, Error>) -> ErrorKind {
    match outcome {
        Ok(value) => panic!("this had to fail, and gave {value:?}"),
        Err(error) => error.kind(),
    }
}

/// Waits until a lease is lost, at most for `bound`, and says why.
#[track_caller]
pub(crate) fn lost(guard: &LockGuard, bound: Duration, what: &str) -> impl Future<Output = LossReason> {
    let in_time = in_time(bound, what, guard.lost());
    async move { in_time.await.reason }
}

/// How soon after a release the next waiter holds.
pub(crate) fn handoff_bound(capabilities: &Capabilities) -> Duration {
    match capabilities.waiting {
        Waiting::Poll => capabilities.takeover_slack,
        _ => AT_ONCE,
    }
}

/// Waits until so many acquires of a client wait, the server knows of them where it keeps a queue, and can tell them.
#[track_caller]
pub(crate) fn queued(
    fixture: &dyn Fixture,
    client: &LockClient,
    name: &LockName,
    (here, at_server): (u64, u64),
) -> impl Future<Output = ()> {
    let keeps_queue = client.capabilities().waiting == Waiting::ServerQueue;
    let queued = eventually(Duration::from_secs(2), "the waiters stand in the queue", async move || {
        client.stats().waiting == here && (!keeps_queue || fixture.record(name).await.waiting() == at_server)
    });
    async move {
        queued.await;
        fixture.connected().await;
    }
}

/// Polls a future so many times at most, each time that it is woken, and drops it then. Its output if it has ended.
pub(crate) async fn polled<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
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
