//! A primary and a replica, and addresses for clients that lead to one of them.

use std::time::{Duration, Instant};

use leasehold::redis::RedisBackend;
use leasehold_conformance::harness::{Fault, FaultProxy};
use leasehold_core::{LockClient, LockGuard};
use leasehold_test_servers::{RedisServer, RedisSettings};

use super::received::received;
use super::replication::replicates;
use super::support::{SOON, hold};

/// The ttl of the lease that the replica lacks.
pub(super) const TTL: Duration = Duration::from_secs(4);

/// A primary and a replica.
pub(super) struct Pair {
    pub(super) primary: RedisServer,
    pub(super) replica: RedisServer,
    /// Replicas receive the data of a primary through it.
    pub(super) link: FaultProxy,
    address: FaultProxy,
    /// The address of clients that are cut off later.
    holders: FaultProxy,
}

pub(super) fn case<C, F>(case: C)
where
    C: FnOnce(Pair) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    leasehold_conformance::run(leasehold_conformance::DEADLINE, || async { case(Pair::start().await).await });
}

pub(super) fn run(server: &RedisServer, command: &[&str]) {
    server.command(command).unwrap_or_else(|error| panic!("{} fails: {error}", command[0]));
}

impl Pair {
    async fn start() -> Self {
        let start = |settings: RedisSettings| settings.start().unwrap_or_else(|error| panic!("{error}"));
        let proxy = |server: &RedisServer| FaultProxy::start(server.addr()).unwrap_or_else(|error| panic!("{error}"));
        let primary = start(RedisSettings::new().line("repl-diskless-sync-delay 0"));
        let [link, address, holders] = [0; 3].map(|_| proxy(&primary));
        let replica = start(RedisSettings::new().line("repl-diskless-sync-delay 0"));
        let it = Self { primary, replica, link, address, holders };
        it.replicates(&it.replica).await;
        it
    }

    /// Makes a server a replica, which has all data when this returns.
    pub(super) async fn replicates(&self, replica: &RedisServer) {
        replicates(replica, self.link.addr().port()).await;
    }

    pub(super) async fn client(&self, ttl: Duration) -> LockClient {
        Self::connected(&self.address, ttl).await
    }

    /// A client for [`cut_off_holders`](Self::cut_off_holders).
    pub(super) async fn holder(&self, ttl: Duration) -> LockClient {
        Self::connected(&self.holders, ttl).await
    }

    async fn connected(address: &FaultProxy, ttl: Duration) -> LockClient {
        let url = format!("redis://{}/?timeout=1s", address.addr());
        let backend = RedisBackend::connect(&url).await.unwrap_or_else(|error| panic!("not connected: {error:?}"));
        LockClient::builder(backend).wait(SOON).ttl(ttl).build().expect("a client")
    }

    /// From now on the replica does not receive what the primary acknowledges. It has all that was acknowledged before.
    pub(super) async fn cut_off_replica(&self) {
        received(&self.primary, &[&self.replica]).await;
        self.link.apply(Fault::DropTraffic);
    }

    /// The clients of [`holder`](Self::holder) reach no server from now on.
    pub(super) fn cut_off_holders(&self) {
        self.holders.apply(Fault::Refuse);
        self.holders.apply(Fault::Disconnect);
    }

    /// Clients reach this server from now on.
    pub(super) fn leads_to(&self, server: &RedisServer) {
        for address in [&self.address, &self.holders] {
            address.redirect(server.addr());
            address.apply(Fault::Disconnect);
        }
    }
}

/// Makes a replica a primary. Returns a time just before that.
pub(super) fn promote(replica: &RedisServer) -> Instant {
    let before = Instant::now();
    run(replica, &["REPLICAOF", "NO", "ONE"]);
    before
}

/// Ann holds a lock that no replica has, and the pair has been up for longer than her ttl.
pub(super) async fn hold_unreplicated(pair: &Pair, ann: &LockClient) -> LockGuard {
    hold(ann, "used before").await.release().await.expect("a release");
    tokio::time::sleep(TTL).await;
    pair.cut_off_replica().await;
    hold(ann, "lost").await
}
