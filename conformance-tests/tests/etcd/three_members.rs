//! An etcd of three members. Each fault of the path or of the server affects all of them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold::etcd::EtcdBackend;
use leasehold_conformance::harness::{Fault, Reach, TcpPath};
use leasehold_conformance::{Data, PathFault, Route};
use leasehold_core::backend::LockBackend;
use leasehold_test_servers::{EtcdCluster, EtcdServer, EtcdSettings, EtcdSide};

use super::fixture::{Deployment, EtcdFixture, MembersPath};

pub(super) type ThreeMembers = EtcdFixture<EtcdCluster>;

/// A path to each member.
pub(super) struct Paths {
    members: Vec<TcpPath>,
    is_broken: AtomicBool,
}

impl Deployment for EtcdCluster {
    type Path = Paths;

    fn start() -> io::Result<(Self, Paths)> {
        let cluster = EtcdSettings::new().start_cluster()?;
        let members = (0..Self::MEMBERS).map(|index| TcpPath::start(cluster.member(index).addr()));
        let paths = Paths { members: members.collect::<io::Result<_>>()?, is_broken: AtomicBool::new(false) };
        Ok((cluster, paths))
    }

    fn members(&self) -> Vec<&EtcdServer> {
        (0..Self::MEMBERS).map(|index| self.member(index)).collect()
    }

    fn side(&self) -> &EtcdSide {
        Self::side(self).unwrap_or_else(|error| panic!("no leader: {error}"))
    }

    fn stop(&mut self) -> io::Result<()> {
        (0..Self::MEMBERS).try_for_each(|index| self.member_mut(index).stop())
    }

    fn kill(&mut self) -> io::Result<()> {
        (0..Self::MEMBERS).try_for_each(|index| self.member_mut(index).kill())
    }

    fn start_again(&mut self) -> io::Result<()> {
        self.start_all_again(Data::Kept)
    }

    fn pause(&mut self) -> io::Result<()> {
        (0..Self::MEMBERS).try_for_each(|index| self.member_mut(index).pause())
    }

    fn resume(&mut self) -> io::Result<()> {
        (0..Self::MEMBERS).try_for_each(|index| self.member_mut(index).resume())
    }
}

impl Paths {
    fn each(&self, act: impl FnMut(&TcpPath)) {
        self.members.iter().for_each(act);
    }
}

impl MembersPath for Paths {
    fn hosts(&self, route: Route) -> String {
        let hosts: Vec<_> =
            self.members.iter().map(|path| path.addr(route)).map(|addr: SocketAddr| addr.to_string()).collect();
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
        self.each(|path| {
            path.proxy().apply_to(Fault::HalfOpen, Reach::Open);
            path.deliver();
        });
    }

    fn delivered(&self) {
        if !self.is_broken.load(Ordering::Acquire) {
            self.each(|path| path.proxy().heal());
        }
    }

    fn wrap(&self, backend: Arc<EtcdBackend>, route: Route) -> Arc<dyn LockBackend> {
        // Faults beside the proxies are those of one path.
        Arc::new(self.members[0].wrap(backend, route))
    }

    fn clients(&self) -> u64 {
        self.members[0].clients()
    }
}
