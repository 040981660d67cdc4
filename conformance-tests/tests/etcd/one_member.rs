//! An etcd of one member.

use std::io;

use leasehold_conformance::Data;
use leasehold_test_servers::{EtcdServer, EtcdSettings, EtcdSide};

use super::fixture::EtcdFixture;
use super::servers::Servers;

pub(super) type OneMember = EtcdFixture<EtcdServer>;

impl Servers for EtcdServer {
    type Server = EtcdServer;
    type Side = EtcdSide;

    fn start() -> io::Result<Self> {
        EtcdSettings::new().start()
    }

    fn all(&self) -> &[EtcdServer] {
        std::slice::from_ref(self)
    }

    fn all_mut(&mut self) -> &mut [EtcdServer] {
        std::slice::from_mut(self)
    }

    fn side(&self) -> &EtcdSide {
        Self::side(self)
    }

    fn start_again(&mut self) -> io::Result<()> {
        Self::start_again(self, Data::Kept)
    }
}
