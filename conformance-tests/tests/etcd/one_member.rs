//! An etcd of one member.

use std::io;

use leasehold_conformance::Data;
use leasehold_test_servers::{EtcdServer, EtcdSettings, EtcdSide};

use super::fixture::{Deployment, EtcdFixture};

pub(super) type OneMember = EtcdFixture<EtcdServer>;

impl Deployment for EtcdServer {
    fn start() -> io::Result<Self> {
        EtcdSettings::new().start()
    }

    fn members(&self) -> &[EtcdServer] {
        std::slice::from_ref(self)
    }

    fn members_mut(&mut self) -> &mut [EtcdServer] {
        std::slice::from_mut(self)
    }

    fn side(&self) -> &EtcdSide {
        Self::side(self)
    }

    fn start_again(&mut self) -> io::Result<()> {
        Self::start_again(self, Data::Kept)
    }
}
