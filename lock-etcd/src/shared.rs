//! State that all connections of one client share.

use std::time::Duration;

use leasehold_core::backend::kit::{Attachment, Connecting, Servers};
use tokio::time::Instant;

use crate::keys::Keys;
use crate::members::Member;
use crate::settings::{Settings, Target};
use crate::transactions::MostOperations;

/// For how many bounds of a call the first attempt to connect to the only member goes on. It takes several round trips,
/// and starting again costs an overloaded server more than its reply. If there are several members, those that have
/// failed are tried again sooner.
const PATIENCE: u32 = 5;

/// A connection that was idle has this part of the bound of a call to reply.
const TESTS: u32 = 8;

pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) keys: Keys,
    pub(crate) members: Servers<Member>,
    pub(crate) user: Option<(String, String)>,
    pub(crate) core: Attachment,
    pub(crate) connecting: Connecting,
    pub(crate) most_operations: MostOperations,
}

impl Shared {
    pub(crate) fn new(target: Target, settings: Settings) -> Self {
        let Target { members, user } = target;
        let keys = Keys::new(&settings.prefix);
        let members = Servers::new(members);
        let patience = if members.are_several() { 1 } else { PATIENCE };
        let connecting = Connecting::new(settings.timeout * patience, settings.connect_timeout);
        let (core, most_operations) = (Attachment::new(), MostOperations::default());
        Self { settings, keys, members, user, core, connecting, most_operations }
    }

    /// The addresses of all members, for errors.
    pub(crate) fn addresses(&self) -> String {
        let addresses: Vec<_> = self.members.all().iter().map(|member| &*member.address).collect();
        addresses.join(", ")
    }

    /// The deadline of a call that starts now.
    pub(crate) fn until(&self) -> Instant {
        Instant::now() + self.settings.timeout
    }

    /// How long a connection that was idle may take to reply before another one is opened beside it.
    pub(crate) fn test(&self) -> Duration {
        self.settings.timeout / TESTS
    }

    /// The bound of one attempt, if another member can be tried after it.
    pub(crate) fn attempt(&self) -> Duration {
        self.members.attempt(self.settings.timeout)
    }
}
