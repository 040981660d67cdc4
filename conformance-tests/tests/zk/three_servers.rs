//! A ZooKeeper of three servers. Each fault of the path or of the server affects all of them.

use std::io;

use leasehold_conformance::Data;
use leasehold_test_servers::{ZooKeeperEnsemble, ZooKeeperServer, ZooKeeperSide};

use super::fixture::{ZkFixture, settings};
use super::reused::{Idle, Reusable};
use super::servers::Servers;

pub(super) type ThreeServers = ZkFixture<ZooKeeperEnsemble>;

/// Servers that were all paused for two seconds do not miss each other.
const SYNC_LIMIT: &str = "syncLimit=40";

impl Servers for ZooKeeperEnsemble {
    type Server = ZooKeeperServer;
    type Side = ZooKeeperSide;

    fn start() -> io::Result<Self> {
        settings().line(SYNC_LIMIT).start_ensemble()
    }

    fn all(&self) -> &[ZooKeeperServer] {
        Self::servers(self)
    }

    fn all_mut(&mut self) -> &mut [ZooKeeperServer] {
        Self::servers_mut(self)
    }

    fn side(&self) -> &ZooKeeperSide {
        Self::side(self).unwrap_or_else(|error| panic!("no leader: {error}"))
    }

    fn start_again(&mut self) -> io::Result<()> {
        self.start_all_again(Data::Kept)
    }
}

impl Reusable for ZooKeeperEnsemble {
    fn idle() -> &'static Idle<Self> {
        static IDLE: Idle<ZooKeeperEnsemble> = Idle::new();
        &IDLE
    }
}
