//! A lease that is kept by a connection: who ends the connection, and what follows.

use std::sync::Arc;
use std::time::Duration;

use leasehold::mysql::{MySqlBackend, grants};
use leasehold_conformance::harness::{Fault, FaultProxy, Reach};
use leasehold_conformance::{Data, Direct, Fixture, PathFault, Route, ServerFault, Tamper};
use leasehold_core::backend::{AcquireOutcome, Delivery, ReleaseOutcome, RenewReply, RenewRequest};
use leasehold_core::{ErrorKind, LockClient, LockName, LossReason};

use super::idle_limits::{holders, url_by};
use super::record_for_update::WAITS;
use super::resource_counts::CLIENTS;
use super::stored::Stored;
use super::strategy::MySqlFixture;
use super::support::{SOON, Stopwatch, case, client, eventually, hold, own_servers};

/// Between two attempts of a call.
const PAUSE: Duration = Duration::from_millis(5);

/// The connection that holds the only lock.
fn holder(fixture: &MySqlFixture) -> String {
    let ids = holders(fixture);
    let [id] = &ids[..] else { panic!("{} locks are held", ids.len()) };
    id.clone()
}

/// A connection that waits for a lock.
fn waiter(fixture: &MySqlFixture) -> Option<String> {
    let rows = Stored(&*fixture.server()).query(&format!("SELECT CAST(id AS CHAR) FROM {CLIENTS} AND {WAITS}"));
    let id = rows.first().and_then(|row| row[0].clone())?;
    Some(String::from_utf8_lossy(&id).into_owned())
}

fn kill(fixture: &MySqlFixture, id: &str) {
    fixture.server().query(&format!("KILL {id}")).expect("it is there");
}

#[test]
fn a_killed_session_loses_the_lease_and_its_holder_learns_of_it() {
    case(async |fixture| {
        let (ttl, bobs) = (Duration::from_secs(3), client(&fixture, SOON).await);
        let ann = client(&fixture, ttl).await;
        let guard = hold(&ann, "killed session").await;
        let lock = bobs.lock("killed session");
        let waiting = tokio::spawn(async move { lock.acquire().await.expect("it becomes free") });
        eventually("bob waits", || bobs.stats().waiting == 1).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let stopwatch = Stopwatch::start();
        kill(&fixture, &holder(&fixture));
        let next = waiting.await.expect("no panic");
        stopwatch.within(Duration::from_millis(100), "the next holder is granted the lock at once");
        assert!(next.fencing_token() > guard.fencing_token());
        let loss = tokio::time::timeout(ttl, guard.lost()).await.expect("the next renewal tells the holder");
        assert_eq!(loss.reason, LossReason::Gone);
        stopwatch.within(ttl / 2, "the holder learns of it by its next renewal");
    });
}

