//! What all connections of one client share.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::kit::{Attachment, Connecting, Lookups, lock};
use leasehold_core::{Error, Result};
use sqlx::mysql::MySqlConnectOptions;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::settings::{Settings, Strategy, Target, parse_url, prepare};

/// A listing takes at most this many call bounds.
const LIST_BOUNDS: u32 = 9;

/// How long a client keeps no idle connection after the server has refused one.
const NO_ROOM: Duration = Duration::from_secs(1);

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
    /// When the server last refused a connection, because it has no room for more.
    refused: watch::Sender<Option<Instant>>,
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
            refused: watch::Sender::default(),
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

    /// The error of a call for which there is no connection in time.
    pub(crate) fn given_up(&self) -> Error {
        self.connecting.given_up(&self.address)
    }

    /// A test that was sent then, on a connection that was idle, has no reply.
    pub(crate) fn doubt_used_before(&self, sent: Instant) {
        *lock(&self.doubt) = Some(sent);
    }

    pub(crate) fn is_doubted(&self, last_used: Instant) -> bool {
        lock(&self.doubt).is_some_and(|doubt| last_used < doubt)
    }

    /// The server has no room for another connection. With `for-update`, the client gives back those that are idle: a
    /// claim needs a second connection for its grant, and clients that each keep one until they get another would wait
    /// for each other. With `row`, each step needs one connection, and renewals need theirs again.
    pub(crate) fn note_no_room(&self) {
        if self.settings.strategy == Strategy::ForUpdate {
            self.refused.send_replace(Some(Instant::now()));
        }
    }

    pub(crate) fn has_no_room(&self) -> bool {
        self.refused.borrow().is_some_and(|refused| refused.elapsed() < NO_ROOM)
    }

    /// Reports each time when there is no room.
    pub(crate) fn refusals(&self) -> watch::Receiver<Option<Instant>> {
        self.refused.subscribe()
    }
}
