//! State that all connections of one client share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::Result;
use leasehold_core::backend::kit::Attachment;
use leasehold_core::backend::{Claim, CoreHandle};

use crate::cluster::{ClusterNode, Declared};
use crate::endpoint::Endpoint;
use crate::epochs::Epochs;
use crate::exchange::AcquireOptions;
use crate::keys::Keys;
use crate::replicas::Replicas;
use crate::scripts::Scripts;
use crate::server_clock::ServerClock;
use crate::settings::Settings;

pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) keys: Keys,
    pub(crate) scripts: Scripts,
    pub(crate) core: Attachment,
    /// The nodes of a cluster have them in common.
    pub(crate) epochs: Arc<Mutex<Epochs>>,
    /// How often a connection has seen that the server was, or may have been, replaced. Each connection reads the server
    /// again when it rises: a wait goes on through another connection than the one that saw it.
    pub(crate) replacements: AtomicU64,
    pub(crate) server_clock: ServerClock,
    /// With `min_replicas`.
    pub(crate) replicas: Option<Arc<Replicas>>,
    /// If the server belongs to a cluster.
    pub(crate) node: Option<ClusterNode>,
}

impl Shared {
    pub(crate) fn new(endpoint: Endpoint, settings: Settings) -> Self {
        let keys = Keys::new(&settings.prefix, rand::random());
        Self::of(endpoint, settings, keys, None)
    }

    /// The nodes of a cluster have the client's channel in common: a place may be granted by another node than the one
    /// that gave it, and each node forwards messages to all.
    pub(crate) fn of(endpoint: Endpoint, settings: Settings, keys: Keys, node: Option<ClusterNode>) -> Self {
        let endpoint = Arc::new(endpoint);
        let replicas = |enough| Arc::new(Replicas::new(endpoint.clone(), keys.replicas_channel(), enough));
        Self {
            replicas: settings.min_replicas.map(replicas),
            endpoint,
            keys,
            scripts: Scripts::new(settings.scripts),
            core: Attachment::new(),
            epochs: node.as_ref().map(|node| node.topology.epochs.clone()).unwrap_or_default(),
            replacements: AtomicU64::new(0),
            server_clock: ServerClock::default(),
            node,
            settings,
        }
    }

    /// Each connection reads the server again before its next call.
    pub(crate) fn note_replacement(&self) {
        self.replacements.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn core(&self) -> Result<&CoreHandle> {
        self.core.core()
    }

    /// The first argument of every script: see `prelude.lua`.
    pub(crate) fn common(&self, declared: Declared, grants: bool) -> Vec<u8> {
        self.packed(declared, grants, 0, None, "")
    }

    /// The first argument for acquires, with the options that they share.
    pub(crate) fn common_to_acquires(
        &self,
        declared: Declared,
        number: usize,
        options: AcquireOptions,
        any: &Claim,
    ) -> Vec<u8> {
        self.packed(declared, true, number, Some(options), &self.encoded_holder(any))
    }

    /// The holder information in the record of a claim's lock.
    pub(crate) fn encoded_holder(&self, claim: &Claim) -> String {
        // If the key has only a digest of the name, the record has to keep the name.
        let named = !self.keys.contains_name(claim.name());
        claim.holder().encode(named.then(|| claim.name()))
    }

    /// The first argument for renewals, with the ttl of most of them.
    pub(crate) fn common_to_renewals(&self, declared: Declared, grants: bool, ttl: Duration) -> Vec<u8> {
        self.packed(declared, grants, 0, Some(AcquireOptions { ttl, queue: false }), "")
    }

    fn packed(
        &self,
        declared: Declared,
        grants: bool,
        acquires: usize,
        options: Option<AcquireOptions>,
        holder: &str,
    ) -> Vec<u8> {
        // Only acquires need the channel, for the places that they may get.
        let channel = if acquires > 0 { self.keys.channel.as_bytes() } else { &[] };
        let options = options.unwrap_or(AcquireOptions { ttl: Duration::ZERO, queue: false });
        let mut packed = Vec::with_capacity(18 + channel.len() + holder.len());
        packed.extend(u64::try_from(self.settings.retention.as_micros()).unwrap_or(u64::MAX).to_be_bytes());
        packed.extend(u16::try_from(acquires).unwrap_or(u16::MAX).to_be_bytes());
        packed.extend(millis(options.ttl).to_be_bytes());
        packed.push(if grants { b'1' } else { b'0' });
        packed.push(if options.queue { b'q' } else { b'l' });
        packed.push(declared.code());
        packed.push(u8::try_from(channel.len()).unwrap_or(u8::MAX));
        packed.extend(channel);
        packed.extend(holder.as_bytes());
        packed
    }

    pub(crate) fn bound(&self) -> Duration {
        self.settings.timeout
    }
}

/// Whole milliseconds, rounded up. The longest ttl is a fiftieth of the maximum.
pub(crate) fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)
}
