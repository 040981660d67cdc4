//! A replica that replaces its primary may lack the last grants, however long it has been up. It grants no lock until
//! the leases that it may not know of have ended.

use std::time::{Duration, Instant};

use leasehold::redis::RedisBackend;
use leasehold_conformance::harness::{Fault, FaultProxy};
use leasehold_core::{ErrorKind, LockClient};
use leasehold_test_servers::{RedisServer, RedisSettings};

use super::support::{SOON, Stopwatch, eventually, hold};

const TTL: Duration = Duration::from_secs(4);

/// How long a client may take to try again: pauses between two attempts, and one call.
const RETRY: Duration = Duration::from_millis(1_400);

/// A primary and a replica, and an address for clients that leads to one of them.
struct Pair {
    primary: RedisServer,
    replica: RedisServer,
    /// Replicas receive the data of a primary through it.
    link: FaultProxy,
    address: FaultProxy,
}

fn case<C, F>(case: C)
where
    C: FnOnce(Pair) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    leasehold_conformance::run(leasehold_conformance::DEADLINE, || async { case(Pair::start().await).await });
}

fn run(server: &RedisServer, command: &[&str]) {
    server.command(command).unwrap_or_else(|error| panic!("{} fails: {error}", command[0]));
}

impl Pair {
    async fn start() -> Self {
        let start = |settings: RedisSettings| settings.start().unwrap_or_else(|error| panic!("{error}"));
        let proxy = |server: &RedisServer| FaultProxy::start(server.addr()).unwrap_or_else(|error| panic!("{error}"));
        let primary = start(RedisSettings::new().line("repl-diskless-sync-delay 0"));
        let (link, address) = (proxy(&primary), proxy(&primary));
        let replica = start(RedisSettings::new().line("repl-diskless-sync-delay 0"));
        let it = Self { primary, replica, link, address };
        it.replicates(&it.replica).await;
        it
    }

    /// Makes a server a replica, which has all data when this returns.
    async fn replicates(&self, replica: &RedisServer) {
        let port = self.link.addr().port().to_string();
        run(replica, &["REPLICAOF", "127.0.0.1", &port]);
        let is_linked = || replica.info("replication", "master_link_status").is_ok_and(|status| status == "up");
        eventually("the replica has the data", is_linked).await;
    }

    async fn client(&self, ttl: Duration, more: &str) -> LockClient {
        let url = format!("redis://{}/?timeout=1s{more}", self.address.addr());
        let backend = RedisBackend::connect(&url).await.unwrap_or_else(|error| panic!("not connected: {error:?}"));
        LockClient::builder(backend).wait(SOON).ttl(ttl).build().expect("a client")
    }

    /// From now on the replica does not receive what the primary acknowledges. It has all that was acknowledged before.
    fn cut_off(&self) {
        let confirmed = self.primary.command(&["WAIT", "1", "4000"]).expect("WAIT works");
        assert_eq!(confirmed.int(), Some(1), "the replica has everything");
        self.link.apply(Fault::DropTraffic);
    }

    /// Clients reach this server from now on.
    fn leads_to(&self, server: &RedisServer) {
        self.address.redirect(server.addr());
        self.address.apply(Fault::Disconnect);
    }
}

/// Makes a replica a primary. Returns a time just before that.
fn promote(replica: &RedisServer) -> Instant {
    let before = Instant::now();
    run(replica, &["REPLICAOF", "NO", "ONE"]);
    before
}

/// Checks the time from a promotion to the first grant.
fn waited(since: Instant, at_least: Duration, stopwatch: &Stopwatch) {
    let took = since.elapsed();
    assert!(took >= at_least, "granted after {took:?}: a lease of {at_least:?} may still be valid");
    let bound = at_least + RETRY + stopwatch.lag();
    assert!(took <= bound, "the wait took {took:?} of {bound:?}");
}

/// Ann holds a lock that no replica has, and the pair has been up for longer than her ttl.
async fn hold_unreplicated(pair: &Pair, ann: &LockClient) -> leasehold_core::LockGuard {
    hold(ann, "used before").await.release().await.expect("a release");
    tokio::time::sleep(TTL).await;
    pair.cut_off();
    hold(ann, "lost").await
}

