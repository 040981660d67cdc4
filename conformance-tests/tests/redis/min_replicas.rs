//! `min_replicas`: a grant or a renewal counts when replicas have it, as they say.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold::redis::{RedisBackend, ScriptCalls, acl};
use leasehold_conformance::harness::{Fault, FaultProxy};
use leasehold_core::{ErrorKind, LockClient, LockGuard, LockName};
use leasehold_test_servers::{RedisServer, RedisSettings};

use super::received::received;
use super::replication::replicates;
use super::stored::Stored;
use super::support::{SOON, Stopwatch, eventually, hold};

const PREFIX: &str = "leasehold:";

/// The ttl of leases that are renewed.
const TTL: Duration = Duration::from_secs(3);

/// One primary and two replicas, each behind a proxy of its own.
struct Trio {
    primary: RedisServer,
    replicas: [RedisServer; 2],
    links: [FaultProxy; 2],
}

fn case<C, F>(case: C)
where
    C: FnOnce(Trio) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    leasehold_conformance::run(leasehold_conformance::DEADLINE, || async { case(Trio::start().await).await });
}

fn name(text: &str) -> LockName {
    LockName::new(text).expect("a name")
}

fn token(server: &RedisServer, lock: &str) -> u64 {
    Stored::new(server, PREFIX).record(&name(lock)).last_token.map_or(0, |token| token.get())
}

fn is_leased(server: &RedisServer, lock: &str) -> bool {
    Stored::new(server, PREFIX).record(&name(lock)).lease().is_some()
}

/// A server that sends its data to a new replica at once.
fn start() -> RedisServer {
    let settings = RedisSettings::new().line("repl-diskless-sync-delay 0");
    settings.start().unwrap_or_else(|error| panic!("{error}"))
}

impl Trio {
    async fn start() -> Self {
        let primary = start();
        let links = [0; 2].map(|_| FaultProxy::start(primary.addr()).unwrap_or_else(|error| panic!("{error}")));
        let it = Self { primary, replicas: [start(), start()], links };
        for (replica, link) in it.replicas.iter().zip(&it.links) {
            replicates(replica, link.addr().port()).await;
        }
        let are_known = || it.primary.info("replication", "connected_slaves").is_ok_and(|count| count == "2");
        eventually("the primary has two replicas", are_known).await;
        it
    }

    async fn client(&self, min_replicas: &str) -> LockClient {
        client(self.primary.addr(), min_replicas, "1s").await
    }

    /// With time for replies of a busy machine.
    async fn patient(&self, min_replicas: &str) -> LockClient {
        client(self.primary.addr(), min_replicas, "4s").await
    }

    fn pause(&mut self, replicas: &[usize]) {
        replicas.iter().for_each(|replica| self.replicas[*replica].pause().expect("a pause"));
    }

    fn resume(&mut self, replicas: &[usize]) {
        replicas.iter().for_each(|replica| self.replicas[*replica].resume().expect("a resume"));
    }
}

async fn client(address: SocketAddr, min_replicas: &str, timeout: &str) -> LockClient {
    let url = format!("redis://{address}/?timeout={timeout}&min_replicas={min_replicas}");
    let backend = RedisBackend::connect(&url).await.unwrap_or_else(|error| panic!("not connected: {error:?}"));
    let client = LockClient::builder(backend).wait(SOON).ttl(TTL).build().expect("a client");
    // The scripts are known, and the connection that counts is open.
    hold(&client, "warm").await.release().await.expect("a release");
    client
}

async fn is_refused(client: &LockClient, lock: &str, why: &str) {
    let error = client.lock(lock).try_acquire().await.expect_err("too few replicas have it");
    assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
    assert!(error.to_string().contains(why), "{error}");
}

