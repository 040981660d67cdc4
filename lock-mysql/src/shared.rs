//! What all connections of one client share.

use std::sync::{Arc, Mutex};

use leasehold_core::Result;
use leasehold_core::backend::kit::{Attachment, Connecting, Lookups, lock};
use sqlx::mysql::MySqlConnectOptions;
use tokio::time::Instant;

use crate::settings::{Settings, Target, parse_url, prepare};

/// A listing takes at most this many call bounds.
const LIST_BOUNDS: u32 = 9;

pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) options: MySqlConnectOptions,
    /// The address of the server, for errors and logs.
    pub(crate) address: String,
    pub(crate) connecting: Connecting,
    pub(crate) lookups: Lookups,
    pub(crate) core: Attachment,
    /// When the newest test was sent that had no reply, on a connection that was idle. The path has forgotten that
    /// connection, and perhaps others that were last used before.
    doubt: Mutex<Option<Instant>>,
}

impl Shared {
    pub(crate) fn parse(url: &str) -> Result<Arc<Self>> {
        let (Target { options, address }, settings) = parse_url(url)?;
        Ok(Arc::new(Self {
            connecting: Connecting::new(settings.timeout, settings.connect_timeout),
            lookups: Lookups::default(),
            settings,
            options: prepare(options),
            address,
            core: Attachment::new(),
            doubt: Mutex::default(),
        }))
    }

    /// The deadline of a call that starts now.
    pub(crate) fn until(&self) -> Instant {
        Instant::now() + self.settings.timeout
    }

    /// The deadline of a listing that starts now.
    pub(crate) fn until_listed(&self) -> Instant {
        Instant::now() + self.settings.timeout * LIST_BOUNDS
    }

    /// A test that was sent then, on a connection that was idle, has no reply.
    pub(crate) fn doubt_used_before(&self, sent: Instant) {
        *lock(&self.doubt) = Some(sent);
    }

    pub(crate) fn is_doubted(&self, last_used: Instant) -> bool {
        lock(&self.doubt).is_some_and(|doubt| last_used < doubt)
    }
}
