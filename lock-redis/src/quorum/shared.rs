//! What all connections of one client to a quorum share.

use std::sync::Mutex;
use std::time::Duration;

use leasehold_core::backend::kit::quorum::{Guess, Quorum, Settling};
use leasehold_core::backend::kit::{Attachment, TlsFiles, lock};
use leasehold_core::backend::{Clock, CoreHandle, SystemClock};
use leasehold_core::{Error, ErrorKind, Result};
use tokio::sync::{Notify, watch};

use super::settings::QuorumSettings;
use crate::endpoint::Endpoint;
use crate::keys::Keys;
use crate::scripts::{Script, ScriptCalls};

pub(super) struct Shared {
    pub(super) quorum: Quorum,
    pub(super) settings: QuorumSettings,
    /// In the order of the URL.
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) keys: Keys,
    pub(super) scripts: Scripts,
    pub(super) core: Attachment,
    /// What is known of the servers' clocks, on [`clock`](Self::clock).
    pub(super) guess: Mutex<Guess>,
    /// Not that of the client: servers are read before the backend is attached.
    clock: SystemClock,
    pub(super) settling: Mutex<Settling>,
    /// A server may be unsettled.
    pub(super) unsettled: Notify,
    /// A vote was left at a server.
    pub(super) left: Notify,
    /// Counts how often the servers were read by the settler.
    pub(super) settled: watch::Sender<u64>,
}

/// The longest bound of one request to a server.
fn request_timeout(timeout: Duration) -> Duration {
    timeout * 2 / 5
}

pub(super) struct Scripts {
    pub(super) exchange: Script,
    pub(super) state: Script,
    pub(super) settle: Script,
    pub(super) inspect: Script,
}

impl Scripts {
    fn new(calls: ScriptCalls) -> Self {
        let script = |(name, source)| Script::new(calls, name, source);
        let [exchange, state, settle, inspect] = sources().map(script);
        Self { exchange, state, settle, inspect }
    }
}

/// The names and sources of the scripts.
pub(crate) fn sources() -> [(&'static str, String); 4] {
    [
        ("quorum_exchange", include_str!("scripts/exchange.lua").to_owned()),
        ("quorum_state", include_str!("scripts/state.lua").to_owned()),
        ("quorum_settle", include_str!("scripts/settle.lua").to_owned()),
        ("quorum_inspect", include_str!("scripts/inspect.lua").to_owned()),
    ]
}

impl Shared {
    pub(super) fn new(
        quorum: Quorum,
        clients: &[redis::Client],
        tls: &TlsFiles,
        settings: QuorumSettings,
    ) -> Result<Self> {
        let common = &settings.common;
        let endpoint = |client: &redis::Client| {
            let mut endpoint = Endpoint::new(client, tls.clone(), common.timeout, common.connect_timeout)?;
            endpoint.request_timeout = request_timeout(common.timeout);
            Ok(endpoint)
        };
        let endpoints: Vec<_> = clients.iter().map(endpoint).collect::<Result<_>>()?;
        let addresses = endpoints.iter().map(|endpoint| endpoint.address.clone()).collect();
        Ok(Self {
            guess: Mutex::new(Guess::new(quorum)),
            clock: SystemClock::new(),
            settling: Mutex::new(Settling::new(quorum, addresses, settings.longest_ttl, common.on_restart)),
            unsettled: Notify::new(),
            left: Notify::new(),
            settled: watch::Sender::new(0),
            keys: Keys::new(&common.prefix, rand::random()),
            scripts: Scripts::new(common.scripts),
            core: Attachment::new(),
            quorum,
            endpoints,
            settings,
        })
    }

    pub(super) fn core(&self) -> Result<&CoreHandle> {
        self.core.core()
    }

    /// The error of a request that fewer than a majority of the servers confirmed.
    pub(super) fn unconfirmed(&self, what: &str) -> Error {
        let (majority, servers) = (self.quorum.majority(), self.quorum.servers());
        let text = format!("fewer than {majority} of {servers} servers confirmed {what}");
        Error::new(ErrorKind::Indeterminate, text)
    }

    /// Notes the clock of a server, from a reply that has just arrived.
    pub(super) fn observe(&self, server: usize, time: u64) {
        lock(&self.guess).observe(server, time, self.clock.now());
    }

    /// A token that is likely above those of a majority, and above this one.
    pub(super) fn guess(&self, fence: u64) -> u64 {
        lock(&self.guess).token(self.clock.now(), fence)
    }

    /// The upper bound of a call.
    pub(super) fn timeout(&self) -> Duration {
        self.settings.common.timeout
    }

    /// The upper bound of one request to each server, for a lease of this ttl. A call has up to three of them, one after
    /// the other, and a lease must have some of its time left after two. The last one, which withdraws, has the rest of
    /// the call.
    pub(super) fn bound(&self, ttl: Duration) -> Duration {
        request_timeout(self.timeout()).min(ttl / 3)
    }
}
