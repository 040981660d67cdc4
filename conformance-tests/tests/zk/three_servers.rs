//! A ZooKeeper of three servers. Each fault of the path or of the server affects all of them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold::zk::ZkBackend;
use leasehold_conformance::harness::TcpPath;
use leasehold_conformance::{Data, PathFault, Route};
use leasehold_core::backend::LockBackend;
use leasehold_test_servers::{ZooKeeperEnsemble, ZooKeeperServer, ZooKeeperSide};

use super::fixture::{Deployment, ServersPath, ZkFixture, settings};
use super::reused::Idle;

pub(super) type ThreeServers = ZkFixture<ZooKeeperEnsemble>;

/// Servers that were all paused for two seconds do not miss each other.
const SYNC_LIMIT: &str = "syncLimit=40";

/// A path to each server.
pub(super) struct Paths {
    servers: Vec<TcpPath>,
    is_broken: AtomicBool,
}

impl Deployment for ZooKeeperEnsemble {
    type Path = Paths;

    fn idle() -> &'static Idle<Self> {
        static IDLE: Idle<ZooKeeperEnsemble> = Idle::new();
        &IDLE
    }

    fn start() -> io::Result<Self> {
        settings().line(SYNC_LIMIT).start_ensemble()
    }

    fn path(&self) -> io::Result<Paths> {
        let servers = (0..Self::SERVERS).map(|index| TcpPath::start(self.server(index).addr()));
        Ok(Paths { servers: servers.collect::<io::Result<_>>()?, is_broken: AtomicBool::new(false) })
    }

    fn servers(&self) -> Vec<&ZooKeeperServer> {
        (0..Self::SERVERS).map(|index| self.server(index)).collect()
    }

    fn side(&self) -> &ZooKeeperSide {
        Self::side(self).unwrap_or_else(|error| panic!("no leader: {error}"))
    }

    fn stop(&mut self) -> io::Result<()> {
        (0..Self::SERVERS).try_for_each(|index| self.server_mut(index).stop())
    }

    fn kill(&mut self) -> io::Result<()> {
        (0..Self::SERVERS).try_for_each(|index| self.server_mut(index).kill())
    }

    fn start_again(&mut self) -> io::Result<()> {
        self.start_all_again(Data::Kept)
    }

    fn pause(&mut self) -> io::Result<()> {
        (0..Self::SERVERS).try_for_each(|index| self.server_mut(index).pause())
    }

    fn resume(&mut self) -> io::Result<()> {
        (0..Self::SERVERS).try_for_each(|index| self.server_mut(index).resume())
    }
}

impl Paths {
    fn each(&self, act: impl FnMut(&TcpPath)) {
        self.servers.iter().for_each(act);
    }
}

impl ServersPath for Paths {
    fn hosts(&self, route: Route) -> String {
        let hosts: Vec<_> =
            self.servers.iter().map(|path| path.addr(route)).map(|addr: SocketAddr| addr.to_string()).collect();
        hosts.join(",")
    }

    fn is_broken(&self, route: Route) -> bool {
        route == Route::Faulty && self.is_broken.load(Ordering::Acquire)
    }

    fn apply(&self, fault: PathFault) {
        self.is_broken.store(true, Ordering::Release);
        self.each(|path| path.apply(fault.clone()));
    }

    fn heal(&self) {
        self.is_broken.store(false, Ordering::Release);
        self.each(TcpPath::heal);
    }

    fn deliver(&self) {
        self.each(TcpPath::deliver);
    }

    fn wrap(&self, backend: Arc<ZkBackend>, route: Route) -> Arc<dyn LockBackend> {
        // Faults beside the proxies are those of one path.
        Arc::new(self.servers[0].wrap(backend, route))
    }
}
