//! A cluster of real etcd servers for one test.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::task::Context;
use std::time::{Duration, Instant};

use leasehold_conformance::Data;
use leasehold_conformance::harness::FaultProxy;

use tokio::net::{TcpStream, UnixListener};

use super::server::{Membership, socket_of};
use super::{EtcdServer, EtcdSettings, EtcdSide, EtcdStatus};
use crate::links::Links;
use crate::relays::{Relay, Relays, serve};
use crate::server_process::start_on_free_ports;

/// How long the members may take to agree on a leader. They usually take some tenths of a second.
const ELECTION_BOUND: Duration = Duration::from_secs(20);

/// Three members. The connections between them, and those of clients, go through fault proxies.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<EtcdServer>,
    /// Between the members.
    links: Links,
    _relays: Relays,
    /// From clients to each member.
    proxies: Vec<FaultProxy>,
}

impl EtcdCluster {
    /// The number of members.
    pub const MEMBERS: usize = 3;

    pub(super) fn start(settings: &EtcdSettings) -> io::Result<Self> {
        let membership = Membership { members: Self::MEMBERS, ..Membership::alone() };
        let member = |index| EtcdServer::new(settings.clone(), Membership { index, ..membership.clone() });
        let members = (0..Self::MEMBERS).map(member).collect::<io::Result<Vec<_>>>()?;
        let (mut links, mut routes) = (Links::default(), Vec::new());
        for (from, member) in members.iter().enumerate() {
            for (to, other) in members.iter().enumerate().filter(|(to, _)| *to != from) {
                let proxy = links.add(from, to, other.peer_addr())?;
                routes.push(relay(&member.folder().join(socket_of(to)), proxy)?);
            }
        }
        let relays = Relays::start(routes)?;
        let proxies = members.iter().map(|member| FaultProxy::start(member.addr())).collect::<io::Result<_>>()?;
        let mut cluster = Self { members, links, _relays: relays, proxies };
        cluster.run()?;
        Ok(cluster)
    }

    /// All members.
    pub fn members(&self) -> &[EtcdServer] {
        &self.members
    }

    /// The same, to stop, kill, pause or resume them.
    pub fn members_mut(&mut self) -> &mut [EtcdServer] {
        &mut self.members
    }

    /// A member, for calls beside the library under test.
    pub fn member(&self, index: usize) -> &EtcdServer {
        &self.members[index]
    }

    /// A member, to stop, kill, pause or resume it.
    pub fn member_mut(&mut self, index: usize) -> &mut EtcdServer {
        &mut self.members[index]
    }

    /// The fault proxy between clients and a member, for [`proxied_urls`](Self::proxied_urls).
    pub fn proxy(&self, index: usize) -> &FaultProxy {
        &self.proxies[index]
    }

    /// The URLs of the members for clients.
    pub fn urls(&self) -> Vec<String> {
        self.members.iter().map(EtcdServer::url).collect()
    }

    /// The same through the fault proxies.
    pub fn proxied_urls(&self) -> Vec<String> {
        let proxied = self.members.iter().zip(&self.proxies);
        proxied.map(|(member, proxy)| member.url_at(proxy.addr())).collect()
    }

    /// Calls beside the library under test, by the leader.
    ///
    /// # Errors
    /// As [`leader`](Self::leader).
    pub fn side(&self) -> io::Result<&EtcdSide> {
        Ok(self.members[self.leader()?].side())
    }

    /// The member that leads. Waits until there is one that a majority follows.
    ///
    /// # Errors
    /// If there is none within twenty seconds.
    pub fn leader(&self) -> io::Result<usize> {
        self.leader_that(|_| true)
    }

    /// The same, and waits until it is not this member.
    ///
    /// # Errors
    /// The same.
    pub fn other_leader(&self, than: usize) -> io::Result<usize> {
        self.leader_that(|leader| leader != than)
    }

