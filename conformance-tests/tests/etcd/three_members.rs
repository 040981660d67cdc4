//! An etcd of three members. Each fault of the path or of the server affects all of them.

use std::io;

use leasehold_conformance::Data;
use leasehold_test_servers::{EtcdCluster, EtcdServer, EtcdSettings, EtcdSide};

use super::fixture::EtcdFixture;
use super::servers::Servers;

pub(super) type ThreeMembers = EtcdFixture<EtcdCluster>;

impl Servers for EtcdCluster {
    type Server = EtcdServer;
    type Side = EtcdSide;

    fn start() -> io::Result<Self> {
        EtcdSettings::new().start_cluster()
    }

    fn all(&self) -> &[EtcdServer] {
        Self::members(self)
    }

    fn all_mut(&mut self) -> &mut [EtcdServer] {
        Self::members_mut(self)
    }

    fn side(&self) -> &EtcdSide {
        Self::side(self).unwrap_or_else(|error| panic!("no leader: {error}"))
    }

    fn start_again(&mut self) -> io::Result<()> {
        self.start_all_again(Data::Kept)
    }
}
