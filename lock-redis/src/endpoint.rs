//! One server: its address, and how it is connected to.

use std::time::Duration;

use leasehold_core::backend::kit::{Connecting, Lookups, TlsFiles};
use leasehold_core::{Error, ErrorKind, Result};

use crate::errors::BACKEND;
use crate::settings::{self, OnEviction};

pub(crate) struct Endpoint {
    /// With the files as first read.
    pub(crate) client: redis::Client,
    pub(crate) tls: TlsFiles,
    /// The address of the server, for errors and logs.
    pub(crate) address: String,
    pub(crate) connecting: Connecting,
    pub(crate) lookups: Lookups,
    /// The upper bound of one call.
    pub(crate) timeout: Duration,
    /// That of one request, of which a call may have several, one after the other.
    pub(crate) request_timeout: Duration,
}

impl Endpoint {
    pub(crate) fn new(
        client: &redis::Client,
        tls: TlsFiles,
        timeout: Duration,
        connect_timeout: Duration,
    ) -> Result<Self> {
        Ok(Self {
            tls,
            client: settings::prepare(client, timeout)?,
            address: settings::address(client),
            connecting: Connecting::new(timeout, connect_timeout),
            lookups: Lookups::default(),
            timeout,
            request_timeout: timeout,
        })
    }

    /// Checks what every server needs to be used for locks.
    ///
    /// # Errors
    /// `Unsupported`, with what is missing.
    pub(crate) fn check_requirements(
        &self,
        version: (u32, u32),
        eviction: &str,
        on_eviction: OnEviction,
    ) -> Result<()> {
        let address = &self.address;
        if version < (6, 2) {
            let (major, minor) = version;
            let text = format!("the server at {address} is Redis {major}.{minor}: 6.2 or later is needed");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        if eviction != "noeviction" {
            let text = format!(
                "the server at {address} may evict locks that are held: its `maxmemory-policy` is `{eviction}` and \
                 must be `noeviction` (`eviction=warn` in the URL allows it)"
            );
            match on_eviction {
                OnEviction::Refuse => return Err(Error::new(ErrorKind::Unsupported, text)),
                OnEviction::Warn => tracing::warn!(backend = BACKEND, "{text}"),
            }
        }
        Ok(())
    }
}
