//! An etcd of one member.

use std::io;
use std::sync::Arc;

use leasehold::etcd::EtcdBackend;
use leasehold_conformance::harness::{Fault, Reach, TcpPath};
use leasehold_conformance::{Data, PathFault, Route};
use leasehold_core::backend::LockBackend;
use leasehold_test_servers::{EtcdServer, EtcdSettings, EtcdSide};

use super::fixture::{Deployment, EtcdFixture, MembersPath};

pub(super) type OneMember = EtcdFixture<EtcdServer>;

impl Deployment for EtcdServer {
    type Path = TcpPath;

    fn start() -> io::Result<(Self, TcpPath)> {
        let server = EtcdSettings::new().start()?;
        let path = TcpPath::start(server.addr())?;
        Ok((server, path))
    }

    fn members(&self) -> Vec<&EtcdServer> {
        vec![self]
    }

    fn side(&self) -> &EtcdSide {
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

impl MembersPath for TcpPath {
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
        self.proxy().apply_to(Fault::HalfOpen, Reach::Open);
        Self::deliver(self);
    }

    fn delivered(&self) {
        if !Self::is_broken(self, Route::Faulty) {
            self.proxy().heal();
        }
    }

    fn wrap(&self, backend: Arc<EtcdBackend>, route: Route) -> Arc<dyn LockBackend> {
        Arc::new(Self::wrap(self, backend, route))
    }

    fn clients(&self) -> u64 {
        Self::clients(self)
    }
}
