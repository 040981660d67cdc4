//! The connections of one client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::Result;
use leasehold_core::backend::{CoreHandle, PerRuntime};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::pool::{Pool, RuntimePool};
use crate::shared::Shared;
use crate::statements::{ACQUIRE, RELEASE, RENEW, WITHDRAW};

/// A connection of the keeper's runtime that was idle for longer is tested before it is used. What fails there is repeated.
pub(crate) const TEST_AFTER: Duration = Duration::from_secs(5);

/// The same for other runtimes. So a caller seldom sees that a connection has ended, and calls in quick succession are not slower.
const TEST_SOON: Duration = Duration::from_millis(10);

/// The connections for acquires and releases, and those for renewals, of each runtime that calls the backend.
pub(crate) struct Connections {
    shared: Arc<Shared>,
    calls: PerRuntime<RuntimePool>,
    /// Of their own: releases and withdrawals must not delay a renewal.
    renewals: PerRuntime<RuntimePool>,
    /// The connections of the keeper's runtime have been opened.
    is_warm: AtomicBool,
}

impl Connections {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, calls: PerRuntime::new(), renewals: PerRuntime::new(), is_warm: AtomicBool::new(false) }
    }

    /// For acquires and releases by the calling runtime.
    pub(crate) fn calls(&self) -> Result<Arc<Pool>> {
        self.read(&self.calls, &[ACQUIRE, RELEASE, WITHDRAW], self.shared.settings.connections)
    }

    /// For renewals by the calling runtime.
    pub(crate) fn renewals(&self) -> Result<Arc<Pool>> {
        self.read(&self.renewals, &[RENEW[0]], 1)
    }

    fn read(
        &self,
        pools: &PerRuntime<RuntimePool>,
        statements: &'static [&'static str],
        size: usize,
    ) -> Result<Arc<Pool>> {
        let runtime = PerRuntime::<RuntimePool>::caller()?;
        let make = || {
            let test_after = if self.is_keepers(&runtime) { TEST_AFTER } else { TEST_SOON };
            RuntimePool::new(Pool::new(self.shared.clone(), statements, size, test_after), &runtime)
        };
        Ok(pools.read(&runtime, |it| !it.pool.is_stopped(), make, |it| it.pool.clone()))
    }

    fn is_keepers(&self, runtime: &Handle) -> bool {
        self.shared.core.core().is_ok_and(|core| core.keeper_runtime().id() == runtime.id())
    }

    /// Opens connections of the keeper's runtime, once: the first renewal or withdrawal then takes one round trip. Called when another
    /// runtime has connected.
    pub(crate) fn warm_up(connections: &Arc<Self>, core: &CoreHandle) {
        if connections.is_warm.swap(true, Ordering::Relaxed) {
            return;
        }
        let connections = connections.clone();
        core.keeper_runtime().spawn(async move {
            let until = Instant::now() + connections.shared.settings.timeout;
            let (Ok(calls), Ok(renewals)) = (connections.calls(), connections.renewals()) else { return };
            drop(connections);
            // A call that needs a connection opens it again, and has the error.
            let (call, renewal) = tokio::join!(calls.checkout(until), renewals.checkout(until));
            for connection in [call, renewal].into_iter().flatten() {
                connection.put_back();
            }
        });
    }
}
