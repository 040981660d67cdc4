//! A ZooKeeper of one server.

use std::io;

use leasehold_conformance::Data;
use leasehold_test_servers::{ZooKeeperServer, ZooKeeperSide};

use super::fixture::{ZkFixture, settings};
use super::reused::{Idle, Reusable};
use super::servers::Servers;

pub(super) type OneServer = ZkFixture<ZooKeeperServer>;

impl Servers for ZooKeeperServer {
    type Server = ZooKeeperServer;
    type Side = ZooKeeperSide;

    fn start() -> io::Result<Self> {
        settings().start()
    }

    fn all(&self) -> &[ZooKeeperServer] {
        std::slice::from_ref(self)
    }

    fn all_mut(&mut self) -> &mut [ZooKeeperServer] {
        std::slice::from_mut(self)
    }

    fn side(&self) -> &ZooKeeperSide {
        Self::side(self)
    }

    fn start_again(&mut self) -> io::Result<()> {
        Self::start_again(self, Data::Kept)
    }
}

impl Reusable for ZooKeeperServer {
    fn idle() -> &'static Idle<Self> {
        static IDLE: Idle<ZooKeeperServer> = Idle::new();
        &IDLE
    }
}
