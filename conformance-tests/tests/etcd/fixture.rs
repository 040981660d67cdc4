//! The fixture of etcd: Leasehold on a real etcd, of one member or of several.

use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use leasehold::etcd::EtcdBackend;
use leasehold_conformance::{Data, Record, ResourceCounts, Room, ServerFault, Tamper, Unsupported};
use leasehold_core::LockName;
use leasehold_core::backend::LockBackend;
use leasehold_test_servers::{EtcdAccess, EtcdKeys, EtcdServer, EtcdSide, EtcdStatistics};

use super::servers::{Servers, ServersFixture, Store};
use super::stored::{SECOND, Stored};

/// The least permissions, so that every case proves that they are enough.
pub(super) const USER: &str = "locker";
pub(super) const PASSWORD: &str = "pass-word";

/// What every key begins with. In a URL, the space is encoded.
pub(super) const PREFIX: &str = "team a/locks/";

pub(super) type EtcdFixture<D> = ServersFixture<Etcd<D>>;

/// An etcd with these members.
pub(super) struct Etcd<D>(PhantomData<fn() -> D>);

impl<D: Servers<Server = EtcdServer>> Etcd<D> {
    fn sum(servers: &D, of: impl Fn(&EtcdStatistics) -> u64) -> u64 {
        let members = servers.all().iter();
        let statistics =
            members.map(|member| member.side().statistics().unwrap_or_else(|error| panic!("none: {error}")));
        statistics.map(|statistics| of(&statistics)).sum()
    }
}

pub(super) fn permit(side: &EtcdSide) -> io::Result<()> {
    side.set_user(USER, PASSWORD, &[(EtcdAccess::ReadWrite, EtcdKeys::with_prefix(PREFIX))])
}

impl<D: Servers<Server = EtcdServer, Side = EtcdSide>> Store for Etcd<D> {
    type Servers = D;
    /// Every case has servers of its own.
    type Taken = Box<D>;

    const PASSWORD: &'static str = PASSWORD;
    const NO_RETENTION: &'static str =
        "the record of a free lock is gone with its last key: tokens are revisions of the store";
    const RECORD_STEP: Duration = SECOND;
    const CANCELS_AT_END: bool = true;

    fn take() -> io::Result<Box<D>> {
        let servers = D::start()?;
        servers.side().enable_users()?;
        permit(servers.side())?;
        Ok(Box::new(servers))
    }

    fn new(_servers: &D) -> Self {
        Self(PhantomData)
    }

    fn url(hosts: &str, more: &str) -> String {
        format!("etcd://{USER}:{PASSWORD}@{hosts}/team%20a/locks?timeout=1s{more}")
    }

    /// Connects if possible, so that a following fault meets a request and not a first connection.
    async fn backend(url: String, is_reachable: bool) -> Arc<dyn LockBackend> {
        let connected = if is_reachable { EtcdBackend::connect(&url).await.ok() } else { None };
        let lazy = || EtcdBackend::connect_lazy(&url).unwrap_or_else(|error| panic!("no backend: {error:?}"));
        Arc::new(connected.unwrap_or_else(lazy))
    }

    fn connections(servers: &D) -> io::Result<u64> {
        servers.all().iter().map(EtcdServer::connections).sum()
    }

    fn fault(servers: &mut D, fault: &ServerFault) -> Result<io::Result<()>, Unsupported> {
        // Called only where it is needed: members that are stopped have no leader.
        let side = || servers.side();
        Ok(match fault {
            ServerFault::RefuseUser => side().delete_user(USER),
            ServerFault::Fill(Room::Data) => side().raise_no_space(),
            ServerFault::Restore => side().disarm().and_then(|()| permit(side())),
            ServerFault::Start(Data::Lost) => {
                return Err(Unsupported::by_nature(
                    "an etcd server without its data is another cluster, whose revisions begin again",
                ));
            }
            ServerFault::ReadOnly => return Err(Unsupported::by_nature("a member forwards writes to its leader")),
            ServerFault::Fill(Room::Connections) => {
                return Err(Unsupported::by_nature("it has no limit of connections"));
            }
            ServerFault::FlushScripts => return Err(Unsupported::because("it runs no scripts")),
            ServerFault::ClockForward(_) | ServerFault::ClockBack(_) => {
                return Err(Unsupported::because("its leases end by a clock that is never stepped"));
            }
            of_processes => unreachable!("{of_processes:?}"),
        })
    }

    fn tamper(servers: &D, name: &LockName, tamper: Tamper) {
        let side = servers.side();
        let stored = Stored { side, prefix: PREFIX };
        let queue = stored.queue_prefix(name);
        let value = match tamper {
            Tamper::Remove => {
                side.delete_all(&queue).unwrap_or_else(|error| panic!("not deleted: {error}"));
                return;
            }
            Tamper::Corrupt => "??",
            Tamper::OtherVersion => "2\thost",
        };
        let first = stored.queue(name).into_iter().next();
        let (key, lease) = match first {
            Some(first) => (first.key, first.lease),
            None => (format!("{queue}{}", "0".repeat(32)).into_bytes(), 0),
        };
        side.put(key, value, lease).unwrap_or_else(|error| panic!("not written: {error}"));
    }

    fn record(servers: &D, name: &LockName) -> Record {
        Stored { side: servers.side(), prefix: PREFIX }.record(name)
    }

    fn resource_counts(servers: &D) -> ResourceCounts {
        let other = Self::sum(servers, EtcdStatistics::watches);
        ResourceCounts { other, ..Stored { side: servers.side(), prefix: PREFIX }.resource_counts() }
    }

    fn served(&self, servers: &D) -> u64 {
        // Opening and closing a session does not count, as for a connection. Nor does the read that follows each watch.
        let is_about_locks =
            |method: &str| !matches!(method, "Authenticate" | "LeaseGrant" | "LeaseRevoke" | "Range" | "Watch");
        Self::sum(servers, |statistics| {
            let requests = statistics.requests();
            requests.iter().filter(|(method, _)| is_about_locks(method)).map(|(_, count)| count).sum()
        })
    }
}
