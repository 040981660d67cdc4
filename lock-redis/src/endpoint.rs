//! One server: its address, and how it is connected to.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::kit::{Connecting, Lookups, TlsFiles};
use leasehold_core::{Error, ErrorKind, Result};

use crate::errors::BACKEND;
use crate::sentinel::{Primary, Sentinels};
use crate::settings::{self, OnEviction};

pub(crate) struct Endpoint {
    /// With the files as first read. If Sentinels name the server, the address is not the server's.
    client: redis::Client,
    tls: TlsFiles,
    /// The Sentinels that name the server.
    sentinels: Option<Arc<Sentinels>>,
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
            sentinels: None,
            client: settings::prepare(client, timeout)?,
            address: settings::address(client),
            connecting: Connecting::new(timeout, connect_timeout),
            lookups: Lookups::default(),
            timeout,
            request_timeout: timeout,
        })
    }

    /// The server that these Sentinels name, at whatever address.
    pub(crate) fn behind(
        sentinels: Arc<Sentinels>,
        client: &redis::Client,
        tls: TlsFiles,
        timeout: Duration,
        connect_timeout: Duration,
    ) -> Result<Self> {
        let mut it = Self::new(client, tls, timeout, connect_timeout)?;
        it.address = sentinels.to_string();
        it.sentinels = Some(sentinels);
        Ok(it)
    }

    pub(crate) fn sentinels(&self) -> Option<&Arc<Sentinels>> {
        self.sentinels.as_ref()
    }

    pub(crate) fn is_tls(&self) -> bool {
        matches!(self.client.get_connection_info().addr(), redis::ConnectionAddr::TcpTls { .. })
    }

    #[cfg(test)]
    pub(crate) fn client(&self) -> &redis::Client {
        &self.client
    }

    /// Where the next connection leads to.
    ///
    /// # Errors
    /// The Sentinels name no server.
    pub(crate) async fn target(&self) -> Result<Target> {
        let Some(sentinels) = &self.sentinels else {
            let client = settings::reload(&self.client, &self.tls).await;
            return Ok(Target { client, address: self.address.clone(), primary: None });
        };
        let address = sentinels.primary().await?;
        let client = settings::reload(&settings::moved(&self.client, &address)?, &self.tls).await;
        let primary = Some(Primary::new(sentinels.clone(), address.clone()));
        Ok(Target { client, address: address.to_string(), primary })
    }
}

/// The server of one connection.
pub(crate) struct Target {
    pub(crate) client: redis::Client,
    /// For errors and logs.
    pub(crate) address: String,
    /// If Sentinels named it.
    pub(crate) primary: Option<Primary>,
}

/// Checks what every server needs to be used for locks.
///
/// # Errors
/// `Unsupported`, with what is missing.
pub(crate) fn check_requirements(
    address: &str,
    version: (u32, u32),
    eviction: &str,
    on_eviction: OnEviction,
) -> Result<()> {
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
