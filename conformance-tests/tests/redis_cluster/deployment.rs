//! Three primaries with a replica each.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use leasehold::redis::RedisBackend;
use leasehold_conformance::{Direct, Record};
use leasehold_core::{Error, ErrorKind, LockClient, LockGuard, LockName, Result};
use leasehold_test_servers::{RedisCluster, RedisServer, RedisSettings, Reply};

use super::common::{SOON, Stopwatch, eventually};
use super::received::received;
use super::stored::{Head, Stored};

/// The default.
pub(super) const PREFIX: &str = "leasehold:";

/// The bound of a call, for cases in which a busy machine must not look like a node that fails.
pub(super) const PATIENT: &str = "4s";

/// The pause between two requests to promote a replica.
const AGAIN: Duration = Duration::from_millis(100);

pub(super) struct Deployment {
    pub(super) cluster: RedisCluster,
}

/// Runs a case with three primaries.
pub(super) fn case<C, F>(case: C)
where
    C: FnOnce(Deployment) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    leasehold_conformance::run(leasehold_conformance::DEADLINE, move || async move {
        let cluster = RedisCluster::start(3, &settings()).unwrap_or_else(|error| panic!("{error}"));
        case(Deployment { cluster }).await;
    });
}

/// Of each node.
pub(super) fn settings() -> RedisSettings {
    let settings = RedisSettings::new().line("repl-diskless-sync-delay 0");
    settings.line("cluster-replica-validity-factor 0").line("cluster-require-full-coverage no")
}

pub(super) fn run(server: &RedisServer, command: &[&str]) -> Reply {
    server.command(command).unwrap_or_else(|error| panic!("{} fails: {error}", command[0]))
}

pub(super) fn name(text: &str) -> LockName {
    LockName::new(text).expect("a name")
}

/// Whether a node has a live lease under this key of a record, while its slot is moved from or to that node.
pub(super) fn has_lease(node: &RedisServer, key: &str) -> bool {
    // A node that takes the slot over serves only the command that follows this one.
    run(node, &["ASKING"]);
    match node.command(&["GET", key]) {
        Ok(Reply::Bytes(record)) => Head::read(&record).deadline > Stored::new(node, PREFIX).now(),
        Ok(_) => false,
        // The key is not here.
        Err(error) if ["ASK ", "MOVED "].iter().any(|code| error.to_string().starts_with(code)) => false,
        Err(error) => panic!("GET fails: {error}"),
    }
}

/// The error of a call that must fail and do nothing. Repeats a call whose reply comes too late.
pub(super) async fn refused<T: Debug>(mut call: impl AsyncFnMut() -> Result<T>) -> Error {
    let begin = Stopwatch::start();
    loop {
        let error = call().await.expect_err("it is refused");
        if error.kind() != ErrorKind::Indeterminate {
            return error;
        }
        begin.within(SOON, "a reply comes in time");
    }
}

