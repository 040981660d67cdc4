//! State that all sessions of one client share.

use std::time::Duration;

use leasehold_core::backend::kit::{Attachment, Connecting, Lookups};
use tokio::time::Instant;
use zookeeper_client::Acls;

use crate::errors::Failure;
use crate::nodes::Nodes;
use crate::settings::{Settings, Target};

pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) target: Target,
    pub(crate) nodes: Nodes,
    pub(crate) core: Attachment,
    /// For new sessions.
    pub(crate) connecting: Connecting,
    pub(crate) lookups: Lookups,
}

impl Shared {
    pub(crate) fn new(target: Target, settings: Settings) -> Self {
        let nodes = Nodes::new(&settings.root);
        // Clients spread over the servers.
        target.servers.prefer(rand::random_range(0..target.servers.all().len()));
        let connecting = Connecting::new(settings.timeout, settings.connect_timeout);
        Self { settings, target, nodes, core: Attachment::new(), connecting, lookups: Lookups::default() }
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

    /// The error of a call for which there is no connection in time.
    pub(crate) fn given_up(&self) -> Failure {
        Failure::NotSent(self.connecting.given_up(&self.target.servers.all().join(", ")))
    }

    /// The deadline of a call that starts now.
    pub(crate) fn until(&self) -> Instant {
        Instant::now() + self.settings.timeout
    }

    /// The bound of one attempt to connect, if another server can be tried after it.
    pub(crate) fn attempt(&self) -> Duration {
        self.target.servers.attempt(self.settings.timeout)
    }
}
