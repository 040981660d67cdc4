//! The interface of a fixture: a fresh namespace, faults, and access to the server's own state.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::backend::LockBackend;
use leasehold_core::{FencingToken, LockClientBuilder, LockName};

use crate::fault::{PathFault, ServerFault, Tamper, Unsupported};

/// The path from a client to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Always clear: for the other clients of a case, which must not be affected.
    Clear,
    /// The path that [`Fixture::path`] breaks.
    Faulty,
}

/// A backend under test: a namespace of its own on a server, in which no lock exists yet.
///
/// Every case creates a fresh one, and several cases run at once. So fixtures must not share anything that a case can
/// break or count. A method must not use the backend under test, or a defect of the backend could hide itself. A method
/// that fails panics with instructions.
///
/// The cases of the group `a_fixture` run first. They check each effect at the server whose lack no
/// other case would notice.
///
/// A fixture must not spawn a server for its backends on the keeper's runtime: a case blocks that runtime to simulate a
/// paused process.
#[async_trait]
pub trait Fixture: Send + Sync + 'static {
    /// Starts the server. If it cannot be started, this panics with instructions; no case is skipped.
    async fn new() -> Self
    where
        Self: Sized;

    /// A backend for one client, not yet attached, on the namespace of this fixture. It may be called from any runtime.
    /// The first call may still have to connect.
    async fn backend(&self, route: Route) -> Arc<dyn LockBackend>;

    /// As [`backend`](Self::backend) by the clear route, set to remove the record of a free lock after `retention`.
    /// Cases pass one second.
    ///
    /// # Errors
    /// If the store removes no record by its age.
    async fn backend_with_retention(&self, retention: Duration) -> Result<Arc<dyn LockBackend>, Unsupported>;

    /// A backend for an operator, who may list locks and examine the store. As [`backend`](Self::backend) by the clear
    /// route if no separate permission is needed.
    async fn operator(&self) -> Arc<dyn LockBackend> {
        self.backend(Route::Clear).await
    }

    /// A case calls this if the capabilities of the backend leave it nothing to prove. The runner of the suite records
    /// it. A fixture does not implement it.
    fn empty(&self, _reason: &str) {}

    /// Waits until every client has all its connections, if the server runs. A store may notify its clients of grants
    /// over a connection that they establish beside their first calls. Cases call this before they count requests or
    /// connections, rely on notifications, or hold the next request.
    async fn connected(&self) {}

    /// Secrets in the settings of its backends, such as passwords. They must not be shown anywhere.
    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }

    /// The shortest usable ttl: at least the backend's own bound, and long enough that a busy machine with two cores
    /// does not lose a renewed lease. The cases scale all times by it.
    fn ttl(&self) -> Duration;

    /// Changes the builder of every client of a case. A fixture of a backend changes nothing; a saboteur breaks a
    /// client here.
    fn tune(&self, builder: LockClientBuilder) -> LockClientBuilder {
        builder
    }

    /// Breaks [`Route::Faulty`], also for open connections. A second fault replaces the first one. Lost requests stay
    /// lost, and held requests stay held.
    ///
    /// Every backend supports these faults: if there is no proxy for its protocol, [`Faulty`](crate::Faulty) around the
    /// backend injects them.
    async fn path(&self, fault: PathFault);

    /// Ends the fault of the path for later requests. Held requests stay held.
    async fn heal(&self);

    /// Delivers the requests that [`PathFault::Hold`] kept, in order, although their clients have given up. Returns
    /// when the server has processed them.
    async fn deliver(&self);

    /// Whether a request that [`deliver`](Self::deliver) delivers late takes effect. It does not if the server ends a
    /// connection as soon as its client continues on another one.
    fn late_requests_arrive(&self) -> bool {
        true
    }

    /// How soon after its start a server with its data grants a free lock. Longer for a store that lets leases end
    /// first that it may have forgotten.
    fn back_within(&self) -> Duration {
        crate::support::BACK
    }

    /// Injects or ends a fault of the server.
    ///
    /// # Errors
    /// [`Unsupported::because`] if the backend cannot have the fault, [`Unsupported::withheld`] if the server is not
    /// the fixture's own.
    async fn server(&self, fault: ServerFault) -> Result<(), Unsupported>;

    /// Changes the server's record of a lock without its clients.
    async fn tamper(&self, name: &LockName, tamper: Tamper) -> Result<(), Unsupported>;

    /// The step to which [`record`](Self::record) rounds up what is left of a lease, if the server counts in steps.
    fn record_step(&self) -> Duration {
        Duration::ZERO
    }

    /// Reads the server's own record of a lock, under the frozen encoding of its name.
    async fn record(&self, name: &LockName) -> Record;

    /// Counts the resources of this namespace at the server, and its open connections.
    async fn resource_counts(&self) -> ResourceCounts;

    /// The number of requests about locks that the server has processed since it started, each once. Requests of the
    /// fixture itself do not count, nor those that keep a connection open.
    async fn served(&self) -> u64;
}

/// The server's own record of a lock. Empty if it has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// What is left of each lease by the server's own clock, read before this returned.
    pub holders: Vec<Duration>,
    /// The token of the last grant, if the server still has it.
    pub last_token: Option<FencingToken>,
    /// The number of live places; `None` if the server keeps no queue.
    pub waiters: Option<u64>,
}

impl Record {
    /// What is left of the lease of an exclusive lock; `None` if the lock is free.
    ///
    /// # Panics
    /// If the lock has more than one holder.
    pub fn lease(&self) -> Option<Duration> {
        assert!(self.holders.len() <= 1, "an exclusive lock has {} holders", self.holders.len());
        self.holders.first().copied()
    }

    /// The number of live places; 0 if the server keeps no queue.
    pub fn waiting(&self) -> u64 {
        self.waiters.unwrap_or(0)
    }
}

/// The resources of a namespace at the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceCounts {
    /// Leases that have not expired.
    pub leases: u64,
    /// Places in queues that have not expired.
    pub places: u64,
    /// Records that keep fencing counters and nothing else. They stay, for a documented time.
    pub fences: u64,
    /// Notes about withdrawn claims. They stay, for a documented time.
    pub tombstones: u64,
    /// Connections of clients, without those of the fixture.
    pub connections: u64,
    /// Other resources of lock requests: subscriptions of names, watches, empty queues, sessions.
    pub other: u64,
}

impl ResourceCounts {
    /// Whether only resources remain that are documented to stay.
    pub fn is_clean(&self) -> bool {
        self.leases == 0 && self.places == 0 && self.other == 0
    }
}
