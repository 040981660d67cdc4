//! An ensemble of real ZooKeeper servers for one test.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::task::Context;
use std::time::{Duration, Instant};

use leasehold_conformance::Data;
use leasehold_conformance::harness::{FaultProxy, Port};
use tokio::net::TcpListener;

use super::election::relay;
use super::server::Mode;
use super::side::OwnSessions;
use super::{ZooKeeperServer, ZooKeeperSettings, ZooKeeperSide};
use crate::links::Links;
use crate::relays::{Relay, Relays, serve};
use crate::server_process::start_on_free_ports;

/// How long the servers may take to agree on a leader. They usually take some tenths of a second.
const ELECTION_BOUND: Duration = Duration::from_secs(30);

/// How long a new leader may take until it listens for its followers. A follower that finds no listener tries again at
/// once. But the proxy accepts the connection, and if it then closed it, the follower would assume that the leader has
/// ended. It would go back to the election, and the leader would wait for it for the ten seconds of `initLimit`.
const LISTENS_BY: Duration = Duration::from_secs(3);

/// Three servers. The connections between them, and those of clients, go through fault proxies.
#[derive(Debug)]
pub struct ZooKeeperEnsemble {
    servers: Vec<ZooKeeperServer>,
    peers: Peers,
    _relays: Relays,
    /// From clients to each server.
    proxies: Vec<FaultProxy>,
}

/// The ports by which the servers reach each other.
#[derive(Debug, Default)]
struct Peers {
    links: Links,
    /// Of each server.
    own: Vec<PeerPorts>,
    /// The ports of the others as each server sees them: those of links and relays.
    views: Vec<Vec<(u16, u16)>>,
}

/// The ports of a server for the others.
#[derive(Debug)]
struct PeerPorts {
    /// For its followers, while it leads.
    quorum: Port,
    election: Port,
}

impl PeerPorts {
    fn free() -> io::Result<Self> {
        Ok(Self { quorum: Port::free()?, election: Port::free()? })
    }
}

impl Peers {
    /// Opens the links between servers.
    fn connect(servers: usize) -> io::Result<(Self, Relays)> {
        let own: Vec<_> = (0..servers).map(|_| PeerPorts::free()).collect::<io::Result<_>>()?;
        let (mut links, mut quorums, mut elections) = (Links::default(), BTreeMap::new(), BTreeMap::new());
        for (from, to) in (0..servers).flat_map(|from| (0..servers).map(move |to| (from, to))) {
            if from != to {
                quorums
                    .insert((from, to), links.add_with_connect_timeout(from, to, own[to].quorum.addr(), LISTENS_BY)?);
                elections.insert((from, to), links.add(from, to, own[to].election.addr())?);
            }
        }
        let (mut relays, mut views) = (Vec::new(), vec![vec![(0, 0); servers]; servers]);
        for (&(from, to), &quorum) in &quorums {
            let entrance = Port::free()?;
            relays.push(relay_of_elections(&entrance, elections[&(from, to)], elections[&(to, from)])?);
            views[from][to] = (quorum.port(), entrance.number());
        }
        Ok((Self { links, own, views }, Relays::start(relays)?))
    }

    /// The lines of the configuration of a server.
    fn lines(&self, server: usize) -> String {
        let mut lines = String::new();
        for (index, &view) in self.views[server].iter().enumerate() {
            let own = (self.own[server].quorum.number(), self.own[server].election.number());
            let (quorum, election) = if index == server { own } else { view };
            let _ = writeln!(lines, "server.{}=127.0.0.1:{quorum}:{election}", number(index));
        }
        lines
    }

    /// Gives a server other ports.
    fn change_ports(&mut self, server: usize) -> io::Result<()> {
        let new = PeerPorts::free()?;
        let old = std::mem::replace(&mut self.own[server], new);
        let new = &self.own[server];
        self.links.redirect(old.quorum.addr(), new.quorum.addr());
        self.links.redirect(old.election.addr(), new.election.addr());
        Ok(())
    }
}

/// The server that leads a majority.
fn leader_of(modes: &[(usize, (Mode, u64))]) -> Option<usize> {
    let followers = modes.iter().filter(|(_, (mode, _))| *mode == Mode::Follows).count();
    // A server that was cut off may still believe that it is the leader.
    let leaders = modes.iter().filter(|(_, (mode, _))| *mode == Mode::Leads);
    let leader = leaders.max_by_key(|(_, (_, epoch))| *epoch).map(|(index, _)| *index);
    leader.filter(|_| followers + 1 > ZooKeeperEnsemble::SERVERS / 2)
}

