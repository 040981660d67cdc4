//! What a backend brings to be tested: a fresh namespace, ways to break it, and a look at the server's own state.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::backend::LockBackend;
use leasehold_core::{FencingToken, LockClientBuilder, LockName};

use crate::fault::{PathFault, ServerFault, Tamper, Unsupported};

/// The way from a client to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Always clear: for the other clients of a case, who must notice nothing.
    Clear,
    /// The one that [`Fixture::path`] breaks.
    Faulty,
}

/// A backend under test: a namespace of its own on a server, in which no lock exists yet.
///
/// Every case makes a fresh one, and several cases run at once, so fixtures do not share what a case can break or
/// count. What a method here promises belongs to the test and not to the library: it must not go through the backend
/// that is tested, or a fault of it could hide itself. A method that cannot keep its promise panics with a text that
/// says what to do.
///
/// The cases of the group `a_fixture` hold each method against an effect that shows at the server. They come first.
///
/// What a fixture spawns for its backends to talk to must not run on the keeper's runtime: a case blocks that one
/// to pause a process.
#[async_trait]
pub trait Fixture: Send + Sync + 'static {
    /// Starts what is needed. When the server cannot be started it panics and says how to get it; nothing is skipped.
    async fn new() -> Self
    where
        Self: Sized;

    /// A backend for one client, not yet attached, on the namespace of this fixture. It may be called from any
    /// runtime; what is still to be connected is connected by the first call.
    async fn backend(&self, route: Route) -> Arc<dyn LockBackend>;

    /// As [`backend`](Self::backend) by the clear route, set to remove the record of a free lock after `retention`. A case asks for
    /// one second.
    ///
    /// # Errors
    /// When the store removes no record by its age.
    async fn backend_with_retention(&self, retention: Duration) -> Result<Arc<dyn LockBackend>, Unsupported>;

    /// A backend for an operator, who may list locks and examine the store. As [`backend`](Self::backend) by the clear route
    /// where that takes no permission of its own.
    async fn operator(&self) -> Arc<dyn LockBackend> {
        self.backend(Route::Clear).await
    }

    /// A case calls this where the capabilities of the backend leave it nothing to prove. The runner of the suite records it; a
    /// fixture has nothing to do.
    fn empty(&self, _reason: &str) {}

    /// Waits until every client is connected in full, as far as the server is there: a store may tell its clients of grants over
    /// a connection that comes about beside their first calls. Cases ask this before they count requests or connections, want
    /// grants to be told, or hold the next request.
    async fn connected(&self) {}

    /// Passwords and the like that its backends were made with: they must not be shown anywhere.
    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }

    /// The shortest ttl that makes sense here: at least the backend's own bound, and long enough that a busy machine of
    /// two cores does not lose a renewed lease of it. The cases scale everything by it.
    fn ttl(&self) -> Duration;

    /// What every client of a case is made with besides its backend. Nothing for a backend under test; a saboteur
    /// breaks a client here.
    fn tune(&self, builder: LockClientBuilder) -> LockClientBuilder {
        builder
    }

    /// Breaks [`Route::Faulty`], also for connections that are open. A second fault replaces the first; what the
    /// first one lost stays lost, and what it held stays held.
    ///
    /// Every backend can have these: where there is no proxy for its protocol, [`Faulty`](crate::Faulty) around the
    /// backend does the same.
    async fn path(&self, fault: PathFault);

    /// Ends the fault of the path for what is sent from now on. What was held stays held.
    async fn heal(&self);

    /// Lets the requests arrive now that [`PathFault::Hold`] kept, in their order, though their clients have given
    /// them up; returns when the server has worked on them.
    async fn deliver(&self);

    /// Does this to the server.
    async fn server(&self, fault: ServerFault) -> Result<(), Unsupported>;

    /// Does this to the server's record of a lock, behind everybody's back.
    async fn tamper(&self, name: &LockName, tamper: Tamper) -> Result<(), Unsupported>;

    /// Reads the server's own record of a lock, under the frozen encoding of its name.
    async fn record(&self, name: &LockName) -> Record;

    /// Counts what the server holds of this namespace, and the connections that it has open.
    async fn resource_counts(&self) -> ResourceCounts;

    /// How many requests about locks the server has worked on since it started: what clients sent, each once. What the
    /// fixture itself sends does not count, nor what keeps a connection open.
    async fn served(&self) -> u64;
}

/// The server's own record of a lock. All empty when it has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// What is left of each lease by the server's own clock, read before this returned.
    pub holders: Vec<Duration>,
    /// The token of the last grant, as far as the server still keeps it.
    pub last_token: Option<FencingToken>,
    /// How many live places wait; `None` where the server keeps no queue.
    pub waiters: Option<u64>,
}

impl Record {
    /// What is left of the lease of an exclusive lock; `None` when nobody holds it.
    ///
    /// # Panics
    /// When more than one holds it.
    pub fn lease(&self) -> Option<Duration> {
        assert!(self.holders.len() <= 1, "an exclusive lock has {} holders", self.holders.len());
        self.holders.first().copied()
    }

    /// How many live places wait; 0 where the server keeps no queue.
    pub fn waiting(&self) -> u64 {
        self.waiters.unwrap_or(0)
    }
}

/// What the server holds of a namespace.
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
    /// Anything else that lock requests left: subscriptions of names, watches, empty queues, sessions.
    pub other: u64,
}

impl ResourceCounts {
    /// Whether no claim left anything: what is there is documented to stay.
    pub fn is_clean(&self) -> bool {
        self.leases == 0 && self.places == 0 && self.other == 0
    }
}
