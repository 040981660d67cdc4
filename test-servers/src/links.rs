//! The connections between the servers of a cluster.

use std::io;
use std::net::SocketAddr;

use leasehold_conformance::harness::{Fault, FaultProxy};

/// A fault proxy for each direction of each pair of servers, and for each port that the servers of a pair connect to.
#[derive(Debug, Default)]
pub(crate) struct Links(Vec<Link>);

/// The connections that one server opens to a port of another one.
#[derive(Debug)]
struct Link {
    from: usize,
    to: usize,
    proxy: FaultProxy,
}

impl Links {
    /// Adds a link. Returns the address to which the server `from` connects instead of `port`, a port of `to`.
    ///
    /// # Errors
    /// Those of [`FaultProxy::start`].
    pub(crate) fn add(&mut self, from: usize, to: usize, port: SocketAddr) -> io::Result<SocketAddr> {
        let proxy = FaultProxy::start(port)?;
        let addr = proxy.addr();
        self.0.push(Link { from, to, proxy });
        Ok(addr)
    }

    /// No byte passes between this server and the others any more, in both directions and without an end of a connection.
    pub(crate) fn cut(&self, server: usize) {
        self.apply(Fault::DropTraffic, |link| link.from == server || link.to == server);
    }

    /// The same between two servers.
    pub(crate) fn cut_between(&self, one: usize, other: usize) {
        self.apply(Fault::DropTraffic, |link| [(one, other), (other, one)].contains(&(link.from, link.to)));
    }

    /// Servers that are started do not find each other.
    pub(crate) fn refuse(&self) {
        self.apply(Fault::Refuse, |_| true);
    }

    /// All bytes pass again. Connections that lost bytes are reset.
    pub(crate) fn heal(&self) {
        self.0.iter().for_each(|link| link.proxy.heal());
    }

    /// The server `to` listens on another port instead of `port`.
    pub(crate) fn redirect(&self, to: usize, port: SocketAddr) {
        self.0.iter().filter(|link| link.to == to).for_each(|link| link.proxy.redirect(port));
    }

    fn apply(&self, fault: Fault, is_affected: impl Fn(&Link) -> bool) {
        self.0.iter().filter(|link| is_affected(link)).for_each(|link| link.proxy.apply(fault));
    }
}