#[test]
fn a_promoted_replica_grants_no_lock_that_its_primary_granted() {
    case(async |mut pair| {
        let (ann, bob) = (pair.client(TTL, "").await, pair.client(Duration::from_secs(1), "").await);
        let guard = hold_unreplicated(&pair, &ann).await;
        let stopwatch = Stopwatch::start();
        pair.primary.kill().expect("it runs");
        let promoted = promote(&pair.replica);
        pair.leads_to(&pair.replica);
        let next = hold(&bob, "lost").await;
        waited(promoted, TTL, &stopwatch);
        assert!(!guard.is_held(), "two holders");
        assert!(next.fencing_token() > guard.fencing_token());
    });
}

/// Otherwise a cron job that tries once would wait again each time, or not at all.
#[test]
fn clients_that_live_for_less_than_the_quarantine_share_it() {
    case(async |mut pair| {
        let ann = pair.client(TTL, "").await;
        let guard = hold_unreplicated(&pair, &ann).await;
        drop(guard);
        let stopwatch = Stopwatch::start();
        pair.primary.kill().expect("it runs");
        let promoted = promote(&pair.replica);
        pair.leads_to(&pair.replica);
        let mut refusals = 0;
        loop {
            let newcomer = pair.client(Duration::from_secs(1), "").await;
            match newcomer.lock("lost").try_acquire().await {
                Ok(granted) => break assert!(granted.is_some(), "nobody holds the lock"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
                    assert!(error.to_string().contains("replaced"), "{error}");
                    refusals += 1;
                }
            }
            newcomer.shutdown().await.expect("nothing is held");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        waited(promoted, TTL, &stopwatch);
        assert!(refusals > 1);
        let stopwatch = Stopwatch::start();
        let _held = hold(&pair.client(TTL * 2, "").await, "later").await;
        stopwatch.within(TTL / 2, "the quarantine ends for all clients");
    });
}

/// It granted nothing while it was a replica, but its clients have known it since then.
#[test]
fn the_time_as_a_replica_does_not_count_for_a_client_that_was_connected_to_it() {
    case(async |mut pair| {
        let (ann, bob) = (pair.client(TTL, "").await, pair.client(Duration::from_secs(1), "").await);
        let guard = hold_unreplicated(&pair, &ann).await;
        let stopwatch = Stopwatch::start();
        pair.primary.kill().expect("it runs");
        pair.leads_to(&pair.replica);
        let refused = bob.lock("lost").try_acquire().await.expect_err("a replica grants nothing");
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        assert!(refused.to_string().contains("replica"), "{refused}");
        let waiting = tokio::spawn(async move { hold(&bob, "lost").await });
        tokio::time::sleep(TTL / 2).await;
        assert!(!waiting.is_finished(), "a replica granted a lock");
        // The connections stay open.
        let promoted = promote(&pair.replica);
        let next = waiting.await.expect("no panic");
        waited(promoted, TTL, &stopwatch);
        assert!(!guard.is_held(), "two holders");
        assert!(next.fencing_token() > guard.fencing_token());
    });
}

/// The former primary is promoted again, in the run in which its clients already knew it.
#[test]
fn a_second_promotion_is_another_run_also_for_a_newcomer() {
    case(async |mut pair| {
        let (ann, bob) = (pair.client(TTL, "").await, pair.client(TTL, "").await);
        hold(&ann, "used before").await.release().await.expect("a release");
        pair.cut_off();
        promote(&pair.replica);
        pair.leads_to(&pair.replica);
        // The former primary follows the new one.
        pair.link.redirect(pair.replica.addr());
        pair.link.heal();
        hold(&ann, "used before").await.release().await.expect("a release");
        pair.replicates(&pair.primary).await;
        std::mem::swap(&mut pair.primary, &mut pair.replica);
        let guard = hold_unreplicated(&pair, &ann).await;

        let stopwatch = Stopwatch::start();
        pair.primary.kill().expect("it runs");
        let promoted = promote(&pair.replica);
        pair.leads_to(&pair.replica);
        let newcomer = pair.client(Duration::from_secs(1), "").await;
        let refused = newcomer.lock("lost").try_acquire().await.expect_err("a lease from before may be valid");
        assert!(refused.to_string().contains("replaced"), "{refused}");
        let next = hold(&bob, "lost").await;
        waited(promoted, TTL, &stopwatch);
        assert!(!guard.is_held(), "two holders");
        assert!(next.fencing_token() > guard.fencing_token());
    });
}
