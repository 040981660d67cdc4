//! The path from clients to a server that they reach over TCP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold_core::backend::LockBackend;

use super::{Fault, FaultProxy};
use crate::fault::PathFault;
use crate::faulty::{Faults, Faulty};
use crate::fixture::Route;

/// Both routes to a server over TCP. A [`Fixture`](crate::Fixture) of such a server owns one and delegates its methods
/// about the path to it: the fault proxy injects the faults that it can, and [`Faults`] the others.
pub struct TcpPath {
    server: SocketAddr,
    proxy: FaultProxy,
    /// Faults without the proxy: lost pushes and doubled requests.
    faults: Faults,
    /// Whether the path has a fault.
    is_broken: AtomicBool,
}

impl TcpPath {
    /// Starts the proxy of a server. Call this on the runtime of the case.
    ///
    /// # Errors
    /// Those of [`FaultProxy::start`].
    pub fn start(server: SocketAddr) -> io::Result<Self> {
        Ok(Self::new(server, FaultProxy::start(server)?))
    }

    /// The same for clients that send probes.
    ///
    /// # Errors
    /// Those of [`FaultProxy::start_with_probe`].
    pub fn start_with_probe(server: SocketAddr, is_probe: fn(&[u8]) -> bool) -> io::Result<Self> {
        Ok(Self::new(server, FaultProxy::start_with_probe(server, is_probe)?))
    }

    fn new(server: SocketAddr, proxy: FaultProxy) -> Self {
        let faults = Faults::new(tokio::runtime::Handle::current());
        Self { server, proxy, faults, is_broken: AtomicBool::new(false) }
    }

    /// The address that clients on this route connect to.
    pub fn addr(&self, route: Route) -> SocketAddr {
        match route {
            Route::Clear => self.server,
            Route::Faulty => self.proxy.addr(),
        }
    }

    /// The proxy.
    pub fn proxy(&self) -> &FaultProxy {
        &self.proxy
    }

    /// Whether this route has a fault, so that a client on it may not be able to connect.
    pub fn is_broken(&self, route: Route) -> bool {
        route == Route::Faulty && self.is_broken.load(Ordering::Acquire)
    }

    /// A backend whose clients use this route.
    pub fn wrap<B: LockBackend + ?Sized>(&self, backend: Arc<B>, route: Route) -> Faulty<B> {
        self.faults.wrap(backend, route)
    }

    /// How many backends are attached and not dropped.
    pub fn clients(&self) -> u64 {
        self.faults.connections()
    }

    /// [`Fixture::path`](crate::Fixture::path).
    pub fn apply(&self, fault: PathFault) {
        self.heal();
        self.is_broken.store(true, Ordering::Release);
        match fault {
            PathFault::Disconnect => {
                self.proxy.apply(Fault::Refuse);
                self.proxy.apply(Fault::Disconnect);
            }
            PathFault::DropTraffic => self.proxy.apply(Fault::DropTraffic),
            PathFault::Delay(delay) => self.proxy.apply(Fault::Delay { requests: delay, replies: delay }),
            PathFault::LoseReplies => self.proxy.apply(Fault::LoseReplies),
            PathFault::Hold => self.proxy.apply(Fault::HoldRequests),
            PathFault::LosePushes | PathFault::Double => self.faults.path(fault),
        }
    }

    /// [`Fixture::heal`](crate::Fixture::heal).
    pub fn heal(&self) {
        self.is_broken.store(false, Ordering::Release);
        self.proxy.heal();
        self.faults.heal();
    }

    /// Delivers the held requests to the server's sockets. The server has not necessarily read them when this returns.
    pub fn deliver(&self) {
        self.proxy.deliver();
    }
}
