//! One server: its address, and how it is connected to.

use std::time::Duration;

use leasehold_core::Result;
use leasehold_core::backend::kit::{Connecting, Lookups, TlsFiles};

use crate::settings;

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
        })
    }
}
