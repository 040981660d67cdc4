//! The paths from clients to several servers that they reach over TCP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use leasehold_core::backend::LockBackend;

use super::{FaultProxy, TcpPath};
use crate::fault::PathFault;
use crate::faulty::Faulty;
use crate::fixture::Route;

/// A [`TcpPath`] to each of several servers. Every fault affects all of them.
pub struct TcpPaths(Vec<TcpPath>);

impl TcpPaths {
    /// Starts the proxies of the servers (at least one). Call this on the runtime of the case.
    ///
    /// # Errors
    /// Those of [`TcpPath::start`].
    pub fn start(servers: impl IntoIterator<Item = SocketAddr>) -> io::Result<Self> {
        servers.into_iter().map(TcpPath::start).collect::<io::Result<_>>().map(Self)
    }

    /// The addresses that clients on this route connect to, as a URL has them.
    pub fn hosts(&self, route: Route) -> String {
        let hosts: Vec<_> = self.0.iter().map(|path| path.addr(route).to_string()).collect();
        hosts.join(",")
    }

    /// The proxies, in the order of the servers.
    pub fn proxies(&self) -> impl Iterator<Item = &FaultProxy> {
        self.0.iter().map(TcpPath::proxy)
    }

    /// Whether this route has a fault, so that a client on it may not be able to connect.
    pub fn is_broken(&self, route: Route) -> bool {
        self.0.iter().any(|path| path.is_broken(route))
    }

    /// A backend whose clients use this route.
    pub fn wrap<B: LockBackend + ?Sized>(&self, backend: Arc<B>, route: Route) -> Faulty<B> {
        // The faults beside the proxies are those of the first path.
        self.0[0].wrap(backend, route)
    }

    /// How many backends are attached and not dropped.
    pub fn clients(&self) -> u64 {
        self.0[0].clients()
    }

    /// [`Fixture::path`](crate::Fixture::path).
    pub fn apply(&self, fault: &PathFault) {
        self.0.iter().for_each(|path| path.apply(fault.clone()));
    }

    /// [`Fixture::heal`](crate::Fixture::heal).
    pub fn heal(&self) {
        self.0.iter().for_each(TcpPath::heal);
    }

    /// Delivers the held requests, as [`TcpPath::deliver`].
    pub fn deliver(&self) {
        self.0.iter().for_each(TcpPath::deliver);
    }
}
