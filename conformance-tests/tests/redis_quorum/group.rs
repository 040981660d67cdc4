//! Servers of a quorum for cases of their own: any number of them, each behind a fault proxy.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::redis::QuorumBackend;
use leasehold_conformance::harness::{Fault, FaultProxy};
use leasehold_conformance::{DEADLINE, Data, Direct, run};
use leasehold_core::{LockClient, LockName};
use leasehold_test_servers::{RedisServer, RedisSettings, Reply};

use super::common::{SOON, eventually};
use super::fixture::PREFIX;
use super::stored::{Stored, Vote};

pub(super) struct Group {
    pub(super) servers: Vec<RedisServer>,
    pub(super) proxies: Vec<FaultProxy>,
}

/// What a server keeps about itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    pub(super) floor: u64,
    pub(super) high: u64,
    /// It votes in its present run.
    pub(super) is_settled: bool,
}

/// Runs a case on this many servers.
pub(super) fn case<C, F>(count: usize, case: C)
where
    C: FnOnce(Group) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    run(DEADLINE, move || async move { case(Group::start(count)).await });
}

pub(super) fn name(text: &str) -> LockName {
    LockName::new(text).expect("a name")
}

pub(super) fn command(server: &RedisServer, command: &[&str]) -> Reply {
    server.command(command).unwrap_or_else(|error| panic!("{} fails: {error}", command[0]))
}

/// The URL of servers at these addresses.
pub(super) fn url(hosts: &[String], more: &str) -> String {
    format!("redis+quorum://{}/?prefix={PREFIX}{more}", hosts.join(","))
}

impl Group {
    pub(super) fn start(count: usize) -> Self {
        let start = |_| RedisSettings::new().persistent().steppable_clock().start();
        let servers: Vec<_> =
            (0..count).map(start).collect::<std::io::Result<_>>().unwrap_or_else(|error| panic!("{error}"));
        let proxy = |server: &RedisServer| FaultProxy::start(server.addr()).unwrap_or_else(|error| panic!("{error}"));
        let proxies = servers.iter().map(proxy).collect();
        Self { servers, proxies }
    }

    /// The addresses of the proxies.
    pub(super) fn hosts(&self) -> Vec<String> {
        self.proxies.iter().map(|proxy| proxy.addr().to_string()).collect()
    }

    /// With these parameters on top.
    pub(super) fn url(&self, more: &str) -> String {
        url(&self.hosts(), more)
    }

    /// A client that uses only the trait.
    pub(super) async fn direct(&self, more: &str) -> Direct {
        Direct::attach(Arc::new(self.backend(more).await))
    }

    pub(super) async fn backend(&self, more: &str) -> QuorumBackend {
        QuorumBackend::connect(&self.url(more)).await.unwrap_or_else(|error| panic!("not connected: {error:?}"))
    }

    pub(super) async fn client(&self, ttl: Duration, more: &str) -> LockClient {
        LockClient::builder(self.backend(more).await).ttl(ttl).wait(SOON).build().expect("a client")
    }

    /// The votes of these servers, as they say.
    pub(super) fn votes(&self, of: &[usize], lock: &str) -> Vec<Option<Vote>> {
        let stored = Stored { servers: &self.servers };
        of.iter().map(|server| stored.vote(*server, &name(lock))).collect()
    }

    /// How many of these servers vote for anybody.
    pub(super) fn live(&self, of: &[usize], lock: &str) -> usize {
        self.votes(of, lock).iter().flatten().filter(|vote| !vote.left.is_zero()).count()
    }

    pub(super) fn forget(&self, server: usize, lock: &str) {
        command(&self.servers[server], &["DEL", &Stored::key(&name(lock))]);
    }

    pub(super) fn restart(&mut self, server: usize, data: Data) {
        self.servers[server].kill().expect("a kill");
        self.servers[server].start_again(data).expect("a start");
    }

    pub(super) fn run_id(&self, server: usize) -> String {
        self.servers[server].info("server", "run_id").expect("INFO works")
    }

    /// `None` if the server has no state.
    pub(super) fn state(&self, server: usize) -> Option<State> {
        let key = format!("{PREFIX}quorum");
        let Reply::Bytes(raw) = command(&self.servers[server], &["GET", &key]) else { return None };
        let number = |at: usize| u64::from_be_bytes(raw[at..at + 8].try_into().expect("eight bytes"));
        let is_settled = raw[1..41] == *self.run_id(server).as_bytes();
        Some(State { floor: number(47), high: number(55), is_settled })
    }

    pub(super) fn is_settled(&self, server: usize) -> bool {
        self.state(server).is_some_and(|state| state.is_settled)
    }

    pub(super) async fn all_settled(&self) {
        eventually("all servers vote", || (0..self.servers.len()).all(|server| self.is_settled(server))).await;
    }

    /// Waits until a client is connected to every server again.
    pub(super) async fn all_vote_for(&self, client: &Direct) {
        let (all, until) = ((0..self.servers.len()).collect::<Vec<_>>(), Instant::now() + SOON);
        for number in 0.. {
            let lock = format!("connected {number}");
            // It fails while too few are connected to.
            let _ = client.acquire(&client.claim(&name(&lock)), Duration::from_secs(20)).await;
            if self.live(&all, &lock) == all.len() {
                return;
            }
            assert!(Instant::now() < until, "never: all servers vote");
        }
    }

    /// The replies of these servers arrive later.
    pub(super) fn delay_replies(&self, of: &[usize], by: Duration) {
        let fault = Fault::Delay { requests: Duration::ZERO, replies: by };
        of.iter().for_each(|server| self.proxies[*server].apply(fault));
    }

    pub(super) fn heal(&self) {
        self.proxies.iter().for_each(FaultProxy::heal);
    }
}
