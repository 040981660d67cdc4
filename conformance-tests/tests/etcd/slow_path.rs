//! Replies that take longer than the bound of a call.

use std::sync::Arc;
use std::time::Duration;

use leasehold::etcd::EtcdBackend;
use leasehold_conformance::harness::{Fault, FaultProxy};
use leasehold_conformance::{DEADLINE, Direct, Fixture, PathFault, Route, run};
use leasehold_core::backend::{Confirmation, Delivery, ReleaseOutcome, RenewReply, RenewRequest, Stamp};
use leasehold_core::{ErrorKind, LockClient, LockName};
use leasehold_test_servers::EtcdSettings;

use super::common::{SOON, Stopwatch, eventually};
use super::fixture::PREFIX;
use super::one_member::OneMember;
use super::stored::Stored;
use super::support::case;

/// A request and its reply take longer than the bound of a call, which is one second.
const DELAY: Duration = Duration::from_millis(600);

fn accepted(fixture: &OneMember) -> u64 {
    fixture.proxies().map(|proxy| proxy.stats().accepted).sum()
}

/// How many sessions were requested of the server.
fn sessions(fixture: &OneMember) -> u64 {
    let statistics = fixture.deployment().side().statistics().expect("statistics");
    statistics.requests().get("LeaseGrant").copied().unwrap_or_default()
}

/// Otherwise a client that needs longer to connect than a call may take would start over for ever.
#[test]
fn an_attempt_to_connect_outlives_the_calls_that_wait_for_it() {
    case(async |fixture| {
        fixture.path(PathFault::Delay(DELAY)).await;
        let client = LockClient::new(fixture.backend(Route::Faulty).await);
        let connected = async {
            while sessions(&fixture) == 0 {
                client.lock("x").try_acquire().await.expect_err("a reply in time");
            }
        };
        tokio::time::timeout(SOON, connected).await.expect("the client connects");
    });
}

/// Otherwise an overloaded server would also have to log in again each client that it keeps waiting.
#[test]
fn a_late_reply_saves_the_connection() {
    const ROUNDS: u64 = 5;
    case(async |fixture| {
        let (ann, bob) = (Direct::warm(&fixture, Route::Faulty).await, Direct::warm(&fixture, Route::Clear).await);
        let name = LockName::new("held").expect("a name");
        let ttl = fixture.ttl() * 20;
        bob.granted(&bob.claim(&name), ttl).await;
        let before = accepted(&fixture);
        fixture.path(PathFault::Delay(DELAY)).await;
        for _ in 0..ROUNDS {
            ann.try_acquire(&ann.claim(&name), ttl).await.expect_err("a reply in time");
            // The late reply arrives.
            tokio::time::sleep(DELAY).await;
        }
        // A busy machine may delay it once more.
        let opened = accepted(&fixture) - before;
        assert!(opened < ROUNDS - 1, "{opened} connections were opened");
    });
}

/// The server counts from when it receives a request. A client that counts from the reply believes in its lease for too
/// long.
#[test]
fn a_confirmation_counts_from_before_its_request() {
    const DELAY: Duration = Duration::from_millis(300);
    run(DEADLINE, || async {
        let server = EtcdSettings::new().start().unwrap_or_else(|error| panic!("{error}"));
        let proxy = FaultProxy::start(server.addr()).expect("a proxy");
        let backend = async |addr| {
            let url = format!("etcd://{addr}/?timeout=10s");
            Direct::attach(Arc::new(EtcdBackend::connect(&url).await.expect("a backend")))
        };
        let (ann, bob) = (backend(proxy.addr()).await, backend(server.addr()).await);
        let names = ["free", "held"].map(|name| LockName::new(name).expect("a name"));
        let ttl = Duration::from_secs(8);
        // Both clients connect first.
        ann.granted(&ann.claim(&LockName::new("warm").expect("a name")), ttl * 2).await;
        bob.granted(&bob.claim(&names[1]), ttl * 2).await;
        proxy.apply(Fault::Delay { requests: DELAY, replies: DELAY });
        let early = |before: Stamp, confirmation: &Confirmation, lag: Duration| {
            let late = confirmation.sent.since(before);
            assert!(late < DELAY + lag, "it counts from {late:?} after the call began");
        };
        // The first request opens a session.
        let (before, stopwatch) = (ann.now(), Stopwatch::start());
        let grant = ann.granted(&ann.claim(&names[0]), ttl).await;
        early(before, &grant.confirmation, stopwatch.lag());
        // A waiter sends a keep-alive.
        let waiter = ann.claim(&names[1]);
        let place = ann.not_granted(&waiter, ttl).await;
        let (before, stopwatch) = (ann.now(), Stopwatch::start());
        match ann.renew(RenewRequest::new(waiter, place, ttl)).await {
            RenewReply::Waiting { confirmation, .. } => early(before, &confirmation, stopwatch.lag()),
            reply => panic!("{reply:?}"),
        }
    });
}

/// The key of a claim is there, and nothing says for how long: the claim may hold the lock while other leases keep its
/// session alive. With an error that promises no effect, nobody would delete the key.
#[test]
fn a_key_without_a_confirmation_leaves_a_doubt() {
    const LATE: Duration = Duration::from_millis(300);
    case(async |fixture| {
        let ann = Direct::warm(&fixture, Route::Faulty).await;
        // A claim with such a ttl enters the queue first, and is confirmed by a second request.
        let (ttl, lock) = (Duration::from_secs(6), LockName::new("doubt").expect("a name"));
        ann.granted(&ann.claim(&LockName::new("other").expect("a name")), ttl).await;
        // Until the confirmation of the session is too old for another grant.
        tokio::time::sleep(ttl / 8).await;
        let apply = |fault| fixture.proxies().for_each(|proxy| proxy.apply(fault));
        apply(Fault::Delay { requests: Duration::ZERO, replies: LATE });
        let has_key = || {
            let deployment = fixture.deployment();
            let stored = Stored { side: deployment.side(), prefix: PREFIX };
            !stored.queue(&lock).is_empty()
        };
        let breaks = async {
            eventually("the key is there", has_key).await;
            // The reply is on its way. The next request does not arrive.
            apply(Fault::HoldRequests);
        };
        let claim = ann.claim(&lock);
        let (outcome, ()) = tokio::join!(ann.acquire(&claim, ttl), breaks);
        let error = outcome.expect_err("no confirmation");
        assert!(error.kind() == ErrorKind::Indeterminate && has_key(), "{error:?}");
        fixture.heal().await;
        let released = ann.release(&claim, Delivery::InDoubt).await;
        assert!(matches!(released, Ok(ReleaseOutcome::Released)) && !has_key(), "{released:?}");
    });
}
