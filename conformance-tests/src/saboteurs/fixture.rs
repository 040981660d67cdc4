//! Fixtures with one defective method. Their backends are correct.

use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_core::backend::{Capabilities, StoreClock};

use super::Saboteur;
use crate::fault::{PathFault, ServerFault, Unsupported};
use crate::fixture::ResourceCounts;
use crate::hooks::Hooks;

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
    /// Does not deliver held requests.
    DeliversNothing: fn delivers(&self) -> bool { false }
    /// Does not kill its server.
    KillsNothing: fn server(&self, fault: &ServerFault) -> Option<Result<(), Unsupported>> {
        (*fault == ServerFault::Kill).then_some(Ok(()))
    }
    /// Stops its server in order instead of killing it.
    KillsInOrder: fn before(&self, fault: &ServerFault) -> Option<ServerFault> {
        (*fault == ServerFault::Kill).then_some(ServerFault::Resume)
    }
    /// Supports a retention, but removes no record.
    RetainsForEver: fn claims_retention(&self) -> bool { true }
    /// Shares its namespace with another fixture.
    SharesItsNamespace: fn resource_counts(&self, seen: ResourceCounts) -> ResourceCounts {
        ResourceCounts { fences: seen.fences + 1, ..seen }
    }
    /// Counts nothing at the server.
    CountsNothing: fn resource_counts(&self, _: ResourceCounts) -> ResourceCounts { ResourceCounts::default() }
    /// Counts no places at the server.
    CountsNoPlaces: fn resource_counts(&self, seen: ResourceCounts) -> ResourceCounts {
        ResourceCounts { places: 0, ..seen }
    }
    /// Counts no requests.
    CountsNoRequest: fn served(&self, _: u64) -> u64 { 0 }
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
