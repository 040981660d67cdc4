//! A primary with two replicas and three Sentinels of its own, for failovers.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold::redis::RedisBackend;
use leasehold_conformance::Record;
use leasehold_conformance::harness::FaultProxy;
use leasehold_core::{LockClient, LockName};
use leasehold_test_servers::{RedisServer, RedisSettings, Reply};

use super::common::{SOON, eventually};
use super::received::received;
use super::replication::replicates;
use super::stored::Stored;

/// The name of the primary.
pub(super) const NAME: &str = "mymaster";

/// The default.
pub(super) const PREFIX: &str = "leasehold:";

/// When a Sentinel counts a server as down, in ms: while a case expects a failover, and otherwise. A busy machine may
/// stop a server for longer than the first.
const DOWN_AFTER: [&str; 2] = ["300", "60000"];

pub(super) struct Deployment {
    /// The first one begins as the primary.
    pub(super) servers: Vec<RedisServer>,
    pub(super) sentinels: Vec<RedisServer>,
    /// The paths of the first client to the Sentinels.
    pub(super) paths: Vec<FaultProxy>,
}

/// Runs a case with a primary and this many replicas.
pub(super) fn case<C, F>(replicas: usize, case: C)
where
    C: FnOnce(Deployment) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    leasehold_conformance::run(leasehold_conformance::DEADLINE, move || async move {
        case(Deployment::start(replicas, &[]).await).await;
    });
}

pub(super) fn run(server: &RedisServer, command: &[&str]) -> Reply {
    server.command(command).unwrap_or_else(|error| panic!("{} fails: {error}", command[0]))
}

/// The `field` of what a Sentinel knows of the primary.
fn known(sentinel: &RedisServer, field: &str) -> String {
    let fields = run(sentinel, &["SENTINEL", "MASTER", NAME]).items();
    let found = fields.chunks(2).find(|pair| pair[0].text() == field).map(|pair| pair[1].text());
    found.unwrap_or_else(|| panic!("SENTINEL MASTER has no {field}"))
}

pub(super) async fn client(url: &str, ttl: Duration) -> LockClient {
    let backend = RedisBackend::connect(url).await.unwrap_or_else(|error| panic!("not connected: {error:?}"));
    LockClient::builder(backend).wait(SOON).ttl(ttl).build().expect("a client")
}

impl Deployment {
    /// The lines are those of the configuration of each Sentinel.
    pub(super) async fn start(replicas: usize, lines: &[&str]) -> Self {
        let started = |settings: RedisSettings| settings.start().unwrap_or_else(|error| panic!("{error}"));
        let server = |_| started(RedisSettings::new().line("repl-diskless-sync-delay 0"));
        let sentinel = |_| started(lines.iter().fold(RedisSettings::new().sentinel(), |it, line| it.line(*line)));
        let servers: Vec<_> = (0..=replicas).map(server).collect();
        let sentinels: Vec<_> = (0..3).map(sentinel).collect();
        let proxy = |server: &RedisServer| FaultProxy::start(server.addr()).unwrap_or_else(|error| panic!("{error}"));
        let paths = sentinels.iter().map(proxy).collect();
        let it = Self { servers, sentinels, paths };
        let port = it.servers[0].addr().port();
        for replica in &it.servers[1..] {
            replicates(replica, port).await;
        }
        let port = port.to_string();
        for sentinel in &it.sentinels {
            run(sentinel, &["SENTINEL", "MONITOR", NAME, "127.0.0.1", &port, "2"]);
            run(sentinel, &["SENTINEL", "SET", NAME, "down-after-milliseconds", DOWN_AFTER[1]]);
        }
        it.introduce(&port).await;
        it
    }

    /// Sentinels learn of each other from messages that each publishes every 2 s. This publishes them at once.
    async fn introduce(&self, port: &str) {
        let hello = |sentinel: &RedisServer| {
            let (id, own) = (run(sentinel, &["SENTINEL", "MYID"]).text(), sentinel.addr().port());
            format!("127.0.0.1,{own},{id},0,{NAME},127.0.0.1,{port},0")
        };
        let hellos: Vec<_> = self.sentinels.iter().map(hello).collect();
        let replicas = (self.servers.len() - 1).to_string();
        let is_complete = || {
            let knows_all =
                |it: &RedisServer| known(it, "num-other-sentinels") == "2" && known(it, "num-slaves") == replicas;
            if self.sentinels.iter().all(knows_all) {
                return true;
            }
            for hello in &hellos {
                run(&self.servers[0], &["PUBLISH", "__sentinel__:hello", hello]);
            }
            std::thread::sleep(Duration::from_millis(20));
            false
        };
        eventually("the Sentinels know each other and the replicas", is_complete).await;
    }

