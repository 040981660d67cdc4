//! One server, and the connections of a client to it: one for each runtime that calls.

use std::sync::Arc;

use leasehold_core::Result;
use leasehold_core::backend::CoreHandle;
use leasehold_core::backend::kit::PerRuntime;
use tokio::runtime::Handle;

use crate::connection::Role;
use crate::manager::{self, ConnectionManager};
use crate::shared::Shared;

pub(crate) struct Server {
    pub(crate) shared: Arc<Shared>,
    managers: PerRuntime<ConnectionManager>,
}

impl Server {
    pub(crate) fn new(shared: Shared) -> Self {
        Self { shared: Arc::new(shared), managers: PerRuntime::new() }
    }

    /// Connects on the keeper's runtime from now on. Does nothing the second time.
    pub(crate) fn attach(&self, core: CoreHandle) {
        let keeper = core.keeper_runtime().clone();
        if self.shared.core.attach(core) {
            if let Some(sentinels) = self.shared.endpoint.sentinels() {
                sentinels.attach(&keeper);
            }
            if let (Some(replicas), Some(core)) = (&self.shared.replicas, self.shared.core.get()) {
                replicas.attach(core.clone());
            }
            // Connects and subscribes now, or the first waiter would miss its grant. A manager from before the attach
            // has no subscription.
            self.managers.remove(&keeper);
            self.manager_of(&keeper);
        }
    }

    /// The connection manager of the calling runtime.
    pub(crate) fn manager(&self) -> Result<Arc<manager::Inner>> {
        Ok(self.manager_of(&PerRuntime::<ConnectionManager>::caller()?))
    }

    fn manager_of(&self, runtime: &Handle) -> Arc<manager::Inner> {
        let make = || {
            let receives_pushes = self.shared.core.get().is_some_and(|core| core.keeper_runtime().id() == runtime.id());
            let role = if receives_pushes { Role::CommandsAndPushes } else { Role::Commands };
            let manager = ConnectionManager::new(self.shared.clone(), role, runtime);
            manager.inner().request_connection();
            manager
        };
        self.managers.read(runtime, |manager| !manager.is_stopped(), make, |manager| manager.inner().clone())
    }
}
