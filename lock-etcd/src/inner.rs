//! What the operations on claims share: the connections, the sessions and the watcher of one client.

use std::sync::Arc;

use leasehold_core::Result;
use leasehold_core::backend::kit::PooledSession;
use leasehold_core::backend::{Claim, CoreHandle};

use crate::connections::{AllConnections, Connections};
use crate::key_ids::KeyIds;
use crate::keys;
use crate::session::Session;
use crate::sessions::Sessions;
use crate::shared::Shared;
use crate::slot::Slot;
use crate::transactions::{Entry, LeaseEpoch};
use crate::watcher::Watcher;

/// What the parts of the backend share.
pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) connections: AllConnections,
    pub(crate) sessions: Sessions,
    pub(crate) watcher: Arc<Watcher>,
    pub(crate) key_ids: Arc<KeyIds>,
}

impl Inner {
    /// The connection of the keeper's runtime: it has the keep-alives and the watches.
    pub(crate) fn keeper(&self, core: &CoreHandle) -> Arc<Connections> {
        self.connections.of(&self.shared, core.keeper_runtime())
    }

    /// The key of a claim.
    pub(crate) fn key(&self, claim: &Claim) -> String {
        self.shared.keys.claim(claim.name(), Slot::of(claim).id(&self.key_ids, claim))
    }

    /// The connection of the calling runtime.
    pub(crate) fn caller(&self) -> Result<Arc<Connections>> {
        self.connections.of_caller(&self.shared)
    }

    /// What the transactions of a claim need. A key that is created behind another one is attached to the session of
    /// `places`.
    pub(crate) fn entry(&self, claim: &Claim, session: &Session, places: Option<&Session>) -> Entry {
        let keys = &self.shared.keys;
        let lease =
            |session: &Session| LeaseEpoch { lease: session.id, key: keys.epoch(session.id), epoch: session.epoch() };
        Entry {
            queue: keys.queue(claim.name()),
            key: self.key(claim),
            value: keys::value(claim),
            lease: lease(session),
            place: places.map(lease),
        }
    }

    /// Ends a session of one claim in the background. If that fails, it ends with its ttl.
    pub(crate) fn revoke(&self, core: &CoreHandle, session: &Arc<Session>) {
        session.end();
        let (keeper, until, id) = (self.keeper(core), self.shared.until(), session.id);
        core.keeper_runtime().spawn(async move {
            let _ = keeper
                .send_repeatable(until, move |client| async move { client.lease_client().revoke(id).await })
                .await;
        });
    }
}