/// The number of a server for the others.
fn number(index: usize) -> usize {
    index + 1
}

fn relay_of_elections(entrance: &Port, proxy: SocketAddr, answers_to: SocketAddr) -> io::Result<Relay> {
    let listener = StdListener::bind(entrance.addr())?;
    listener.set_nonblocking(true)?;
    Ok(Box::pin(async move {
        let Ok(listener) = TcpListener::from_std(listener) else { return };
        let accept = |context: &mut Context<'_>| listener.poll_accept(context).map_ok(|(client, _)| client);
        serve(accept, |client| relay(client, proxy, answers_to)).await;
    }))
}

impl ZooKeeperEnsemble {
    /// The number of servers.
    pub const SERVERS: usize = 3;

    pub(super) fn start(settings: &ZooKeeperSettings) -> io::Result<Self> {
        let own_sessions = OwnSessions::default();
        let server = |_| ZooKeeperServer::new(settings.clone(), own_sessions.clone());
        let servers: Vec<_> = (0..Self::SERVERS).map(server).collect::<io::Result<_>>()?;
        let (peers, relays) = Peers::connect(Self::SERVERS)?;
        let proxies = servers.iter().map(|server| FaultProxy::start(server.addr())).collect::<io::Result<_>>()?;
        let mut ensemble = Self { servers, peers, _relays: relays, proxies };
        for (index, server) in ensemble.servers.iter_mut().enumerate() {
            server.join(ensemble.peers.lines(index), number(index));
        }
        ensemble.run()?;
        Ok(ensemble)
    }

    /// All servers.
    pub fn servers(&self) -> &[ZooKeeperServer] {
        &self.servers
    }

    /// The same, to stop, kill, pause or resume them.
    pub fn servers_mut(&mut self) -> &mut [ZooKeeperServer] {
        &mut self.servers
    }

    /// A server, for calls beside the library under test.
    pub fn server(&self, index: usize) -> &ZooKeeperServer {
        &self.servers[index]
    }

    /// A server, to stop, kill, pause or resume it.
    pub fn server_mut(&mut self, index: usize) -> &mut ZooKeeperServer {
        &mut self.servers[index]
    }

    /// The fault proxy between clients and a server, for [`proxied_addrs`](Self::proxied_addrs).
    pub fn proxy(&self, index: usize) -> &FaultProxy {
        &self.proxies[index]
    }

