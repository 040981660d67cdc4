//! Sessions: their end at the server, and the end of those that the client gives up.

use std::sync::Arc;
use std::time::Duration;

use leasehold::zk::ZkBackend;
use leasehold_conformance::{Direct, Fixture, PathFault, Route, ServerFault};
use leasehold_core::backend::{Claim, Delivery, OwnerToken};
use leasehold_core::{HolderInfo, KeeperRuntime, LockClient};

use super::common::{SOON, Stopwatch, eventually, hold};
use super::fixture::ROOT;
use super::stored::Stored;
use super::support::{case, client, name, queue};

/// The ttl of sessions whose end is measured.
const TTL: Duration = Duration::from_secs(4);

/// How late that end may be: a session is two ticks of the URL longer, and the server ends it with a tick of its own.
const SLACK: Duration = Duration::from_millis(1200);

/// A server may not reply to a client that reconnects while its session ends. The bound of a call is a second.
const SILENCE: Duration = Duration::from_secs(3);

/// The session ends at the server while its client holds, waits, or is about to release.
#[test]
fn an_ended_session_is_reported_once_and_replaced() {
    case(async |fixture| {
        let ttl = Duration::from_secs(30);
        let (ann, bob) = (client(&fixture, ttl).await, client(&fixture, ttl).await);
        let name = name("expired");
        let session_of =
            |index: usize| Stored { side: fixture.deployment().side(), root: ROOT }.queue(&name)[index].session;
        let expire = |session: i64| fixture.deployment().side().expire(session).expect("the session ends");

        // While it holds.
        let guard = hold(&ann, name.as_str()).await;
        expire(session_of(0));
        let stopwatch = Stopwatch::start();
        guard.lost().await;
        stopwatch.within(SILENCE, "the loss is reported");
        assert_eq!(ann.stats().lost, 1);
        drop(guard);
        // A new session serves new locks.
        let guard = hold(&ann, name.as_str()).await;

        // While the other one waits: it gets another place.
        let waiter = {
            let lock = bob.lock(name.as_str());
            tokio::spawn(async move { lock.acquire().await.expect("its turn comes") })
        };
        eventually("bob waits", || queue(&fixture, &name) == 2).await;
        let former = session_of(1);
        expire(former);
        let queue_of = || Stored { side: fixture.deployment().side(), root: ROOT }.queue(&name);
        eventually("bob waits again", || matches!(&queue_of()[..], [_, bob] if bob.session != former)).await;
        let stopwatch = Stopwatch::start();
        guard.release().await.expect("a release");
        let next = waiter.await.expect("no panic");
        stopwatch.within(Duration::from_secs(2), "the waiter holds");

        // Just before its release, which has nothing to release.
        expire(session_of(0));
        let _ = next.release().await;
        let stopwatch = Stopwatch::start();
        hold(&ann, name.as_str()).await.release().await.expect("a release");
        stopwatch.within(Duration::from_secs(2), "the lock is free");
        assert_eq!(ann.stats().lost, 1, "one loss is reported once");
    });
}

/// On a slow path, a new session takes most of a call, and the request after it has no reply in the rest. That says
/// nothing about the connection. If the client closed it, the next calls would fail as well.
#[test]
fn a_session_that_took_most_of_a_call_keeps_its_connection() {
    case(async |fixture| {
        // A session takes two and a half round trips: 3.4 s of 4.
        fixture.path(PathFault::Delay(Duration::from_millis(680))).await;
        let url = fixture.url(Route::Faulty, "").replace("timeout=1s", "timeout=4s");
        let client = LockClient::new(ZkBackend::connect_lazy(&url).expect("a backend"));
        let guard = client.lock("slow session").ttl(SOON).acquire().await.expect("a slow path is no fault");
        let accepted: u64 = fixture.proxies().map(|proxy| proxy.stats().accepted).sum();
        assert_eq!(accepted, 1);
        drop(guard);
    });
}

/// A server whose replies are lost still counts an attempt to connect as activity of the session. So clients must not
/// connect for a session whose leases have ended.
#[test]
fn a_session_without_replies_ends_soon_after_its_leases() {
    const CLIENTS: usize = 48;
    case(async |fixture| {
        let mut holders = Vec::new();
        for index in 0..CLIENTS {
            let builder = LockClient::builder(fixture.backend(Route::Faulty).await).ttl(TTL);
            let client = builder.keeper(KeeperRuntime::CurrentRuntime).build().expect("a client");
            let name = name(&format!("half-open {index}"));
            let guard = hold(&client, name.as_str()).await;
            holders.push((name, guard, client));
        }
        fixture.path(PathFault::LoseReplies).await;
        for (_, guard, _) in &holders {
            guard.lost().await;
        }
        let stopwatch = Stopwatch::start();
        let is_open = |(name, ..): &(_, _, _)| queue(&fixture, name) == 1;
        assert!(holders.iter().any(is_open), "the sessions have ended already, so this proves nothing");
        eventually("every session ends", || fixture.statistic("ephemerals_count") == 0).await;
        stopwatch.within(TTL + SLACK, "the sessions end");
    });
}