async fn stays_held(guard: &LockGuard, time: Duration) {
    let stopwatch = Stopwatch::start();
    while stopwatch.elapsed() < time {
        assert!(guard.is_held(), "the lease was lost after {:?}", stopwatch.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whichever replica is promoted next, it has the lock.
#[test]
fn a_grant_is_told_when_all_replicas_have_it() {
    case(async |trio| {
        let ann = trio.client("all").await;
        for (link, by) in trio.links.iter().zip([50, 200]) {
            link.apply(Fault::Delay { requests: Duration::ZERO, replies: Duration::from_millis(by) });
        }
        for round in 0..5 {
            let lock = format!("round {round}");
            let guard = hold(&ann, &lock).await;
            let had = trio.replicas.each_ref().map(|replica| token(replica, &lock));
            assert_eq!(had, [guard.fencing_token().get(); 2], "round {round}: a replica lacks the lock");
            guard.release().await.expect("a release");
        }
    });
}

/// One replica of two is enough for `1`, and not for `2` and `all`. What was not told is taken back.
#[test]
fn a_grant_that_too_few_replicas_have_is_taken_back() {
    case(async |mut trio| {
        let (one, two, all) = (trio.patient("1").await, trio.patient("2").await, trio.patient("all").await);
        trio.pause(&[1]);
        let guard = hold(&one, "x").await;
        assert_eq!(token(&trio.replicas[0], "x"), guard.fencing_token().get(), "the replica that runs lacks the lock");
        guard.release().await.expect("a release");
        let mut last = 0;
        for client in [&two, &all] {
            is_refused(client, "x", "1 of 2 replicas have confirmed the lease").await;
            eventually("it was taken back", || !is_leased(&trio.primary, "x")).await;
            let token = token(&trio.primary, "x");
            assert!(token > last, "{last} was followed by {token}");
            last = token;
        }
        // On a connection that has written before, and on one that has not.
        trio.pause(&[0]);
        is_refused(&one, "x", "0 of 1 replicas have confirmed the lease").await;
        eventually("it was taken back", || !is_leased(&trio.primary, "x")).await;
        let newcomer = async {
            let url = format!("redis://{}/?timeout=4s&min_replicas=1", trio.primary.addr());
            let backend = RedisBackend::connect(&url).await.expect("the primary replies");
            LockClient::builder(backend).wait(SOON).ttl(TTL).build().expect("a client")
        };
        is_refused(&newcomer.await, "x", "0 of 1 replicas have confirmed the lease").await;
        eventually("it was taken back", || !is_leased(&trio.primary, "x")).await;
        trio.resume(&[0, 1]);
        let guard = hold(&all, "x").await;
        assert!(guard.fencing_token().get() > last);
    });
}

/// A primary that was demoted, or cut off from its replicas, goes on prolonging leases.
#[test]
fn a_renewal_counts_when_replicas_have_it() {
    case(async |mut trio| {
        let ann = trio.client("1").await;
        let guard = hold(&ann, "held").await;
        trio.pause(&[0]);
        stays_held(&guard, TTL + TTL / 2).await;
        trio.pause(&[1]);
        let stopwatch = Stopwatch::start();
        eventually("the holder knows that it may be lost", || !guard.is_held()).await;
        stopwatch.within(TTL, "the last renewal that counts was sent before the pause");
        trio.resume(&[0, 1]);
        let bob = trio.client("1").await;
        let next = hold(&bob, "held").await;
        assert!(next.fencing_token() > guard.fencing_token());
    });
}

/// The grant that a release hands over comes as a message.
#[test]
fn a_handoff_is_told_when_replicas_have_it() {
    case(async |mut trio| {
        let (ann, bob) = (trio.client("1").await, trio.client("all").await);
        let guard = hold(&ann, "x").await;
        let first = guard.fencing_token().get();
        let waiter = tokio::spawn(async move { hold(&bob, "x").await });
        let waits = || Stored::new(&trio.primary, PREFIX).record(&name("x")).waiting() == 1;
        eventually("bob waits", waits).await;
        received(&trio.primary, &[&trio.replicas[0], &trio.replicas[1]]).await;
        trio.pause(&[1]);
        guard.release().await.expect("a release");
        eventually("the primary grants it", || token(&trio.primary, "x") > first).await;
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        assert!(!waiter.is_finished(), "a replica lacks the grant");
        trio.resume(&[1]);
        let guard = waiter.await.expect("a grant");
        let had = token(&trio.replicas[1], "x");
        assert!(had >= guard.fencing_token().get(), "the replica has {had}");
    });
}

/// The connection that counts leads to another server, as behind a balancer or after its address has moved. That has a
/// replica which has all that it wrote, and the server of the lock has none.
#[test]
fn replicas_of_another_server_do_not_count() {
    case(async |mut trio| {
        let (other, its_replica) = (start(), start());
        replicates(&its_replica, other.addr().port()).await;
        let address = FaultProxy::start(trio.primary.addr()).expect("a proxy");
        let ann = client(address.addr(), "1", "1s").await;
        trio.pause(&[0, 1]);
        address.redirect(other.addr());
        let counting =
            || trio.primary.clients().expect("a list").into_iter().filter(|line| line.contains(" cmd=wait "));
        assert!(counting().count() > 0, "a connection counts");
        // On a busy machine the client may just have opened another one.
        let kill = || {
            for line in counting() {
                let id = line.split(' ').find_map(|field| field.strip_prefix("id=")).expect("a number");
                let _ = trio.primary.command(&["CLIENT", "KILL", "ID", id]);
            }
        };
        kill();
        let stopwatch = Stopwatch::start();
        // The first attempt may find the connection closed, and the second one the lease of the first, which is being
        // taken back.
        let replaced = async || match ann.lock("x").try_acquire().await {
            Ok(None) => false,
            Ok(Some(guard)) => panic!("no replica has it: {guard:?}"),
            Err(error) => error.to_string().contains("the server was replaced before its replicas were counted"),
        };
        while !replaced().await {
            stopwatch.within(SOON, "the other server was asked");
            kill();
        }
        eventually("it was taken back", || token(&trio.primary, "x") > 0 && !is_leased(&trio.primary, "x")).await;
        assert_eq!(token(&other, "x"), 0, "the lock is on the first server");
    });
}

/// The message that replicas confirm needs no memory at the server.
#[test]
fn a_full_server_prolongs_leases() {
    case(async |trio| {
        let ann = trio.client("all").await;
        let guard = hold(&ann, "held").await;
        trio.primary.command(&["CONFIG", "SET", "maxmemory", "1"]).expect("a setting");
        stays_held(&guard, TTL + TTL / 2).await;
        trio.primary.command(&["CONFIG", "SET", "maxmemory", "0"]).expect("a setting");
    });
}

/// Some hosted servers have no `WAIT`, and some users may not use it.
#[test]
fn a_server_that_counts_no_replicas_is_refused() {
    leasehold_conformance::run(leasehold_conformance::DEADLINE, || async {
        let rules = acl(PREFIX, ScriptCalls::Eval).expect("a prefix").replace("+wait", "");
        let start = |line: String| RedisSettings::new().line(line).start().unwrap_or_else(|error| panic!("{error}"));
        let without = start("rename-command WAIT \"\"".to_owned());
        let forbidden = start(format!("user locker on >secret {rules}"));
        for (server, user, kind) in
            [(&without, "", ErrorKind::Unsupported), (&forbidden, "locker:secret@", ErrorKind::Auth)]
        {
            let url = format!("redis://{user}{}/?timeout=1s", server.addr());
            RedisBackend::connect(&url).await.expect("it is not needed");
            let error = RedisBackend::connect(&format!("{url}&min_replicas=1")).await.expect_err("it is needed");
            assert_eq!(error.kind(), kind, "{error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    });
}
