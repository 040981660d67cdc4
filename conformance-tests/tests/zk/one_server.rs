//! A ZooKeeper of one server.

use std::io;
use std::sync::Arc;

use leasehold::zk::ZkBackend;
use leasehold_conformance::harness::TcpPath;
use leasehold_conformance::{Data, PathFault, Route};
use leasehold_core::backend::LockBackend;
use leasehold_test_servers::{ZooKeeperServer, ZooKeeperSide};

use super::fixture::{Deployment, ServersPath, ZkFixture, settings};
use super::reused::Idle;

pub(super) type OneServer = ZkFixture<ZooKeeperServer>;

impl Deployment for ZooKeeperServer {
    type Path = TcpPath;

    fn idle() -> &'static Idle<Self> {
        static IDLE: Idle<ZooKeeperServer> = Idle::new();
        &IDLE
    }

    fn start() -> io::Result<Self> {
        settings().start()
    }

    fn path(&self) -> io::Result<TcpPath> {
        TcpPath::start(self.addr())
    }

    fn servers(&self) -> Vec<&ZooKeeperServer> {
        vec![self]
    }

    fn side(&self) -> &ZooKeeperSide {
        Self::side(self)
    }

    fn stop(&mut self) -> io::Result<()> {
        (**self).stop()
    }

    fn kill(&mut self) -> io::Result<()> {
        (**self).kill()
    }

    fn start_again(&mut self) -> io::Result<()> {
        Self::start_again(self, Data::Kept)
    }

    fn pause(&mut self) -> io::Result<()> {
        (**self).pause()
    }

    fn resume(&mut self) -> io::Result<()> {
        (**self).resume()
    }
}

impl ServersPath for TcpPath {
    fn hosts(&self, route: Route) -> String {
        self.addr(route).to_string()
    }

    fn is_broken(&self, route: Route) -> bool {
        Self::is_broken(self, route)
    }

    fn apply(&self, fault: PathFault) {
        Self::apply(self, fault);
    }

    fn heal(&self) {
        Self::heal(self);
    }

    fn deliver(&self) {
        Self::deliver(self);
    }

    fn wrap(&self, backend: Arc<ZkBackend>, route: Route) -> Arc<dyn LockBackend> {
        Arc::new(Self::wrap(self, backend, route))
    }
}
