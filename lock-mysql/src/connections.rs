//! The connections of one client: a pool for each runtime that calls the backend, and for each use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::backend::CoreHandle;
use leasehold_core::backend::kit::PerRuntime;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::errors::Failure;
use crate::pool::{Limit, Pool, RuntimePool, TEST_AFTER};
use crate::session::SetUp;
use crate::shared::Shared;

/// [`TEST_AFTER`] for the runtimes of callers. It is short, because a call of theirs is not repeated and should seldom
/// meet a connection that has ended. Calls in quick succession still need no test.
const TEST_SOON: Duration = Duration::from_millis(10);

/// The connections that both strategies use.
pub(crate) struct Connections {
    pub(crate) shared: Arc<Shared>,
    /// Acquires, releases and polls.
    pub(crate) calls: Arc<Pools>,
    /// Renewals. They have connections of their own, because releases and withdrawals must not delay them. With
    /// `SELECT … FOR UPDATE`: queries about places.
    pub(crate) renewals: Arc<Pools>,
    /// The client reached the server before it was attached.
    is_connected: AtomicBool,
}

impl Connections {
    /// Connections for calls have these statements prepared.
    pub(crate) fn new(shared: Arc<Shared>, statements: &'static [&'static str]) -> Arc<Self> {
        let for_calls = SetUp { statements, ..SetUp::default() };
        let calls = Pools::new(shared.clone(), for_calls, Limit::Calls(shared.settings.connections));
        let renewals = Pools::new(shared.clone(), SetUp::default(), Limit::Calls(1));
        Arc::new(Self { shared, calls, renewals, is_connected: AtomicBool::new(false) })
    }

    /// Opens a connection for calls by the calling runtime.
    pub(crate) async fn connect(&self, until: Instant) -> Result<(), Failure> {
        self.calls.pool()?.checkout(until).await?.put_back();
        self.is_connected.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Takes the handle to lock-core. Returns whether the client has just reached the server, so that more connections
    /// can be opened in advance.
    pub(crate) fn attach(&self, core: &CoreHandle) -> bool {
        self.shared.core.attach(core.clone()) && self.is_connected.load(Ordering::Relaxed)
    }
}

/// The connections for one use, of each runtime that calls the backend.
pub(crate) struct Pools {
    shared: Arc<Shared>,
    pools: PerRuntime<RuntimePool>,
    set_up: SetUp,
    limit: Limit,
    /// A connection of the keeper's runtime was opened in advance.
    is_warm: AtomicBool,
}

impl Pools {
    pub(crate) fn new(shared: Arc<Shared>, set_up: SetUp, limit: Limit) -> Arc<Self> {
        Arc::new(Self { shared, pools: PerRuntime::new(), set_up, limit, is_warm: AtomicBool::new(false) })
    }

    /// For the calling runtime.
    pub(crate) fn pool(&self) -> Result<Arc<Pool>, Failure> {
        Ok(self.pool_of(&PerRuntime::<RuntimePool>::caller().map_err(Failure::NotSent)?))
    }

    pub(crate) fn pool_of(&self, runtime: &Handle) -> Arc<Pool> {
        let make = || {
            let keeper = self.shared.core.core().map(CoreHandle::keeper_runtime);
            let test_after = if keeper.is_ok_and(|it| it.id() == runtime.id()) { TEST_AFTER } else { TEST_SOON };
            RuntimePool::new(Pool::new(self.shared.clone(), self.set_up, self.limit, test_after), runtime)
        };
        self.pools.read(runtime, |it| !it.is_stopped(), make, |it| it.pool.clone())
    }

    /// Opens a connection of the keeper's runtime, once: the first withdrawal or renewal then takes one round trip.
    pub(crate) fn warm_up(&self, core: &CoreHandle) {
        if self.is_warm.swap(true, Ordering::Relaxed) {
            return;
        }
        let (pool, until) = (self.pool_of(core.keeper_runtime()), self.shared.until());
        core.keeper_runtime().spawn(async move {
            // The next call that needs a connection opens one itself, and reports the error.
            if let Ok(connection) = pool.checkout(until).await {
                connection.put_back();
            }
        });
    }
}
