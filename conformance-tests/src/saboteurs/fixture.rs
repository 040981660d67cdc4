//! Fixtures with one method that does not do what it has to. Their backends are sound.

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

/// Fixtures without state of their own, each with the one method that it has instead of the sound one.
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

/// Fixtures that put something else, or nothing, in the place of one fault of the path.
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
    /// Keeps connections open that are to be cut.
    DisconnectIsDropTraffic: PathFault::Disconnect => Some(PathFault::DropTraffic);
    /// Lets everything pass that is to be met with silence.
    DropsNothing: PathFault::DropTraffic => None;
    /// Keeps for later what is never to arrive.
    DropTrafficIsHold: PathFault::DropTraffic => Some(PathFault::Hold);
    /// Delays nothing.
    DelaysNothing: PathFault::Delay(_) => None;
    /// Lets replies pass.
    LosesNoReplies: PathFault::LoseReplies => None;
    /// Lets pushes pass.
    LosesNoPushes: PathFault::LosePushes => None;
    /// Lets pass what is to be held.
    HoldsNothing: PathFault::Hold => None;
    /// Drops what is to be held.
    HoldIsDropTraffic: PathFault::Hold => Some(PathFault::DropTraffic);
    /// Sends every request once.
    DoublesNothing: PathFault::Double => None;
}

defective! {
    /// Leaves the path as it is broken.
    HealsNothing: fn heals(&self) -> bool { false }
    /// Keeps for ever what is held.
    DeliversNothing: fn delivers(&self) -> bool { false }
    /// Breaks the clear route with the other one.
    HasOneRoute: fn route(&self, _: Route) -> Route { Route::Faulty }
    /// Has a ttl that no backend takes.
    HasATinyTtl: fn ttl(&self, _: Duration) -> Duration { Duration::from_nanos(1) }
    /// Offers a retention, and removes no record.
    RetainsForEver: fn claims_retention(&self) -> bool { true }
    /// Shares its namespace with another fixture.
    SharesItsNamespace: fn resource_counts(&self, seen: ResourceCounts) -> ResourceCounts { ResourceCounts { fences: seen.fences + 1, ..seen } }
    /// Sees nothing at the server.
    CountsNothing: fn resource_counts(&self, _: ResourceCounts) -> ResourceCounts { ResourceCounts::default() }
    /// Sees no places at the server.
    CountsNoPlaces: fn resource_counts(&self, seen: ResourceCounts) -> ResourceCounts { ResourceCounts { places: 0, ..seen } }
    /// Sees every lock as free and unused.
    ReadsNoRecord: fn record(&self, _: Record) -> Record { Record::default() }
    /// Sees no waiters.
    ReadsNoWaiters: fn record(&self, seen: Record) -> Record { Record { waiters: seen.waiters.map(|_| 0), ..seen } }
    /// Sees leases as long as they were granted.
    ReadsTheTtl: fn record(&self, seen: Record) -> Record {
        let holders = seen.holders.iter().map(|_| Duration::from_secs(12)).collect();
        Record { holders, ..seen }
    }
    /// Counts no request.
    CountsNoRequest: fn served(&self, _: u64) -> u64 { 0 }
}

/// Fixtures for which one fault of the server is another one.
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
    /// Lets its server stand still for ever.
    ResumesNothing: ServerFault::Resume => Ok(());
    /// Refuses nobody.
    RefusesNobody: ServerFault::RefuseUser => Ok(());
    /// Takes writes.
    TakesWrites: ServerFault::ReadOnly => Ok(());
    /// Has always room for data.
    FillsNoStore: ServerFault::Fill(Room::Data) => Ok(());
    /// Has always room for connections.
    FillsNoConnections: ServerFault::Fill(Room::Connections) => Ok(());
    /// Mends nothing.
    RestoresNothing: ServerFault::Restore => Ok(());
    /// Offers to stop its server, and cannot start it.
    CannotStart: ServerFault::Start(Data::Kept) => Err(Unsupported::because("planted: it cannot be started"));
}

defective! {
    /// Starts with all data what is to have none.
    KeepsTheData: fn instead(&self, fault: ServerFault) -> ServerFault {
        if fault == ServerFault::Start(Data::Lost) { ServerFault::Start(Data::Kept) } else { fault }
    }
    /// Starts without data what is to have all.
    LosesTheData: fn instead(&self, fault: ServerFault) -> ServerFault {
        if fault == ServerFault::Start(Data::Kept) { ServerFault::Start(Data::Lost) } else { fault }
    }
    /// Stops what is to forget its scripts.
    StopsInsteadOfFlushing: fn instead(&self, fault: ServerFault) -> ServerFault {
        if fault == ServerFault::FlushScripts { ServerFault::Stop } else { fault }
    }
    /// Removes no record.
    RemovesNothing: fn tampers(&self, tamper: Tamper) -> bool { tamper != Tamper::Remove }
    /// Corrupts no record.
    CorruptsNothing: fn tampers(&self, tamper: Tamper) -> bool { tamper != Tamper::Corrupt }
    /// Leaves each record in its version.
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
        Err(Error::new(ErrorKind::Auth, "planted: no permission"))
    }
}

/// Returns from `connected` while a connection is still being made.
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

/// Counts what the fixture itself asks.
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
