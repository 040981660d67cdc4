//! A server that replaces another one, or that lost data in a crash, grants no lock until the leases that it may not
//! know of have ended.

use std::time::{Duration, Instant};

use leasehold::mysql::MySqlBackend;
use leasehold_conformance::{Data, Fixture, Route, ServerFault};
use leasehold_core::{ErrorKind, LockClient};
use leasehold_test_servers::{MySqlServer, MySqlSettings};

use super::replicated::Replicated;
use super::set_up::{PASSWORD, set_up};
use super::stored::Stored;
use super::strategy::MySqlFixture;
use super::support::{SOON, Stopwatch, builder, case, client, hold, own_servers};

const TTL: Duration = Duration::from_secs(4);

/// The server reports its start in whole seconds.
const WHOLE_SECOND: Duration = Duration::from_secs(1);

/// How long a client may take to try again: pauses between two attempts, and one call.
const RETRY: Duration = Duration::from_millis(1_400);

fn pair<C, F>(case: C)
where
    C: FnOnce(Replicated) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    own_servers(|| async { case(Replicated::new()).await });
}

/// Runs a case that controls its server.
fn case_with_own_server<C, F>(case: C)
where
    C: FnOnce(MySqlFixture) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    own_servers(|| async { case(MySqlFixture::new().await).await });
}

/// Checks the time from a moment before the quarantine to the first grant.
fn waited(since: Instant, at_least: Duration, slack: Duration, stopwatch: &Stopwatch) {
    let took = since.elapsed();
    assert!(took >= at_least, "granted after {took:?}: a lease of {at_least:?} may still be valid");
    let bound = at_least + slack + stopwatch.lag();
    assert!(took <= bound, "the wait took {took:?} of {bound:?}");
}

/// The replica has been up for longer than the quarantine lasts, and has no row of the lock.
#[test]
fn a_promoted_replica_grants_no_lock_that_the_former_primary_granted() {
    pair(async |mut pair| {
        let (ann, bob) = (pair.client(TTL, "").await, pair.client(Duration::from_secs(1), "").await);
        hold(&ann, "used before").await.release().await.expect("a release");
        pair.cut_off_the_replica().await;
        let guard = hold(&ann, "lost").await;
        tokio::time::sleep(TTL).await;
        let stopwatch = Stopwatch::start();
        pair.end_the_primary();
        let waiting = tokio::spawn(async move { hold(&bob, "lost").await });
        // Clients know the replica before it can grant a lock. This time does not count for the quarantine.
        tokio::time::sleep(TTL / 2).await;
        assert!(!waiting.is_finished(), "a read-only server granted a lock");
        let promoted = pair.promote();
        let next = waiting.await.expect("no panic");
        waited(promoted, TTL, RETRY, &stopwatch);
        assert!(!guard.is_held());
        assert!(next.fencing_token() > guard.fencing_token());
    });
}

/// Otherwise a cron job that tries once would never get the lock.
#[test]
fn clients_that_live_for_less_than_the_quarantine_share_it() {
    pair(async |mut pair| {
        hold(&pair.client(TTL, "").await, "used before").await.release().await.expect("a release");
        pair.cut_off_the_replica().await;
        pair.end_the_primary();
        let (stopwatch, promoted) = (Stopwatch::start(), pair.promote());
        let mut refusals = 0;
        loop {
            let newcomer = pair.client(Duration::from_secs(1), "").await;
            match newcomer.lock("job").try_acquire().await {
                Ok(granted) => break assert!(granted.is_some(), "nobody holds the lock"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable);
                    let text = error.to_string();
                    assert!(text.contains("replaced") && text.contains("restart=trust"), "{text}");
                    refusals += 1;
                }
            }
            newcomer.shutdown().await.expect("nothing is held");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        waited(promoted, TTL, RETRY, &stopwatch);
        assert!(refusals > 1);
        let stopwatch = Stopwatch::start();
        let _held = hold(&pair.client(TTL * 2, "").await, "later").await;
        stopwatch.within(TTL / 2, "the quarantine ends for all clients");
    });
}

