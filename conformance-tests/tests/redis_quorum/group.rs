//! Servers of a quorum for cases of their own: any number of them, each behind a fault proxy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::redis::QuorumBackend;
use leasehold_conformance::harness::{Fault, FaultProxy};
use leasehold_conformance::{DEADLINE, Data, Direct, run};
use leasehold_core::backend::{Admin, Claim, Grant, PlaceNumber, RenewRequest};
use leasehold_core::{LockClient, LockName};
use leasehold_test_servers::{RedisServer, RedisSettings, Reply};

use super::common::{SOON, eventually};
use super::fixture::PREFIX;
use super::stored::{State, Stored, Vote};

pub(super) struct Group {
    pub(super) servers: Vec<RedisServer>,
    pub(super) proxies: Vec<FaultProxy>,
    /// A client has come.
    is_used: AtomicBool,
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

/// Waits until a client is connected to all its servers, or for two seconds if it cannot be: it is ready as soon as it
/// is connected to a majority, and sends nothing to the others until it is connected to them, too.
pub(super) async fn reach_all(backend: &QuorumBackend, servers: usize) {
    let until = Instant::now() + Duration::from_secs(2);
    // What was found on each server that replied.
    let found = async || {
        let checks = backend.examine().await.unwrap_or_default();
        let memory = checks.iter().find(|check| check.about == "memory");
        memory.map_or(0, |check| check.found.split("; ").count())
    };
    while Instant::now() < until && found().await < servers {}
}

/// Acquires a lock with the votes of all servers. A request that was not sent when a majority has voted is taken back,
/// and the next renewal asks for the vote.
pub(super) async fn granted_by_all(
    client: &Direct,
    claim: &Claim,
    ttl: Duration,
    do_all_vote: impl Fn() -> bool,
) -> Grant {
    let grant = client.granted(claim, ttl).await;
    while !do_all_vote() {
        client.renew(RenewRequest::new(claim.clone(), PlaceNumber::NONE, ttl)).await;
    }
    grant
}

/// Waits until servers that were never used vote: before that, a client may be granted a lock by a part of them.
pub(super) async fn first_use(url: &str, do_all_vote: impl Fn() -> bool) {
    let backend = QuorumBackend::connect(url).await.unwrap_or_else(|error| panic!("not connected: {error:?}"));
    let _client = Direct::attach(Arc::new(backend));
    eventually("all servers vote", do_all_vote).await;
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
        Self { servers, proxies, is_used: AtomicBool::new(false) }
    }

    /// The addresses of the proxies.
    pub(super) fn hosts(&self) -> Vec<String> {
        self.proxies.iter().map(|proxy| proxy.addr().to_string()).collect()
    }

    /// With these parameters on top.
    pub(super) fn url(&self, more: &str) -> String {
        url(&self.hosts(), more)
    }

    /// A client that uses only the trait. It reaches all servers, and all of them vote.
    pub(super) async fn direct(&self, more: &str) -> Direct {
        Direct::attach(Arc::new(self.backend(more).await))
    }

    pub(super) async fn backend(&self, more: &str) -> QuorumBackend {
        if !self.is_used.swap(true, Ordering::Relaxed) {
            first_use(&self.url(more), || self.do_all_vote()).await;
        }
        let backend = self.connect(more).await;
        reach_all(&backend, self.servers.len()).await;
        backend
    }

    /// A client that reaches a majority.
    pub(super) async fn connect(&self, more: &str) -> QuorumBackend {
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

    pub(super) fn state(&self, server: usize) -> Option<State> {
        State::of(&self.servers[server])
    }

    pub(super) fn is_settled(&self, server: usize) -> bool {
        self.state(server).is_some_and(|state| state.is_settled)
    }

    pub(super) fn do_all_vote(&self) -> bool {
        (0..self.servers.len()).all(|server| self.is_settled(server))
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