    /// The addresses of the servers for clients.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(|server| server.addr()).collect()
    }

    /// The same through the fault proxies.
    pub fn proxied_addrs(&self) -> Vec<SocketAddr> {
        self.proxies.iter().map(FaultProxy::addr).collect()
    }

    /// Calls beside the library under test, by the leader.
    ///
    /// # Errors
    /// As [`leader`](Self::leader).
    pub fn side(&self) -> io::Result<&ZooKeeperSide> {
        Ok(self.servers[self.leader()?].side())
    }

    /// The server that leads. Waits until there is one that a majority follows.
    ///
    /// # Errors
    /// If there is none within thirty seconds.
    pub fn leader(&self) -> io::Result<usize> {
        self.leader_that(|_| true)
    }

    /// The same, and waits until it is not this server.
    ///
    /// # Errors
    /// The same.
    pub fn other_leader(&self, than: usize) -> io::Result<usize> {
        self.leader_that(|leader| leader != than)
    }

    fn leader_that(&self, is_awaited: impl Fn(usize) -> bool) -> io::Result<usize> {
        let until = Instant::now() + ELECTION_BOUND;
        loop {
            let running = self.servers.iter().enumerate().filter(|(_, server)| server.is_running());
            let modes: Vec<_> = running.filter_map(|(index, server)| Some((index, server.mode()?))).collect();
            if let Some(leader) = leader_of(&modes).filter(|leader| is_awaited(*leader)) {
                return Ok(leader);
            }
            if Instant::now() > until {
                return Err(io::Error::new(io::ErrorKind::TimedOut, format!("no leader within {ELECTION_BOUND:?}")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Cuts a server off from the others: no byte passes, in both directions. Clients still reach it.
    pub fn cut(&self, server: usize) {
        self.peers.links.cut(server);
    }

    /// The same between two servers.
    pub fn cut_between(&self, one: usize, other: usize) {
        self.peers.links.cut_between(one, other);
    }

    /// Delays what the leader sends this follower, so that the follower is behind.
    pub fn delay(&self, follower: usize, delay: Duration) {
        self.peers.links.delay(follower, delay);
    }

    /// Ends all cuts and delays.
    pub fn heal(&self) {
        self.peers.links.heal();
    }

    /// Starts a server again. It serves clients as soon as there is a leader, which this does not wait for.
    ///
    /// # Errors
    /// If it still runs or does not start.
    pub fn start_again(&mut self, server: usize, data: Data) -> io::Result<()> {
        let server = &mut self.servers[server];
        server.forget(data)?;
        server.spawn()?;
        server.await_reply()
    }

    /// Starts all servers again, and waits until they serve clients.
    ///
    /// # Errors
    /// If one still runs or does not start.
    pub fn start_all_again(&mut self, data: Data) -> io::Result<()> {
        self.servers.iter_mut().try_for_each(|server| server.forget(data))?;
        self.run()
    }

    /// Waits until all servers that run serve clients.
    ///
    /// # Errors
    /// If one ends or takes too long.
    pub fn await_servers(&mut self) -> io::Result<()> {
        let mut running = self.servers.iter_mut().filter(|server| server.is_running());
        running.try_for_each(ZooKeeperServer::await_clients)
    }

    /// Waits until one server leads and all others that run follow. A leader that was paused or cut off believes that
    /// it leads until it misses its followers.
    ///
    /// # Errors
    /// If that takes longer than thirty seconds.
    pub fn await_one_leader(&self) -> io::Result<()> {
        let until = Instant::now() + ELECTION_BOUND;
        loop {
            let running: Vec<_> = self.servers.iter().filter(|server| server.is_running()).collect();
            let modes: Vec<_> = running.iter().filter_map(|server| server.mode()).map(|(mode, _)| mode).collect();
            let leaders = modes.iter().filter(|mode| **mode == Mode::Leads).count();
            if modes.len() == running.len() && leaders == 1 {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("not one leader within {ELECTION_BOUND:?}"),
                ));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Starts all servers and waits until they serve clients.
    fn run(&mut self) -> io::Result<()> {
        self.servers.iter_mut().try_for_each(ZooKeeperServer::spawn)?;
        for (index, server) in self.servers.iter_mut().enumerate() {
            let (peers, proxy) = (&mut self.peers, &self.proxies[index]);
            let start = |server: &mut ZooKeeperServer| {
                if server.id().is_none() {
                    server.spawn()?;
                }
                server.await_reply()
            };
            start_on_free_ports(server, start, |server| {
                peers.change_ports(index)?;
                server.join(peers.lines(index), number(index));
                server.change_port()?;
                proxy.redirect(server.addr());
                Ok(())
            })?;
        }
        self.await_servers()?;
        // One in some hundred new ensembles does not reply to its first request for five seconds.
        let until = Instant::now() + ELECTION_BOUND;
        for server in &self.servers {
            while let Err(error) = server.side().sync() {
                if Instant::now() > until {
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sockets::sockets_of;

    #[test]
    fn the_newest_leader_of_a_majority_leads() {
        let (leads, follows) = (Mode::Leads, Mode::Follows);
        assert_eq!(leader_of(&[(0, (follows, 1)), (1, (leads, 1))]), Some(1));
        assert_eq!(leader_of(&[(0, (leads, 1)), (1, (leads, 2)), (2, (follows, 2))]), Some(1));
        assert_eq!(leader_of(&[(0, (leads, 2)), (1, (leads, 1)), (2, (follows, 2))]), Some(0));
        assert_eq!(leader_of(&[(0, (leads, 1))]), None);
        assert_eq!(leader_of(&[(0, (follows, 1)), (1, (follows, 1))]), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn no_connection_between_servers_bypasses_its_proxy() {
        let mut ensemble = ZooKeeperSettings::new().start_ensemble().unwrap();
        // Each server returns once, as that with the smallest number and as that with the largest one.
        for index in 0..ZooKeeperEnsemble::SERVERS {
            ensemble.server_mut(index).kill().unwrap();
            ensemble.start_again(index, Data::Kept).unwrap();
            ensemble.await_servers().unwrap();
            let own = |ports: &PeerPorts| [ports.quorum.number(), ports.election.number()];
            let own: Vec<_> = ensemble.peers.own.iter().flat_map(own).collect();
            let opened = |server: &ZooKeeperServer| sockets_of(server.id().unwrap()).unwrap();
            let opened: Vec<_> = ensemble.servers.iter().flat_map(opened).map(|socket| socket.remote).collect();
            assert!(!opened.iter().any(|port| own.contains(port)), "{opened:?} {own:?}");
            assert!(opened.len() > 4, "the servers are connected: {opened:?}");
        }
    }
}
