//! Memory backends with one defect each, on which the cases must fail. A case that passes on its saboteur proves
//! nothing.

mod capabilities;
mod connections;
mod errors;
mod events;
mod exclusion;
mod fixture;
mod leaks;
mod ownership;
mod queue;
mod release;
mod renewal;
mod time;
mod tokens;
mod withdraw;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::backend::{Clock, LockBackend};
use leasehold_core::{LockClientBuilder, LockName};

pub use self::capabilities::*;
pub use self::connections::*;
pub use self::errors::*;
pub use self::events::*;
pub use self::exclusion::*;
pub use self::fixture::*;
pub use self::leaks::*;
pub use self::ownership::*;
pub use self::queue::*;
pub use self::release::*;
pub use self::renewal::*;
pub use self::time::*;
pub use self::tokens::*;
pub use self::withdraw::*;
use crate::fault::{PathFault, ServerFault, Tamper, Unsupported};
use crate::fixture::{Fixture, Record, ResourceCounts, Route};
use crate::hooks::{Hooked, Hooks};
use crate::memory::MemoryFixture;

/// A defect. One saboteur serves all clients of a case.
pub trait Saboteur: Hooks {
    /// Creates it inside the runtime of the case.
    fn new() -> Self;

    /// Whether the defect is in the server, behind the path, and not in the client's backend.
    const AT_SERVER: bool = false;

    /// The clock of the server, if the saboteur needs its own.
    fn store_clock(&self) -> Option<Arc<dyn Clock>> {
        None
    }

    /// Handles a fault of the server, if the saboteur replaces that.
    fn server(&self, _: &ServerFault) -> Option<Result<(), Unsupported>> {
        None
    }

    /// Changes the builder of a client.
    fn tune(&self, builder: LockClientBuilder) -> LockClientBuilder {
        builder
    }

    // Defects of the fixture's own methods, which only the cases of the group `a_fixture` detect.

    /// The fault that the path gets instead, if any.
    fn path(&self, fault: PathFault) -> Option<PathFault> {
        Some(fault)
    }

    /// Whether held requests can be delivered.
    fn delivers(&self) -> bool {
        true
    }

    /// A fault that the server gets a moment before.
    fn before(&self, _: &ServerFault) -> Option<ServerFault> {
        None
    }

    /// Whether it claims to remove records of free locks, although it does not.
    fn claims_retention(&self) -> bool {
        false
    }

    /// The resource counts that the fixture returns.
    fn resource_counts(&self, seen: ResourceCounts) -> ResourceCounts {
        seen
    }

    /// The number of requests that the fixture returns.
    fn served(&self, seen: u64) -> u64 {
        seen
    }
}

/// The memory fixture with a saboteur.
pub struct Sabotaged<S> {
    sound: MemoryFixture,
    saboteur: Arc<S>,
    backends: AtomicUsize,
}

#[async_trait]
impl<S: Saboteur> Fixture for Sabotaged<S> {
    async fn new() -> Self {
        let saboteur = Arc::new(S::new());
        let mut sound = MemoryFixture::new().await;
        if let Some(clock) = saboteur.store_clock() {
            sound.store.set_clock(clock);
        }
        if S::AT_SERVER {
            sound.store.set_hooks(saboteur.clone());
        }
        Self { sound, saboteur, backends: AtomicUsize::new(0) }
    }

    async fn backend(&self, route: Route) -> Arc<dyn LockBackend> {
        let backend = self.sound.backend(route).await;
        if S::AT_SERVER {
            return backend;
        }
        Arc::new(Hooked::new(backend, self.backends.fetch_add(1, Ordering::SeqCst), self.saboteur.clone()))
    }

    async fn backend_with_retention(&self, retention: Duration) -> Result<Arc<dyn LockBackend>, Unsupported> {
        if self.saboteur.claims_retention() {
            return Ok(self.backend(Route::Clear).await);
        }
        self.sound.backend_with_retention(retention).await
    }

    fn tune(&self, builder: LockClientBuilder) -> LockClientBuilder {
        self.saboteur.tune(builder)
    }

    fn ttl(&self) -> Duration {
        self.sound.ttl()
    }

    async fn path(&self, fault: PathFault) {
        if let Some(fault) = self.saboteur.path(fault) {
            self.sound.path(fault).await;
        }
    }

    async fn heal(&self) {
        self.sound.heal().await;
    }

    async fn deliver(&self) {
        if self.saboteur.delivers() {
            self.sound.deliver().await;
        }
    }

    async fn server(&self, fault: ServerFault) -> Result<(), Unsupported> {
        if let Some(first) = self.saboteur.before(&fault) {
            self.sound.server(first).await?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        match self.saboteur.server(&fault) {
            Some(outcome) => outcome,
            None => self.sound.server(fault).await,
        }
    }

    async fn tamper(&self, name: &LockName, tamper: Tamper) -> Result<(), Unsupported> {
        self.sound.tamper(name, tamper).await
    }

    fn record_step(&self) -> Duration {
        self.sound.record_step()
    }

    async fn record(&self, name: &LockName) -> Record {
        self.sound.record(name).await
    }

    async fn resource_counts(&self) -> ResourceCounts {
        self.saboteur.resource_counts(self.sound.resource_counts().await)
    }

    async fn served(&self) -> u64 {
        self.saboteur.served(self.sound.served().await)
    }
}

/// A saboteur without state.
macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            pub struct $name;

            impl $crate::saboteurs::Saboteur for $name {
                fn new() -> Self {
                    Self
                }
            }
        )*
    };
}

/// A saboteur with default state.
macro_rules! stateful {
    ($($name:ident;)*) => {
        $(impl $crate::saboteurs::Saboteur for $name {
            fn new() -> Self {
                Self::default()
            }
        })*
    };
}

use {plain, stateful};