/// The request that ends a session is lost, and then replies are. The client does not prolong the session.
#[test]
fn a_session_whose_end_is_lost_is_not_prolonged() {
    const BEFORE: Duration = Duration::from_millis(1500);
    case(async |fixture| {
        // With this longer bound, the client does not notice the silence before it ends the session.
        let url = fixture.url(Route::Faulty, "").replace("timeout=1s", "timeout=3s");
        let backend = ZkBackend::connect_lazy(&url).expect("a URL");
        let client = LockClient::builder(backend).ttl(TTL).build().expect("a client");
        let sessions = || fixture.session_nodes().len();
        let guard = hold(&client, "its end is lost").await;
        eventually("the session is confirmed", || sessions() == 1).await;
        guard.release().await.expect("a release");
        // A session without claims ends after its ttl.
        tokio::time::sleep(TTL - BEFORE).await;
        fixture.path(PathFault::DropTraffic).await;
        let stopwatch = Stopwatch::start();
        tokio::time::sleep(BEFORE * 2).await;
        assert_eq!(sessions(), 1, "the request arrived, so this proves nothing");
        fixture.path(PathFault::LoseReplies).await;
        eventually("the session ends", || sessions() == 0).await;
        // A session that is prolonged ends two ttls after the fault.
        stopwatch.within(TTL + SLACK, "the session ends");
    });
}

/// A server whose replies are lost prolongs a session with each connection. So a client whose lease is almost over does
/// not connect.
#[test]
fn a_session_is_not_continued_at_the_end_of_its_ttl() {
    case(async |fixture| {
        let backend = fixture.backend(Route::Faulty).await;
        let client = LockClient::builder(backend).ttl(TTL).build().expect("a client");
        hold(&client, "warm").await.release().await.expect("a release");
        let guard = client.lock("almost over").without_renewal().acquire().await.expect("a lease");
        let granted = Stopwatch::start();
        // The path accepts connections, and ends them at once.
        fixture.server(ServerFault::Kill).await.expect("a kill");
        let accepted = || fixture.proxies().map(|proxy| proxy.stats().accepted).sum::<u64>();
        let before = accepted();
        tokio::time::sleep(TTL * 3 / 4 - granted.elapsed()).await;
        assert!(accepted() > before, "the client does not connect, so this proves nothing");
        let end = Stopwatch::start();
        let (mut seen, mut last) = (accepted(), granted.elapsed());
        while granted.elapsed() < TTL {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let now = accepted();
            if now != seen {
                (seen, last) = (now, granted.elapsed());
            }
        }
        assert!(!guard.is_held());
        let bound = TTL - TTL / 8 + end.lag();
        assert!(last <= bound, "the client has connected {last:?} after a lease of {TTL:?} was granted");
    });
}

/// A claim is withdrawn whose creation had no reply. Its session ends earlier for the client than at the server, and
/// only then is it done.
#[test]
fn a_withdraw_in_an_ended_session_is_done_when_its_node_is_gone() {
    const SHORT: Duration = Duration::from_secs(2);
    case(async |fixture| {
        let ann = Direct::new(&fixture, Route::Faulty).await;
        ann.granted(&ann.claim(&name("opens the session")), SHORT).await;
        let name = name("in doubt");
        let claim = ann.claim(&name);
        fixture.path(PathFault::LoseReplies).await;
        let begin = Stopwatch::start();
        assert!(ann.acquire(&claim, SHORT).await.is_err(), "the reply was lost");
        assert_eq!(queue(&fixture, &name), 1);
        let mut is_healed = false;
        while ann.release(&claim, Delivery::InDoubt).await.is_err() {
            if !is_healed && begin.elapsed() > SHORT + SHORT / 4 {
                fixture.heal().await;
                is_healed = true;
            }
            begin.within(SHORT * 8, "the withdraw is done");
        }
        assert_eq!(queue(&fixture, &name), 0, "the withdraw is reported as done, and the node is there");
    });
}

/// A session outlives its claims, and keeps nothing of those that have ended.
#[test]
fn a_session_forgets_the_claims_that_have_ended() {
    const CLAIMS: u128 = 100;
    // The session does not end meanwhile.
    const LONG: Duration = Duration::from_secs(120);
    case(async |fixture| {
        let ann = Direct::warm(&fixture, Route::Clear).await;
        let holder = Arc::new(HolderInfo::of_this_process("forgotten").expect("a label"));
        for index in 0..CLAIMS {
            let claim = Claim::new(name("forgotten"), OwnerToken::from_bytes(index.to_be_bytes()), holder.clone());
            ann.granted(&claim, LONG).await;
            let delivery = if index % 2 == 0 { Delivery::Confirmed } else { Delivery::InDoubt };
            ann.release(&claim, delivery).await.expect("a release");
        }
        eventually("all claims are forgotten", || Arc::strong_count(&holder) == 1).await;
    });
}

/// The leader counts a session from the activity that it knows of, and not from a write. A client whose process was
/// paused has had none, so its next lease is shorter than its ttl.
#[test]
fn a_lease_after_a_pause_counts_from_the_activity_before_it() {
    const TTL: Duration = Duration::from_secs(20);
    const PAUSE: Duration = Duration::from_secs(2);
    /// Two ticks of the URL.
    const MORE: Duration = Duration::from_millis(400);
    case(async |fixture| {
        let url = fixture.url(Route::Clear, "").replace("timeout=1s", "timeout=10s");
        let backend = Arc::new(ZkBackend::connect_lazy(&url).expect("a URL"));
        let paused = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let ann = Direct::attach(backend);
                ann.granted(&ann.claim(&name("before")), TTL).await;
                let before = ann.now();
                std::thread::sleep(PAUSE);
                let after = ann.granted(&ann.claim(&name("after")), TTL).await.confirmation;
                (before, after)
            })
        });
        let (before, after) = paused.await.expect("no panic");
        let (end, longest) = (after.sent.plus(after.ttl), before.plus(TTL + MORE));
        assert!(end <= longest, "the lease lasts {:?} longer than the session may", end.since(longest));
    });
}