    /// The URL of a client that reaches these Sentinels, with these settings on top.
    pub(super) fn url_of(&self, sentinels: &[SocketAddr], more: &str) -> String {
        let hosts: Vec<_> = sentinels.iter().map(ToString::to_string).collect();
        format!("redis+sentinel://{}/{NAME}?{more}", hosts.join(","))
    }

    /// The addresses of the Sentinels.
    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        self.sentinels.iter().map(|sentinel| sentinel.addr()).collect()
    }

    /// The URL of a client by the paths, with these settings on top.
    pub(super) fn url_by_paths(&self, more: &str) -> String {
        self.url_of(&self.paths.iter().map(FaultProxy::addr).collect::<Vec<_>>(), more)
    }

    pub(super) async fn client(&self, ttl: Duration) -> LockClient {
        client(&self.url_of(&self.addrs(), "timeout=1s"), ttl).await
    }

    /// A client by the paths.
    pub(super) async fn client_by_paths(&self, ttl: Duration, more: &str) -> LockClient {
        client(&self.url_by_paths(more), ttl).await
    }

    /// The replicas have what the primary has acknowledged.
    pub(super) async fn is_replicated(&self) {
        received(&self.servers[0], &self.servers[1..].iter().collect::<Vec<_>>()).await;
    }

    /// The replicas get nothing from the primary from now on. They have what it acknowledged before.
    pub(super) async fn cut_off(&self) {
        self.is_replicated().await;
        for replica in &self.servers[1..] {
            // The primary has no password, and so refuses every one.
            run(replica, &["CONFIG", "SET", "masterauth", "wrong"]);
        }
        run(&self.servers[0], &["CLIENT", "KILL", "TYPE", "replica"]);
    }

    /// The number of the server that this many Sentinels name.
    pub(super) fn named_by(&self, count: usize) -> Option<usize> {
        let ask = |sentinel: &RedisServer| {
            let answer = sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]).ok()?.items();
            let port: u16 = answer.get(1)?.text().parse().ok()?;
            self.servers.iter().position(|server| server.addr().port() == port)
        };
        let named: Vec<_> = self.sentinels.iter().filter(|sentinel| sentinel.is_running()).filter_map(ask).collect();
        (0..self.servers.len()).find(|server| named.iter().filter(|named| *named == server).count() >= count)
    }

    /// For so many of the Sentinels.
    fn count_as_down_after(&self, down_after: &str, sentinels: usize) {
        for sentinel in self.sentinels.iter().filter(|sentinel| sentinel.is_running()).take(sentinels) {
            run(sentinel, &["SENTINEL", "SET", NAME, "down-after-milliseconds", down_after]);
        }
    }

    /// Waits until a majority of the Sentinels names another server than the first, which has failed. Returns its
    /// number.
    pub(super) async fn switched(&self) -> usize {
        // Three that begin at once would each vote for themselves, and try again minutes later.
        self.count_as_down_after(DOWN_AFTER[0], 2);
        let is_so = || self.named_by(2).is_some_and(|named| named != 0);
        eventually("the Sentinels name another primary", is_so).await;
        self.count_as_down_after(DOWN_AFTER[1], self.sentinels.len());
        self.named_by(2).expect("named")
    }

    /// The record of a server.
    pub(super) fn record(&self, server: usize, name: &str) -> Record {
        let name = LockName::new(name).expect("a name");
        // A Sentinel closes all connections to a server whose role it changes. The next one is new.
        let _ = self.servers[server].command(&["PING"]);
        Stored::new(&self.servers[server], PREFIX).record(&name)
    }

    /// What is left of a lease, by the record of a server.
    pub(super) fn left(&self, server: usize, name: &str) -> Duration {
        self.record(server, name).holders.first().copied().unwrap_or_default()
    }
}
