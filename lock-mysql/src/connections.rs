//! The connections of one client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::Result;
use leasehold_core::backend::{CoreHandle, PerRuntime};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::for_update;
use crate::pool::{Limit, Pool, RuntimePool};
use crate::row::statements::{ACQUIRE, ACQUIRE_FREE, RELEASE, WITHDRAW};
use crate::session::SetUp;
use crate::settings::Strategy;
use crate::shared::Shared;

/// A connection of the keeper's runtime that was idle for longer is tested before it is used. What fails there is repeated.
pub(crate) const TEST_AFTER: Duration = Duration::from_secs(5);

/// The same for other runtimes. So a caller seldom sees that a connection has ended, and calls in quick succession are not slower.
const TEST_SOON: Duration = Duration::from_millis(10);

/// What connections are for.
#[derive(Clone, Copy)]
pub(crate) enum Use {
    /// Acquires, releases and polls.
    Calls,
    /// They have connections of their own: releases and withdrawals must not delay a renewal. With `SELECT … FOR UPDATE`: of places.
    Renewals,
    /// Locks by `SELECT … FOR UPDATE`, on the keeper's runtime.
    Leases,
}

/// The connections of each runtime that calls the backend.
pub(crate) struct Connections {
    pub(crate) shared: Arc<Shared>,
    calls: Group,
    renewals: Group,
    /// Of claims that hold or wait for locks by `SELECT … FOR UPDATE`: one for each. All belong to the keeper's runtime.
    leases: Group,
}

/// The connections for one use.
struct Group {
    pools: PerRuntime<RuntimePool>,
    set_up: SetUp,
    limit: Limit,
    /// The keeper's runtime has opened one.
    is_warm: AtomicBool,
}

impl Group {
    fn new(set_up: SetUp, limit: Limit) -> Self {
        Self { pools: PerRuntime::new(), set_up, limit, is_warm: AtomicBool::new(false) }
    }
}

impl Connections {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let statements = |statements| SetUp { statements, ..SetUp::default() };
        let for_calls: &[_] = match shared.settings.strategy {
            Strategy::Row => &[ACQUIRE, ACQUIRE_FREE, RELEASE, WITHDRAW],
            Strategy::ForUpdate => for_update::PREPARED,
        };
        let calls = Group::new(statements(for_calls), Limit::Calls(shared.settings.connections));
        let leases = Group::new(for_update::SET_UP, Limit::Leases(shared.settings.locks));
        let renewals = Group::new(SetUp::default(), Limit::Calls(1));
        Self { shared, calls, renewals, leases }
    }

    /// For acquires, releases and polls by the calling runtime.
    pub(crate) fn calls(&self) -> Result<Arc<Pool>> {
        self.read(Use::Calls)
    }

    /// For renewals by the calling runtime.
    pub(crate) fn renewals(&self) -> Result<Arc<Pool>> {
        self.read(Use::Renewals)
    }

    /// For acquires, releases and polls by this runtime.
    pub(crate) fn calls_of(&self, runtime: &Handle) -> Arc<Pool> {
        self.pool_of(&self.calls, runtime)
    }

    /// For claims that hold or wait for locks by `SELECT … FOR UPDATE`.
    pub(crate) fn leases(&self, keeper: &Handle) -> Arc<Pool> {
        self.pool_of(&self.leases, keeper)
    }

    fn group(&self, of: Use) -> &Group {
        match of {
            Use::Calls => &self.calls,
            Use::Renewals => &self.renewals,
            Use::Leases => &self.leases,
        }
    }

    fn read(&self, of: Use) -> Result<Arc<Pool>> {
        Ok(self.pool_of(self.group(of), &PerRuntime::<RuntimePool>::caller()?))
    }

    fn pool_of(&self, group: &Group, runtime: &Handle) -> Arc<Pool> {
        let make = || {
            let test_after = if self.is_keepers(runtime) { TEST_AFTER } else { TEST_SOON };
            RuntimePool::new(Pool::new(self.shared.clone(), group.set_up, group.limit, test_after), runtime)
        };
        group.pools.read(runtime, |it| !it.pool.is_stopped(), make, |it| it.pool.clone())
    }

    fn is_keepers(&self, runtime: &Handle) -> bool {
        self.shared.core.core().is_ok_and(|core| core.keeper_runtime().id() == runtime.id())
    }

    /// Opens a connection of the keeper's runtime, once for each use: the first withdrawal or renewal then takes one round trip.
    pub(crate) fn warm_up(connections: &Arc<Self>, core: &CoreHandle, of: Use) {
        if connections.group(of).is_warm.swap(true, Ordering::Relaxed) {
            return;
        }
        let connections = connections.clone();
        core.keeper_runtime().spawn(async move {
            let until = Instant::now() + connections.shared.settings.timeout;
            let Ok(pool) = connections.read(of) else { return };
            drop(connections);
            // A call that needs a connection opens it again, and has the error.
            if let Ok(connection) = pool.checkout(until).await {
                connection.put_back();
            }
        });
    }
}
