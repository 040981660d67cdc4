//! Fixtures with one defective method. Their backends are correct.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::admin::Listing;
use leasehold_core::backend::{AcquireOutcome, AcquireRequest, Capabilities, Extensions, List, StoreClock};
use leasehold_core::{Error, ErrorKind, LockName, Result};

use super::{Saboteur, plain};
use crate::fault::{Data, PathFault, Room, ServerFault, Tamper, Unsupported};
use crate::fixture::{Record, ResourceCounts, Route};
use crate::hooks::{Hooks, Inner};

/// Fixtures without state, each with its one defective method.
macro_rules! defective {
    ($($(#[$doc:meta])* $name:ident: $method:item)*) => {
        $(
            $(#[$doc])*
            pub struct $name;

            impl Hooks for $name {}

            impl Saboteur for $name {
                fn new() -> Self {
                    Self
                }

                $method
            }
        )*
    };
}

/// Fixtures that replace one fault of the path by another one or by none.
macro_rules! path {
    ($($(#[$doc:meta])* $name:ident: $fault:pat => $instead:expr;)*) => {
        defective! {
            $($(#[$doc])* $name: fn path(&self, fault: PathFault) -> Option<PathFault> {
                if matches!(fault, $fault) { $instead } else { Some(fault) }
            })*
        }
    };
}

path! {
    /// Cuts no connection.
    DisconnectsNothing: PathFault::Disconnect => None;
    /// Drops traffic instead of cutting connections.
    DisconnectIsDropTraffic: PathFault::Disconnect => Some(PathFault::DropTraffic);
    /// Does not drop traffic.
    DropsNothing: PathFault::DropTraffic => None;
    /// Holds requests instead of dropping them.
    DropTrafficIsHold: PathFault::DropTraffic => Some(PathFault::Hold);
    /// Does not delay requests.
    DelaysNothing: PathFault::Delay(_) => None;
    /// Does not lose replies.
    LosesNoReplies: PathFault::LoseReplies => None;
    /// Does not lose pushes.
    LosesNoPushes: PathFault::LosePushes => None;
    /// Does not hold requests.
    HoldsNothing: PathFault::Hold => None;
    /// Drops requests instead of holding them.
    HoldIsDropTraffic: PathFault::Hold => Some(PathFault::DropTraffic);
    /// Sends every request once.
    DoublesNothing: PathFault::Double => None;
}

defective! {
    /// Does not heal the path.
    HealsNothing: fn heals(&self) -> bool { false }
    /// Does not deliver held requests.
    DeliversNothing: fn delivers(&self) -> bool { false }
    /// Returns from a delivery before the server has processed it.
    DeliversLater: fn delivers_later(&self) -> bool { true }
    /// Stops its server in order instead of killing it.
    KillsInOrder: fn before(&self, fault: &ServerFault) -> Option<ServerFault> {
        (*fault == ServerFault::Kill).then_some(ServerFault::Resume)
    }
    /// Breaks the clear route together with the faulty one.
    HasOneRoute: fn route(&self, _: Route) -> Route { Route::Faulty }
    /// Has a ttl that no backend takes.
    HasATinyTtl: fn ttl(&self, _: Duration) -> Duration { Duration::from_nanos(1) }
    /// Supports a retention, but removes no record.
    RetainsForEver: fn claims_retention(&self) -> bool { true }
    /// Shares its namespace with another fixture.
    SharesItsNamespace: fn resource_counts(&self, seen: ResourceCounts) -> ResourceCounts { ResourceCounts { fences: seen.fences + 1, ..seen } }
    /// Counts nothing at the server.
    CountsNothing: fn resource_counts(&self, _: ResourceCounts) -> ResourceCounts { ResourceCounts::default() }
    /// Counts no places at the server.
    CountsNoPlaces: fn resource_counts(&self, seen: ResourceCounts) -> ResourceCounts { ResourceCounts { places: 0, ..seen } }
    /// Reads every lock as free and unused.
    ReadsNoRecord: fn record(&self, _: Record) -> Record { Record::default() }
    /// Reads no waiters.
    ReadsNoWaiters: fn record(&self, seen: Record) -> Record { Record { waiters: seen.waiters.map(|_| 0), ..seen } }
    /// Reads the whole ttl of each lease.
    ReadsTheTtl: fn record(&self, seen: Record) -> Record {
        let holders = seen.holders.iter().map(|_| Duration::from_secs(12)).collect();
        Record { holders, ..seen }
    }
    /// Counts no requests.
    CountsNoRequest: fn served(&self, _: u64) -> u64 { 0 }
}

/// Fixtures that replace one fault of the server by another one.
macro_rules! server {
    ($($(#[$doc:meta])* $name:ident: $fault:pat => $instead:expr;)*) => {
        defective! {
            $($(#[$doc])* $name: fn server(&self, fault: &ServerFault) -> Option<Result<(), Unsupported>> {
                matches!(fault, $fault).then_some($instead)
            })*
        }
    };
}

server! {
    /// Does not stop its server.
    StopsNothing: ServerFault::Stop => Ok(());
    /// Does not kill its server.
    KillsNothing: ServerFault::Kill => Ok(());
    /// Does not pause its server.
    PausesNothing: ServerFault::Pause => Ok(());
    /// Does not resume its server.
    ResumesNothing: ServerFault::Resume => Ok(());
    /// Does not refuse the user.
    RefusesNobody: ServerFault::RefuseUser => Ok(());
    /// Does not refuse writes.
    TakesWrites: ServerFault::ReadOnly => Ok(());
    /// Does not fill the store.
    FillsNoStore: ServerFault::Fill(Room::Data) => Ok(());
    /// Does not limit connections.
    FillsNoConnections: ServerFault::Fill(Room::Connections) => Ok(());
    /// Does not restore the server.
    RestoresNothing: ServerFault::Restore => Ok(());
    /// Stops its server, but cannot start it.
    CannotStart: ServerFault::Start(Data::Kept) => Err(Unsupported::because("injected: it cannot be started"));
}

defective! {
    /// Starts the server with its data instead of without.
    KeepsTheData: fn instead(&self, fault: ServerFault) -> ServerFault {
        if fault == ServerFault::Start(Data::Lost) { ServerFault::Start(Data::Kept) } else { fault }
    }
    /// Starts the server without its data instead of with them.
    LosesTheData: fn instead(&self, fault: ServerFault) -> ServerFault {
        if fault == ServerFault::Start(Data::Kept) { ServerFault::Start(Data::Lost) } else { fault }
    }
    /// Stops the server instead of flushing its scripts.
    StopsInsteadOfFlushing: fn instead(&self, fault: ServerFault) -> ServerFault {
        if fault == ServerFault::FlushScripts { ServerFault::Stop } else { fault }
    }
    /// Removes no record.
    RemovesNothing: fn tampers(&self, tamper: Tamper) -> bool { tamper != Tamper::Remove }
    /// Corrupts no record.
    CorruptsNothing: fn tampers(&self, tamper: Tamper) -> bool { tamper != Tamper::Corrupt }
    /// Does not change the version of a record.
    WritesThisVersion: fn tampers(&self, tamper: Tamper) -> bool { tamper != Tamper::OtherVersion }
}

/// Steps no clock.
pub struct StepsNoClock;

impl Hooks for StepsNoClock {
    fn capabilities(&self, real: Capabilities) -> Capabilities {
        let mut claimed = real;
        claimed.clock = StoreClock::ServerWall;
        claimed
    }
}

impl Saboteur for StepsNoClock {
    fn new() -> Self {
        Self
    }

    fn server(&self, fault: &ServerFault) -> Option<Result<(), Unsupported>> {
        matches!(fault, ServerFault::ClockForward(_) | ServerFault::ClockBack(_)).then_some(Ok(()))
    }
}

plain! {
    /// Gives each backend a namespace of its own.
    SharesNothing;
    /// Gives its operator no permission.
    RefusesItsOperator;
}

#[async_trait]
impl Hooks for SharesNothing {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let own = LockName::new(format!("{} of {}", inner.nth, request.claim.name())).expect("a short name");
        inner.backend.acquire(&request.by(request.claim.renamed(own))).await
    }
}

impl Hooks for RefusesItsOperator {
    fn extensions<'a>(&'a self, inner: &'a Inner) -> Extensions<'a> {
        let mut extensions = inner.backend.extensions();
        extensions.list = Some(self);
        extensions
    }
}

#[async_trait]
impl List for RefusesItsOperator {
    async fn list(&self, _: &str, _: usize) -> Result<Listing> {
        Err(Error::new(ErrorKind::Auth, "injected: no permission"))
    }
}

/// Returns from `connected` while a connection is still being established.
#[derive(Default)]
pub struct ConnectsLate {
    reads: AtomicU64,
}

impl Hooks for ConnectsLate {}

impl Saboteur for ConnectsLate {
    fn new() -> Self {
        Self::default()
    }

    fn resource_counts(&self, seen: ResourceCounts) -> ResourceCounts {
        let late = self.reads.fetch_add(1, Ordering::Relaxed).min(1);
        ResourceCounts { connections: seen.connections + late, ..seen }
    }
}

/// Counts the requests of the fixture itself.
#[derive(Default)]
pub struct CountsItself {
    reads: AtomicU64,
}

impl Hooks for CountsItself {}

impl Saboteur for CountsItself {
    fn new() -> Self {
        Self::default()
    }

    fn served(&self, seen: u64) -> u64 {
        seen + self.reads.fetch_add(1, Ordering::Relaxed)
    }
}
