//! State that all sessions of one client share.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_core::backend::kit::{Attachment, Connecting, Lookups};
use tokio::time::Instant;
use zookeeper_client::Acls;

use crate::nodes::Nodes;
use crate::settings::{Settings, Target};

/// An attempt to connect gets this part of the bound of a call, with three servers or more.
const ATTEMPTS: u32 = 3;

pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) target: Target,
    pub(crate) nodes: Nodes,
    pub(crate) core: Attachment,
    /// For new sessions.
    pub(crate) connecting: Connecting,
    pub(crate) lookups: Lookups,
    /// The index of the server that the next attempt to connect begins with.
    server: AtomicUsize,
}

impl Shared {
    pub(crate) fn new(target: Target, settings: Settings) -> Self {
        let nodes = Nodes::new(&settings.root);
        // Clients spread over the servers.
        let server = rand::random_range(0..target.addresses.len());
        let connecting = Connecting::new(settings.timeout, settings.connect_timeout);
        let (core, server) = (Attachment::new(), AtomicUsize::new(server));
        Self { settings, target, nodes, core, connecting, lookups: Lookups::default(), server }
    }

    /// The permissions of the nodes that this client creates: the user alone, or everybody if the URL names no user.
    pub(crate) fn acls(&self) -> Acls<'static> {
        match self.target.user {
            Some(_) => Acls::creator_all(),
            None => Acls::anyone_all(),
        }
    }

    /// By how much a session lasts longer than its leases: a write proves activity of a tick ago, and the reads that
    /// are the activity are half a tick apart.
    pub(crate) fn more(&self) -> Duration {
        self.settings.tick * 2
    }

    /// The deadline of a call that starts now.
    pub(crate) fn until(&self) -> Instant {
        Instant::now() + self.settings.timeout
    }

    /// The bound of one attempt to connect, if another server can be tried after it.
    pub(crate) fn attempt(&self) -> Duration {
        let servers = u32::try_from(self.target.addresses.len()).unwrap_or(ATTEMPTS);
        self.settings.timeout / servers.clamp(1, ATTEMPTS)
    }

    /// The server to connect to.
    pub(crate) fn server(&self) -> usize {
        self.server.load(Ordering::Relaxed) % self.target.addresses.len()
    }

    /// Connects to another server from now on, if this one is still in use.
    pub(crate) fn leave_server(&self, server: usize) {
        let next = (server + 1) % self.target.addresses.len();
        let _ = self.server.compare_exchange(server, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}