#[test]
fn a_killed_waiter_still_gets_the_lock() {
    case(async |fixture| {
        let (ann, bob) = (client(&fixture, SOON).await, client(&fixture, SOON).await);
        let guard = hold(&ann, "killed waiter").await;
        let lock = bob.lock("killed waiter");
        let waiting = tokio::spawn(async move { lock.acquire().await.expect("it becomes free") });
        for what in ["KILL", "KILL QUERY"] {
            eventually("bob waits", || waiter(&fixture).is_some()).await;
            let id = waiter(&fixture).expect("bob waits");
            fixture.server().query(&format!("{what} {id}")).expect("it is there");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        guard.release().await.expect("a release");
        let next = tokio::time::timeout(SOON, waiting).await.expect("bob waits again").expect("no panic");
        assert!(next.is_held());
    });
}

/// The server still grants the row to it, and sees no client. It takes the row back when the connection was silent for a
/// little longer than a call, and not only after the ttl of a place.
#[test]
fn a_waiter_whose_connection_is_lost_on_the_path_delays_the_next_one_by_seconds() {
    case(async |fixture| {
        let ann = client(&fixture, SOON).await;
        let guard = hold(&ann, "silent waiter").await;
        let silent = Direct::new(&fixture, Route::Faulty).await;
        silent.not_granted(&silent.claim(&LockName::new("silent waiter").expect("a name")), SOON).await;
        eventually("it waits at the server", || waiter(&fixture).is_some()).await;
        // Between two slices, the server would have nobody to grant the row to.
        let slice = waiter(&fixture).expect("it waits");
        fixture.path(PathFault::DropTraffic).await;
        let stopwatch = Stopwatch::start();
        guard.release().await.expect("a release");
        eventually("the lost connection has the row", || holders(&fixture) == [slice.clone()]).await;
        let next = hold(&ann, "silent waiter").await;
        // `timeout` is a second.
        stopwatch.within(Duration::from_secs(4), "the row is taken back");
        assert!(next.is_held());
    });
}

/// On a slow path, or of many releases at once, the reply to a release comes after the bound of its call.
#[test]
fn a_release_whose_reply_is_late_is_no_loss() {
    case(async |fixture| {
        let (ann, name) = (Direct::new(&fixture, Route::Faulty).await, LockName::new("late reply").expect("a name"));
        let claim = ann.claim(&name);
        ann.granted(&claim, SOON).await;
        // `timeout` is a second.
        fixture.path(PathFault::Delay(Duration::from_millis(600))).await;
        let error = ann.release(&claim, Delivery::Confirmed).await.expect_err("the reply is late");
        assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
        eventually("the server has released the lock", || holders(&fixture).is_empty()).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        fixture.heal().await;
        let outcome = ann.release(&claim, Delivery::InDoubt).await.expect("a reply");
        assert_eq!(outcome, ReleaseOutcome::Released);
    });
}

/// A waiter that gives up leaves its connection to the next one.
#[test]
fn cancelled_waiters_keep_their_connections() {
    case(async |fixture| {
        let (ann, bob) = (client(&fixture, SOON).await, client(&fixture, SOON).await);
        let guard = hold(&ann, "cancelled").await;
        let opened = || Stored(&*fixture.server()).status("Connections");
        let wait = async || {
            let refused = bob.lock("cancelled").wait(Duration::from_millis(500)).acquire().await;
            assert_eq!(refused.expect_err("it is held").kind(), ErrorKind::Timeout);
            // Only ann's transaction is left. The connection is returned just after that.
            let has_left = || bob.stats().waiting == 0 && Stored(&*fixture.server()).transactions() == 1;
            eventually("the place has ended at the server", has_left).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        wait().await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let before = opened();
        for _ in 0..10 {
            wait().await;
        }
        assert!(opened() <= before + 2, "{} connections for 10 waits", opened() - before);
        assert!(guard.is_held());
    });
}

#[test]
fn locks_beyond_the_limit_are_refused_at_once() {
    case(async |fixture| {
        // An acquire without a reply in time would still use its connection while the next attempt needs another one.
        let url = fixture.url(Route::Clear, "").replace("locks=1100", "locks=2").replace("timeout=1s", "timeout=20s");
        let backend = MySqlBackend::connect(&url).await.expect("a backend");
        let ann = LockClient::builder(backend).wait(SOON).build().expect("a client");
        let (one, _two) = (hold(&ann, "one").await, hold(&ann, "two").await);
        let refused = ann.lock("three").acquire().await.expect_err("two are held");
        assert_eq!(refused.kind(), ErrorKind::Capacity);
        assert!(refused.to_string().contains("`locks`"), "{refused}");
        one.release().await.expect("a release");
        drop(hold(&ann, "three").await);
    });
}

/// The server shows a user the connections of other users, and lets it end them, only with further permissions.
#[test]
fn a_lease_of_another_user_is_broken_with_the_permissions_and_not_changed_without() {
    case(async |fixture| {
        let (ann, bob) = (client(&fixture, SOON).await, client(&fixture, SOON).await);
        let guard = hold(&ann, "another user").await;
        let lock = bob.lock("another user");
        let waiting = tokio::spawn(async move { lock.acquire().await.expect("it becomes free") });
        let waiters = async || ann.inspect("another user").await.expect("it may read").and_then(|seen| seen.waiters);
        while waiters().await != Some(1) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let database = fixture.names().0;
        let user = format!("{database}_o");
        let account = format!("'{user}'@'%'");
        let grants = grants(&database, &account);
        fixture.execute(&format!("CREATE USER {account} IDENTIFIED BY 'Other-user-1'; {grants}"));
        let url = fixture.url_of(&user, "Other-user-1");
        for (permission, waiters) in [("", None), ("PROCESS", Some(1))] {
            if !permission.is_empty() {
                fixture.execute(&format!("GRANT {permission} ON *.* TO {account}"));
            }
            let other = leasehold::connect(&url).await.expect("a client");
            let refused = other.break_lock("another user", guard.fencing_token()).await.expect_err("not permitted");
            assert_eq!(refused.kind(), ErrorKind::Auth, "{refused}");
            assert!(refused.to_string().contains("CONNECTION ADMIN"), "{refused}");
            let seen = other.inspect("another user").await.expect("it may read").expect("there is a row");
            let lease = seen.holder().expect("it is held");
            assert_eq!((lease.token, lease.ttl_left_exact), (guard.fencing_token(), waiters.is_some()));
            assert_eq!((seen.last_token, seen.waiters), (Some(guard.fencing_token()), waiters));
        }
        fixture.execute(&format!("GRANT CONNECTION ADMIN ON *.* TO {account}"));
        let operator = leasehold::connect(&url).await.expect("a client");
        let raised = operator.break_lock("another user", guard.fencing_token()).await.expect("permitted");
        let raised = raised.expect("it is the current lease");
        assert!(raised > guard.fencing_token());
        let next = tokio::time::timeout(SOON, waiting).await.expect("it is free").expect("no panic");
        assert!(next.fencing_token() > raised);
        fixture.execute(&format!("DROP USER {account}"));
    });
}

/// A renewal does not prolong a lease that lasts for longer than it requests. It must still report that the connection
/// has ended.
#[test]
fn a_renewal_that_prolongs_nothing_reports_the_end_of_the_connection() {
    case(async |fixture| {
        let ann = Direct::new(&fixture, Route::Clear).await;
        let name = LockName::new("not prolonged").expect("a name");
        let claim = ann.claim(&name);
        let place = ann.granted(&claim, Duration::from_secs(20)).await.confirmation.place;
        let renew = async || ann.renew(RenewRequest::new(claim.clone(), place, Duration::from_secs(1))).await;
        assert!(matches!(renew().await, RenewReply::Renewed(_)));
        fixture.tamper(&name, Tamper::Remove).await.expect("supported");
        let reply = renew().await;
        assert!(matches!(reply, RenewReply::Lost), "{reply:?}");
    });
}

/// The first attempt of a claim has locked the row on a connection whose end the server does not see. The claim waits
/// behind it on another one, and gives up.
#[test]
fn a_withdrawal_ends_the_connections_of_earlier_attempts() {
    own_servers(|| async {
        let fixture = MySqlFixture::new().await;
        let proxy = FaultProxy::start(fixture.server().addr()).expect("a proxy");
        let url = url_by(&fixture, &proxy, "");
        let ann = Direct::attach(Arc::new(MySqlBackend::connect(&url).await.expect("a backend")));
        let [warm, claim] = ["warm", "earlier"].map(|name| ann.claim(&LockName::new(name).expect("a name")));
        ann.granted(&warm, SOON).await;
        ann.release(&warm, Delivery::Confirmed).await.expect("a release");
        for fault in [Fault::LoseReplies, Fault::HalfOpen] {
            proxy.apply_to(fault, Reach::Open);
        }
        assert!(ann.acquire(&claim, SOON).await.is_err(), "the reply is lost");
        let waits = ann.acquire(&claim, SOON).await;
        assert!(matches!(waits, Ok(AcquireOutcome::Queued { .. })), "{waits:?}");
        assert_eq!(
            Stored(&*fixture.server()).transactions(),
            2,
            "the first connection has the row, and the second waits"
        );
        // Its connections for calls are broken too.
        let inspect = || ann.backend().admin().expect("supported");
        while inspect().inspect(claim.name()).await.is_err() {
            tokio::time::sleep(PAUSE).await;
        }
        while ann.release(&claim, Delivery::InDoubt).await.is_err() {
            tokio::time::sleep(PAUSE).await;
        }
        let server = fixture.server();
        assert_eq!(Stored(&*server).transactions(), 0, "a connection of the claim still has a transaction");
    });
}

/// `FLUSH TABLES WITH READ LOCK` waits for the statement of a waiter, and every writer of the server waits for the
/// `FLUSH`.
#[test]
fn a_waiter_does_not_stop_the_writers_of_the_server() {
    own_servers(|| async {
        let fixture = MySqlFixture::new().await;
        fixture.execute("CREATE TABLE other (number INT)");
        let (ann, bob) = (client(&fixture, SOON).await, client(&fixture, SOON).await);
        let guard = hold(&ann, "flushed").await;
        let lock = bob.lock("flushed").wait(SOON * 2);
        let waiting = tokio::spawn(async move { lock.acquire().await.expect("it becomes free") });
        let waits = format!("SELECT 1 FROM {CLIENTS} AND {WAITS}");
        eventually("bob waits", || Stored(&*fixture.server()).query(&waits).len() == 1).await;
        let [operator, writer] = [(); 2].map(|()| fixture.server().side().expect("a connection"));
        let stopwatch = Stopwatch::start();
        let flushed = tokio::task::spawn_blocking(move || {
            operator.query("FLUSH TABLES WITH READ LOCK").expect("it waits for one slice");
            operator
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        let insert = format!("INSERT INTO {}.other VALUES (1)", fixture.names().0);
        let written = tokio::task::spawn_blocking(move || writer.query(&insert).expect("it waits for the operator"));
        let operator = flushed.await.expect("no panic");
        stopwatch.within(Duration::from_millis(1500), "the operator waits for one slice of a waiter");
        // A release ends, and a grant waits.
        guard.release().await.expect("a release");
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(!waiting.is_finished() && !written.is_finished(), "the tables are locked");
        operator.query("UNLOCK TABLES").expect("its own lock");
        written.await.expect("no panic");
        drop(tokio::time::timeout(SOON, waiting).await.expect("bob still waits").expect("no panic"));
    });
}

/// The row may have been handed to a waiter that gives up at this moment.
#[test]
fn waiters_that_give_up_together_do_not_delay_the_next_one() {
    case(async |fixture| {
        // Her release of the holder is one of many, beside which a busy machine may take longer than a second for it.
        let url = fixture.url(Route::Clear, "").replace("timeout=1s", "timeout=10s");
        let backend = MySqlBackend::connect(&url).await.unwrap_or_else(|error| panic!("not connected: {error:?}"));
        let (ann, bob) = (Arc::new(Direct::attach(Arc::new(backend))), client(&fixture, SOON).await);
        for round in 0..3 {
            let name = LockName::new(format!("given up {round}")).expect("a name");
            let holder = ann.claim(&name);
            ann.granted(&holder, SOON).await;
            let claims: Vec<_> = (0..200).map(|_| ann.claim(&name)).collect();
            let mut tasks = tokio::task::JoinSet::new();
            for claim in claims.clone() {
                let ann = ann.clone();
                tasks.spawn(async move { drop(ann.acquire(&claim, SOON).await) });
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
            tasks.shutdown().await;
            for claim in claims {
                let ann = ann.clone();
                tasks.spawn(async move {
                    while ann.release(&claim, Delivery::InDoubt).await.is_err() {
                        tokio::time::sleep(PAUSE).await;
                    }
                });
            }
            tokio::task::yield_now().await;
            let stopwatch = Stopwatch::start();
            ann.release(&holder, Delivery::Confirmed).await.expect("a release");
            drop(hold(&bob, name.as_str()).await);
            stopwatch.within(Duration::from_millis(700), &format!("round {round}: the next one holds"));
            while let Some(done) = tasks.join_next().await {
                done.expect("no panic");
            }
        }
    });
}

/// Another program locks the row for a moment. No claim has the named lock then, so the waiting claim asks whether it
/// waits.
#[test]
fn nothing_is_asked_when_nothing_is_held() {
    case(async |fixture| {
        let ann = client(&fixture, SOON).await;
        hold(&ann, "asked").await.release().await.expect("a release");
        let other = fixture.server().side().expect("a connection");
        let (database, row) = (fixture.names().0, "SELECT 1 FROM leasehold_for_update WHERE name = 'asked' FOR UPDATE");
        other.query(&format!("USE {database}; BEGIN; {row}")).expect("it is free");
        let lock = ann.lock("asked");
        let waiting = tokio::spawn(async move { lock.acquire().await.expect("it becomes free") });
        tokio::time::sleep(Duration::from_millis(100)).await;
        other.query("COMMIT").expect("a transaction");
        waiting.await.expect("no panic").release().await.expect("a release");
        let asked = || Stored(&*fixture.server()).status("Com_select");
        let before = asked();
        tokio::time::sleep(Duration::from_millis(700)).await;
        let selects = asked() - before;
        assert!(selects <= 3, "{selects} queries in 700 ms");
    });
}

/// An outage after which TCP sends again what was lost: renewals arrive after their calls have given up.
#[test]
fn late_renewals_lose_nothing() {
    own_servers(|| async {
        let fixture = MySqlFixture::new().await;
        let proxy = FaultProxy::start(fixture.server().addr()).expect("a proxy");
        let url = url_by(&fixture, &proxy, "").replace("timeout=1s", "timeout=600ms");
        let (backend, ttl) = (MySqlBackend::connect(&url).await.expect("a backend"), Duration::from_secs(4));
        let ann = LockClient::builder(backend).ttl(ttl).wait(SOON).build().expect("a client");
        let guard = hold(&ann, "late renewals").await;
        let delay = |requests| proxy.apply(Fault::Delay { requests, replies: Duration::ZERO });
        for _ in 0..2 {
            let renewed = ann.stats().renewed;
            eventually("the lease is renewed", || ann.stats().renewed > renewed).await;
            delay(ttl);
            tokio::time::sleep(ttl / 2).await;
            // What waits arrives now.
            delay(Duration::ZERO);
            tokio::time::sleep(ttl).await;
            assert!(guard.is_held(), "late requests lost the lease: {:?}", ann.stats());
        }
    });
}

/// A claim has locked the row, and its connection ends before its request for the token arrives. By then another claim
/// holds the lock.
#[test]
fn a_late_request_for_a_token_does_not_raise_that_of_the_next_holder() {
    case(async |fixture| {
        let (ann, bob) = (Direct::warm(&fixture, Route::Faulty).await, client(&fixture, SOON).await);
        let name = LockName::new("late token").expect("a name");
        let guard = hold(&bob, name.as_str()).await;
        let first = holder(&fixture);
        ann.not_granted(&ann.claim(&name), SOON).await;
        fixture.path(PathFault::Hold).await;
        guard.release().await.expect("a release");
        eventually("ann has locked the row", || holders(&fixture).iter().any(|id| *id != first)).await;
        kill(&fixture, &holder(&fixture));
        let next = hold(&bob, name.as_str()).await;
        fixture.deliver().await;
        let token = fixture.record(&name).await.last_token;
        assert_eq!(token, Some(next.fencing_token()), "the late request raised the token of another claim's lease");
    });
}

/// The path hides a restart from a waiter, and another connection gets the number of its connection.
#[test]
fn a_waiter_whose_number_another_connection_has_waits_again() {
    /// More connections than a server opens by itself and clients open to reconnect.
    const EARLIER: usize = 100;
    own_servers(|| async {
        let fixture = MySqlFixture::new().await;
        for _ in 0..EARLIER {
            drop(fixture.server().side().expect("a connection"));
        }
        let proxy = FaultProxy::start(fixture.server().addr()).expect("a proxy");
        let backend = MySqlBackend::connect(&url_by(&fixture, &proxy, "")).await.expect("a backend");
        let ttl = Duration::from_secs(3);
        let ann = LockClient::builder(backend).ttl(ttl).wait(SOON * 2).build().expect("a client");
        let bob = client(&fixture, ttl).await;
        let guard = hold(&bob, "hidden").await;
        let lock = ann.lock("hidden");
        let waiting = tokio::spawn(async move { lock.acquire().await.expect("it becomes free") });
        eventually("ann waits", || waiter(&fixture).is_some()).await;
        let id = waiter(&fixture).expect("ann waits");
        proxy.apply_to(Fault::HalfOpen, Reach::Open);
        Fixture::server(&fixture, ServerFault::Kill).await.expect("our own");
        Fixture::server(&fixture, ServerFault::Start(Data::Kept)).await.expect("our own");
        let mut others = Vec::new();
        let is_used = format!("SELECT 1 FROM information_schema.processlist WHERE id = {id}");
        while Stored(&*fixture.server()).query(&is_used).is_empty() {
            // The server shows a user its own connections.
            others.push(fixture.server().client().expect("a connection"));
            assert!(others.len() < 2 * EARLIER, "the number is never used again");
        }
        let stopwatch = Stopwatch::start();
        drop(waiting.await.expect("no panic"));
        // The next renewal of its place, the rest of bob's ttl, and two calls.
        stopwatch.within(ttl * 2, "ann waits again, and is granted the lock");
        drop(guard);
    });
}