/// Longer than a lease lasts without its renewals.
pub(super) async fn outlasts(guard: &LockGuard, ttl: Duration, what: &str) {
    let begin = Stopwatch::start();
    while begin.elapsed() < ttl * 5 / 4 {
        assert!(guard.is_held(), "lost {:?} after this: {what}", begin.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl Deployment {
    /// The URL of the first node, with this bound of a call.
    pub(super) fn url(&self, timeout: &str) -> String {
        format!("redis+cluster://{}/?timeout={timeout}", self.cluster.nodes[0].addr())
    }

    /// Connects with this bound of a call. A busy machine may need several attempts.
    pub(super) async fn backend(&self, timeout: &str) -> RedisBackend {
        let (url, begin) = (self.url(timeout), Stopwatch::start());
        loop {
            match RedisBackend::connect(&url).await {
                Ok(backend) => return backend,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}"),
            }
            begin.within(SOON, "a node is reached");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(super) async fn client(&self, ttl: Duration) -> LockClient {
        self.client_within("1s", ttl).await
    }

    /// A client with this bound of a call.
    pub(super) async fn client_within(&self, timeout: &str, ttl: Duration) -> LockClient {
        LockClient::builder(self.backend(timeout).await).wait(SOON).ttl(ttl).build().expect("a client")
    }

    pub(super) async fn direct(&self) -> Direct {
        self.direct_within("1s").await
    }

    /// One with this bound of a call.
    pub(super) async fn direct_within(&self, timeout: &str) -> Direct {
        Direct::attach(Arc::new(self.backend(timeout).await))
    }

    /// The key of the record of a lock, its slot and the number of the node that serves it.
    pub(super) fn place(&self, lock: &str) -> (String, u16, usize) {
        let key = format!("{PREFIX}{{{lock}}}");
        let slot = self.cluster.slot(&key).unwrap_or_else(|error| panic!("{error}"));
        (key, slot, self.cluster.owner(slot))
    }

    /// The replica of a primary has what that has acknowledged, and can be promoted: the others, who vote for it, know
    /// whose replica it is.
    pub(super) async fn is_replicated(&self, primary: usize) {
        let nodes = &self.cluster.nodes;
        let [id, replica] = [primary, primary + 3].map(|node| run(&nodes[node], &["CLUSTER", "MYID"]).text());
        let of_primary = format!(" {id} ");
        let knows = |node: &RedisServer| {
            let known = run(node, &["CLUSTER", "NODES"]).text();
            known.lines().any(|line| line.starts_with(&replica) && line.contains(&of_primary))
        };
        eventually("each node knows the replica", || nodes.iter().all(knows)).await;
        received(&nodes[primary], &[&nodes[primary + 3]]).await;
    }

    /// The replica of a primary gets nothing from it from now on. It has what the primary acknowledged before.
    pub(super) async fn cut_off(&self, primary: usize) {
        self.is_replicated(primary).await;
        let nodes = &self.cluster.nodes;
        // The primary has no password, and so refuses every one.
        run(&nodes[primary + 3], &["CONFIG", "SET", "masterauth", "wrong"]);
        run(&nodes[primary], &["CLIENT", "KILL", "TYPE", "replica"]);
    }

    /// A primary dies, and its replica is [promoted](Self::promote).
    pub(super) async fn fail(&mut self, primary: usize) -> (usize, Stopwatch) {
        self.cluster.nodes[primary].kill().expect("it runs");
        self.promote(primary).await
    }

    /// A primary is silent from now on, with its connections open, and its replica is [promoted](Self::promote).
    pub(super) async fn fail_silently(&mut self, primary: usize) -> (usize, Stopwatch) {
        self.cluster.nodes[primary].pause().expect("it runs");
        self.promote(primary).await
    }

    /// The other nodes promote the replica of a primary that does not reply. They do not wait until its silence has
    /// lasted for `cluster-node-timeout`: a busy machine may stop a node for longer. Returns the number of the replica,
    /// and a stopwatch that was started just before it was promoted. The replica [is known](Self::is_replicated).
    async fn promote(&self, primary: usize) -> (usize, Stopwatch) {
        let number = primary + 3;
        let replica = &self.cluster.nodes[number];
        let begin = Stopwatch::start();
        let (mut promoted, mut asked) = (begin, None::<Stopwatch>);
        loop {
            let before = Stopwatch::start();
            if replica.info("replication", "role").is_ok_and(|role| role == "master") {
                break;
            }
            promoted = before;
            begin.within(SOON, "the replica is promoted");
            if asked.is_none_or(|asked| asked.elapsed() >= AGAIN) {
                asked = Some(before);
                // As for a primary that is known to have failed, it asks the others for their votes, and not the
                // primary. It refuses this if it has just been promoted.
                let _ = replica.command(&["CLUSTER", "FAILOVER", "FORCE"]);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let is_up = |node: &RedisServer| run(node, &["CLUSTER", "INFO"]).text().contains("cluster_state:ok");
        let others = || self.cluster.nodes.iter().enumerate().filter(|(number, _)| *number != primary);
        eventually("the others serve", || others().all(|(_, node)| is_up(node))).await;
        (number, promoted)
    }

    /// A primary and its replica die. The other nodes have not noticed it yet.
    pub(super) fn kill_all_of(&mut self, primary: usize) {
        for node in [primary, primary + 3] {
            self.cluster.nodes[node].kill().expect("it runs");
        }
    }

    /// A primary and its replica are silent, with their connections open. The other nodes have not noticed it yet.
    pub(super) fn pause_all_of(&mut self, primary: usize) {
        for node in [primary, primary + 3] {
            self.cluster.nodes[node].pause().expect("it runs");
        }
    }

    /// What a node has of a lock.
    pub(super) fn record(node: &RedisServer, lock: &str) -> Record {
        Stored::new(node, PREFIX).record(&name(lock))
    }
}