#[test]
fn trust_does_not_wait() {
    pair(async |mut pair| {
        let ann = pair.client(TTL, "&restart=trust").await;
        hold(&ann, "trusted").await.release().await.expect("a release");
        pair.cut_off_the_replica().await;
        let stopwatch = Stopwatch::start();
        pair.end_the_primary();
        pair.promote();
        let newcomer = pair.client(TTL, "&restart=trust").await;
        let _held = (hold(&ann, "trusted").await, hold(&newcomer, "other").await);
        stopwatch.within(TTL / 2, "trust does not wait");
    });
}

/// A server that became read-only keeps its connections open.
#[test]
fn a_read_only_server_is_left() {
    pair(async |pair| {
        let ann = pair.client(TTL, "&restart=trust").await;
        let tasks = (0..8).map(|number| {
            let ann = ann.clone();
            tokio::spawn(async move { hold(&ann, &format!("before {number}")).await.release().await })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("no panic").expect("a release");
        }
        pair.cut_off_the_replica().await;
        Stored(&pair.primary).query("SET GLOBAL read_only = 1");
        pair.proxy.redirect(pair.replica.addr());
        pair.promote();
        let refused = ann.lock("after").try_acquire().await.expect_err("the server is read-only");
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        assert!(refused.to_string().contains("read-only"), "{refused}");
        assert!(ann.lock("after").try_acquire().await.expect("the primary is reached").is_some());
    });
}

/// An administrator may write to a read-only server. A grant there would make the replica differ from its primary.
#[test]
fn a_read_only_server_grants_no_lock_to_an_administrator() {
    case_with_own_server(async |fixture| {
        let (_, account) = fixture.names();
        fixture.execute(&format!("GRANT READ_ONLY ADMIN ON *.* TO {account}; SET GLOBAL read_only = 1"));
        let refused = client(&fixture, TTL).await.lock("any").try_acquire().await.expect_err("it is read-only");
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        assert!(refused.to_string().contains("read-only"), "{refused}");
    });
}

async fn restart(fixture: &MySqlFixture, data: Data) -> Instant {
    Fixture::server(fixture, ServerFault::Kill).await.expect("it runs");
    let killed = Instant::now();
    Fixture::server(fixture, ServerFault::Start(data)).await.expect("it starts");
    killed
}

#[test]
fn a_restart_of_a_durable_server_is_no_quarantine() {
    case_with_own_server(async |fixture| {
        let (ann, bob) = (client(&fixture, TTL * 2).await, client(&fixture, TTL * 2).await);
        hold(&bob, "used before").await.release().await.expect("a release");
        let guard = hold(&ann, "kept").await;
        restart(&fixture, Data::Kept).await;
        let stopwatch = Stopwatch::start();
        let newcomer = client(&fixture, TTL * 2).await;
        let _held = (hold(&bob, "other").await, hold(&newcomer, "newcomer").await);
        stopwatch.within(TTL / 2, "every lease was kept");
        assert!(guard.is_held() && bob.lock("kept").try_acquire().await.expect("a reply").is_none());
    });
}

#[test]
fn a_client_that_knew_the_lost_data_waits() {
    case_with_own_server(async |fixture| {
        let (ann, bob) = (client(&fixture, TTL).await, client(&fixture, TTL).await);
        hold(&bob, "used before").await.release().await.expect("a release");
        let guard = hold(&ann, "lost").await;
        let stopwatch = Stopwatch::start();
        let killed = restart(&fixture, Data::Lost).await;
        let next = hold(&bob, "lost").await;
        waited(killed, TTL, WHOLE_SECOND * 4 + RETRY, &stopwatch);
        assert!(!guard.is_held() && next.fencing_token() > guard.fencing_token());
    });
}

#[test]
fn quarantine_also_waits_for_an_unknown_server() {
    case(async |fixture| {
        let stopwatch = Stopwatch::start();
        hold(&client(&fixture, TTL).await, "unknown").await.release().await.expect("a release");
        stopwatch.within(TTL / 2, "the default waits for a known restart only");
        fixture.execute("DELETE FROM leasehold_locks");
        let (stopwatch, begin) = (Stopwatch::start(), Instant::now());
        let careful = builder(&fixture, "&restart=quarantine").await.ttl(TTL).build().expect("a client");
        let _held = hold(&careful, "unknown").await;
        waited(begin, TTL, RETRY, &stopwatch);
    });
}

/// A server that loses its last second in a crash.
fn volatile() -> MySqlServer {
    let server = MySqlSettings::new().option("innodb-flush-log-at-trx-commit=0").start();
    let server = server.unwrap_or_else(|error| panic!("{error}"));
    set_up(&server);
    server
}

async fn client_of(server: &MySqlServer, ttl: Duration) -> LockClient {
    let url = format!("mysql://locker:{PASSWORD}@{}/locks?tls=off", server.addr());
    let backend = MySqlBackend::connect(&url).await.unwrap_or_else(|error| panic!("not connected: {error:?}"));
    LockClient::builder(backend).wait(SOON).ttl(ttl).build().expect("a client")
}

#[test]
fn a_crash_of_a_server_that_is_not_durable_is_a_quarantine() {
    own_servers(|| async {
        let mut server = volatile();
        let (ann, bob) = (client_of(&server, TTL).await, client_of(&server, TTL).await);
        hold(&bob, "used before").await.release().await.expect("a release");
        let guard = hold(&ann, "lost").await;
        let stopwatch = Stopwatch::start();
        server.kill().expect("it runs");
        let killed = Instant::now();
        server.start_again(Data::Kept).expect("it starts");
        let started = killed.elapsed();
        let other = hold(&bob, "other").await;
        waited(killed, TTL, started + WHOLE_SECOND + RETRY, &stopwatch);
        drop((guard, other));
    });
}

#[test]
fn a_restart_that_was_long_ago_is_no_quarantine() {
    own_servers(|| async {
        let (mut server, ttl) = (volatile(), Duration::from_secs(2));
        let ann = client_of(&server, ttl).await;
        hold(&ann, "used before").await.release().await.expect("a release");
        ann.shutdown().await.expect("nothing is held");
        server.stop().expect("it runs");
        server.start_again(Data::Kept).expect("it starts");
        tokio::time::sleep(ttl + WHOLE_SECOND * 2).await;
        let newcomer = client_of(&server, ttl).await;
        assert!(newcomer.lock("job").try_acquire().await.expect("no quarantine").is_some());
    });
}

#[test]
fn acquires_read_the_run_of_the_server_once() {
    case(async |fixture| {
        let ann = client(&fixture, SOON).await;
        hold(&ann, "first").await.release().await.expect("a release");
        fixture.connected().await;
        let selects = || Stored(&*fixture.server()).status("Com_select");
        let before = selects();
        for round in 0..100 {
            hold(&ann, &format!("lock {round}")).await.release().await.expect("a release");
        }
        // A connection that is still being opened reads it once.
        assert!(selects() - before < 10, "{} reads", selects() - before);
    });
}

#[test]
fn the_row_of_the_run_is_no_lock() {
    case(async |fixture| {
        let ann = client(&fixture, SOON).await;
        let _guard = hold(&ann, "lock").await;
        let rows = Stored(&*fixture.server()).query("SELECT 1 FROM leasehold_locks");
        assert_eq!(rows.len(), 2, "the lock and the run");
        let listing = ann.list("", 10).await.expect("a list");
        assert_eq!((listing.locks.len(), listing.unreadable.len()), (1, 0));
        let checks = ann.examine().await.expect("checks");
        assert!(checks.iter().any(|check| check.found == "1 held, 1 records"), "{checks:?}");
        fixture.execute("UPDATE leasehold_locks SET format = '2r' WHERE name = ''");
        let url = fixture.url(Route::Clear, "");
        let newer = LockClient::new(MySqlBackend::connect(&url).await.expect("a backend"));
        let refused = newer.lock("other").try_acquire().await.expect_err("a newer version has written the row");
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
    });
}