    fn leader_that(&self, is_awaited: impl Fn(usize) -> bool) -> io::Result<usize> {
        let until = Instant::now() + ELECTION_BOUND;
        loop {
            let statuses = self.running().filter_map(|(index, member)| Some((index, member.side().status().ok()?)));
            let statuses: Vec<_> = statuses.collect();
            if let Some(leader) = leader_of(&statuses).filter(|leader| is_awaited(*leader)) {
                return Ok(leader);
            }
            if Instant::now() > until {
                return Err(io::Error::new(io::ErrorKind::TimedOut, format!("no leader within {ELECTION_BOUND:?}")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Makes this member the leader.
    ///
    /// # Errors
    /// If there is no leader or it refuses.
    pub fn move_leader(&self, to: usize) -> io::Result<()> {
        let leader = self.leader()?;
        if leader != to {
            self.members[leader].side().move_leader(self.members[to].side().status()?.member())?;
        }
        Ok(())
    }

    /// Cuts a member off from the others: no byte passes, in both directions. Clients still reach it.
    pub fn cut(&self, member: usize) {
        self.links.cut(member);
    }

    /// The same between two members.
    pub fn cut_between(&self, one: usize, other: usize) {
        self.links.cut_between(one, other);
    }

    /// Ends all cuts.
    pub fn heal(&self) {
        self.links.heal();
    }

    /// Starts a member again with its data. It serves clients as soon as there is a leader, which this does not wait
    /// for.
    ///
    /// # Errors
    /// If it still runs or does not start.
    pub fn start_again(&mut self, member: usize) -> io::Result<()> {
        let member = &mut self.members[member];
        member.forget(Data::Kept)?;
        member.spawn()?;
        member.await_peers_port()
    }

    /// Starts all members again, and waits until they serve clients. A single member cannot return without its data.
    ///
    /// # Errors
    /// If one still runs or does not start.
    pub fn start_all_again(&mut self, data: Data) -> io::Result<()> {
        self.members.iter_mut().try_for_each(|member| member.forget(data))?;
        self.run()
    }

    /// Waits until all members that run serve clients.
    ///
    /// # Errors
    /// If one ends or takes too long.
    pub fn await_members(&mut self) -> io::Result<()> {
        let running = self.members.iter_mut().filter(|member| member.is_running());
        running.into_iter().try_for_each(EtcdServer::await_clients_port)
    }

    fn running(&self) -> impl Iterator<Item = (usize, &EtcdServer)> {
        self.members.iter().enumerate().filter(|(_, member)| member.is_running())
    }

    /// Starts all members and waits until they serve clients.
    fn run(&mut self) -> io::Result<()> {
        // A new member asks the others whether it has been in the cluster before. It waits a second for each member
        // that accepts a connection and does not reply, and no member replies while it waits itself. So connections are
        // refused.
        self.links.refuse();
        self.members.iter_mut().try_for_each(EtcdServer::spawn)?;
        for (index, member) in self.members.iter_mut().enumerate() {
            let (links, proxy) = (&mut self.links, &self.proxies[index]);
            let start = |member: &mut EtcdServer| {
                if member.id().is_none() {
                    member.spawn()?;
                }
                member.await_peers_port()
            };
            start_on_free_ports(member, start, |member| {
                let old = member.peer_addr();
                member.change_ports()?;
                links.redirect(old, member.peer_addr());
                proxy.redirect(member.addr());
                Ok(())
            })?;
        }
        self.links.heal();
        self.await_members()
    }
}

/// The member that leads a majority.
fn leader_of(statuses: &[(usize, EtcdStatus)]) -> Option<usize> {
    // A member that was cut off may still believe that it is the leader.
    let newest = statuses.iter().map(|(_, status)| status.term).max()?;
    let newest = || statuses.iter().filter(|(_, status)| status.term == newest);
    let (index, leader) = newest().find(|(_, status)| status.leads())?;
    let followers = newest().filter(|(_, status)| status.leader == leader.leader).count();
    (followers > EtcdCluster::MEMBERS / 2).then_some(*index)
}

/// Relays connections from a socket to the proxy of a link.
///
/// All members know a member by the same URL, so TCP alone does not show which of them connects. A URL such as
/// `unix://member1:1` names a file in the folder in which the connecting member runs. So each member has files of its
/// own.
fn relay(file: &Path, proxy: SocketAddr) -> io::Result<Relay> {
    let listener = StdListener::bind(file)?;
    listener.set_nonblocking(true)?;
    Ok(Box::pin(async move {
        let Ok(listener) = UnixListener::from_std(listener) else { return };
        let accept = |context: &mut Context<'_>| listener.poll_accept(context).map_ok(|(client, _)| client);
        serve(accept, |mut client| async move {
            let mut server = TcpStream::connect(proxy).await?;
            server.set_nodelay(true)?;
            tokio::io::copy_bidirectional(&mut client, &mut server).await.map(drop)
        })
        .await;
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the member `index` knows of a leader.
    fn status(index: u64, leader: u64, term: u64) -> (usize, EtcdStatus) {
        let header = format!(r#"{{"member_id":"{index}"}}"#);
        let text = format!(r#"{{"header":{header},"leader":"{leader}","raftTerm":"{term}"}}"#);
        (usize::try_from(index).unwrap(), serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn the_newest_leader_of_a_majority_leads() {
        assert_eq!(leader_of(&[status(1, 2, 5), status(2, 2, 5), status(3, 2, 5)]), Some(2));
        assert_eq!(leader_of(&[status(1, 1, 4), status(2, 2, 5), status(3, 2, 5)]), Some(2));
        assert_eq!(leader_of(&[status(1, 1, 4), status(2, 2, 5), status(3, 0, 5)]), None);
        assert_eq!(leader_of(&[status(1, 0, 5), status(2, 0, 5)]), None);
        assert_eq!(leader_of(&[status(2, 2, 5)]), None);
    }
}
