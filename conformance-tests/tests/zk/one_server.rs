//! A ZooKeeper of one server.

use std::io;

use leasehold_conformance::Data;
use leasehold_test_servers::{ZooKeeperServer, ZooKeeperSide};

use super::fixture::{Deployment, ZkFixture, settings};
use super::reused::Idle;

pub(super) type OneServer = ZkFixture<ZooKeeperServer>;

impl Deployment for ZooKeeperServer {
    fn idle() -> &'static Idle<Self> {
        static IDLE: Idle<ZooKeeperServer> = Idle::new();
        &IDLE
    }

    fn start() -> io::Result<Self> {
        settings().start()
    }

    fn servers(&self) -> &[ZooKeeperServer] {
        std::slice::from_ref(self)
    }

    fn servers_mut(&mut self) -> &mut [ZooKeeperServer] {
        std::slice::from_mut(self)
    }

    fn side(&self) -> &ZooKeeperSide {
        Self::side(self)
    }

    fn start_again(&mut self) -> io::Result<()> {
        Self::start_again(self, Data::Kept)
    }
}
