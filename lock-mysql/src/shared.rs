//! State that all connections of one client share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_core::backend::restart::Epoch;
use leasehold_core::backend::{Attachment, Connecting, Lookups};
use sqlx::mysql::MySqlConnectOptions;
use tokio::time::Instant;

use crate::maintenance::Maintenance;
use crate::row::released::Released;
use crate::row::wakeup::Turns;
use crate::row::watcher::Watcher;
use crate::settings::{self, Settings, Target};

pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) options: MySqlConnectOptions,
    /// The address of the server, for errors and logs.
    pub(crate) address: String,
    pub(crate) connecting: Connecting,
    pub(crate) lookups: Lookups,
    pub(crate) core: Attachment,
    /// What this client knows about the runs of the server.
    pub(crate) epoch: Mutex<Epoch>,
    pub(crate) watcher: Watcher,
    pub(crate) turns: Turns,
    pub(crate) maintenance: Maintenance,
    pub(crate) released: Released,
    /// A connection that was last used before this may be one that the path has forgotten, as another one was.
    doubt: Mutex<Option<Instant>>,
}

impl Shared {
    pub(crate) fn new(target: Target, settings: Settings) -> Self {
        let Target { options, address } = target;
        let options = settings::prepare(options);
        let (watcher, turns, maintenance) = (Watcher::default(), Turns::default(), Maintenance::default());
        Self {
            connecting: Connecting::new(settings.timeout, settings.connect_timeout),
            lookups: Lookups::default(),
            settings,
            options,
            address,
            core: Attachment::new(),
            epoch: Mutex::default(),
            watcher,
            turns,
            maintenance,
            released: Released::default(),
            doubt: Mutex::default(),
        }
    }

    /// A connection that was idle has no reply to a test that was sent then.
    pub(crate) fn doubt_used_before(&self, sent: Instant) {
        *lock(&self.doubt) = Some(sent);
    }

    pub(crate) fn is_doubted(&self, last_used: Instant) -> bool {
        lock(&self.doubt).is_some_and(|doubt| last_used < doubt)
    }
}

/// Locks a mutex, even after a panic. Every critical section in this crate leaves its data consistent at each step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
