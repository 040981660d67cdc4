//! The connections between the servers of a cluster.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use leasehold_conformance::harness::{Fault, FaultProxy};

/// A fault proxy for each direction of each pair of servers, and for each port that the servers of a pair connect to.
#[derive(Debug, Default)]
pub(crate) struct Links(Vec<Link>);

/// The connections that one server opens to a port of another one.
#[derive(Debug)]
struct Link {
    from: usize,
    to: usize,
    port: SocketAddr,
    proxy: FaultProxy,
}

impl Links {
    /// Adds a link. Returns the address that the server `from` connects to instead of `port`, a port of the server
    /// `to`.
    ///
    /// # Errors
    /// Those of [`FaultProxy::start`].
    pub(crate) fn add(&mut self, from: usize, to: usize, port: SocketAddr) -> io::Result<SocketAddr> {
        self.add_with_connect_timeout(from, to, port, Duration::ZERO)
    }

    /// The same, for a server that may not listen on the port yet when the other one connects.
    ///
    /// # Errors
    /// The same.
    pub(crate) fn add_with_connect_timeout(
        &mut self,
        from: usize,
        to: usize,
        port: SocketAddr,
        connect_timeout: Duration,
    ) -> io::Result<SocketAddr> {
        let proxy = FaultProxy::start_with_connect_timeout(port, connect_timeout)?;
        let addr = proxy.addr();
        self.0.push(Link { from, to, port, proxy });
        Ok(addr)
    }

    /// No byte passes between this server and the others any more, in both directions. The connections stay open.
    pub(crate) fn cut(&self, server: usize) {
        self.apply(Fault::DropTraffic, |link| link.from == server || link.to == server);
    }

    /// The same between two servers.
    pub(crate) fn cut_between(&self, one: usize, other: usize) {
        self.apply(Fault::DropTraffic, |link| [(one, other), (other, one)].contains(&(link.from, link.to)));
    }

    /// Delays what the others send this server on the connections that it has opened.
    pub(crate) fn delay(&self, server: usize, delay: Duration) {
        let fault = Fault::Delay { requests: Duration::ZERO, replies: delay };
        self.apply(fault, |link| link.from == server);
    }

    /// Servers that are started do not find each other.
    pub(crate) fn refuse(&self) {
        self.apply(Fault::Refuse, |_| true);
    }

    /// All bytes pass again. Connections that lost bytes are reset.
    pub(crate) fn heal(&self) {
        self.0.iter().for_each(|link| link.proxy.heal());
    }

    /// A server listens on the port `new` instead of `old`.
    pub(crate) fn redirect(&mut self, old: SocketAddr, new: SocketAddr) {
        for link in self.0.iter_mut().filter(|link| link.port == old) {
            link.proxy.redirect(new);
            link.port = new;
        }
    }

    fn apply(&self, fault: Fault, is_affected: impl Fn(&Link) -> bool) {
        self.0.iter().filter(|link| is_affected(link)).for_each(|link| link.proxy.apply(fault));
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;

    const SERVERS: usize = 3;

    /// Long enough for a byte that passes, as it does within a millisecond.
    const PASSES: Duration = Duration::from_millis(500);

    /// A server that replies to one byte of each connection with its number.
    fn server(number: u8) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                std::thread::spawn(move || {
                    let mut stream = stream.unwrap();
                    if stream.read_exact(&mut [0]).is_ok() {
                        let _ = stream.write_all(&[number]);
                    }
                });
            }
        });
        addr
    }

    /// The server that replies to a byte sent to this address.
    fn reply(addr: SocketAddr) -> Option<u8> {
        let mut stream = TcpStream::connect(addr).ok()?;
        stream.set_read_timeout(Some(PASSES)).unwrap();
        stream.write_all(&[0]).ok()?;
        let mut number = [0];
        stream.read_exact(&mut number).ok().map(|()| number[0])
    }

    /// The pairs between which a byte and its reply pass.
    fn passes(routes: &[(usize, usize, SocketAddr)]) -> Vec<(usize, usize)> {
        let replies = std::thread::scope(|scope| {
            let requests: Vec<_> = routes.iter().map(|&(.., addr)| scope.spawn(move || reply(addr))).collect();
            requests.into_iter().map(|request| request.join().unwrap()).collect::<Vec<_>>()
        });
        let passed = routes.iter().zip(replies).filter(|((_, to, _), reply)| *reply == u8::try_from(*to).ok());
        passed.map(|(&(from, to, _), _)| (from, to)).collect()
    }

    #[test]
    fn a_cut_affects_the_links_of_its_servers_in_both_directions_and_no_others() {
        let servers: Vec<_> = (0..3).map(server).collect();
        let (mut links, mut routes) = (Links::default(), Vec::new());
        for (from, to) in (0..SERVERS).flat_map(|from| (0..SERVERS).map(move |to| (from, to))) {
            if from != to {
                routes.push((from, to, links.add(from, to, servers[to]).unwrap()));
            }
        }
        let all = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)];
        assert_eq!(passes(&routes), all);
        links.cut(0);
        assert_eq!(passes(&routes), [(1, 2), (2, 1)]);
        links.heal();
        assert_eq!(passes(&routes), all);
        links.cut_between(0, 1);
        assert_eq!(passes(&routes), [(0, 2), (1, 2), (2, 0), (2, 1)]);
        links.heal();
        links.refuse();
        assert_eq!(passes(&routes), []);
        links.heal();
        assert_eq!(passes(&routes), all);
        // The third server returns elsewhere. Another one is at its old port.
        links.redirect(servers[2], servers[1]);
        assert_eq!(passes(&routes), [(0, 1), (1, 0), (2, 0), (2, 1)]);
        links.redirect(servers[1], server(2));
        assert_eq!(passes(&routes), [(0, 2), (1, 0), (1, 2), (2, 0)]);
    }
}
