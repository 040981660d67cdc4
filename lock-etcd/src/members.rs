//! The members of a cluster.

use std::time::Duration;

use leasehold_core::backend::kit::TlsFiles;
use leasehold_core::{Error, Result};
use tokio::time::Instant;
use tonic::transport::Endpoint;

use crate::errors::BACKEND;

/// The server closes a connection with more frequent pings, or with pings while no request is in flight.
const PING_INTERVAL: Duration = Duration::from_secs(6);

/// After so long without a packet, one is sent. NATs and balancers forget a connection after a minute or more.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Packets without a reply, a third of [`KEEPALIVE`] apart, until the connection is broken.
const KEEPALIVE_RETRIES: u32 = 3;

/// One member.
#[derive(Clone)]
pub(crate) struct Member {
    /// Host and port, for errors and logs.
    pub(crate) address: String,
    endpoint: Endpoint,
    files: TlsFiles,
}

impl Member {
    pub(crate) fn new(host: &str, port: u16, tls: Option<&TlsFiles>) -> Result<Self> {
        let address = format!("{host}:{port}");
        let scheme = if tls.is_some() { "https" } else { "http" };
        let invalid = |error| Error::invalid("a host in the etcd URL cannot be used").with_source(error);
        let endpoint = Endpoint::from_shared(format!("{scheme}://{address}")).map_err(invalid)?;
        let endpoint = match tls {
            Some(files) => encrypted(endpoint, files)?,
            None => endpoint,
        };
        let endpoint = endpoint.tcp_nodelay(true).http2_keep_alive_interval(PING_INTERVAL).keep_alive_while_idle(false);
        // While no request is in flight, these packets keep a NAT from forgetting the connection.
        let endpoint = endpoint
            .tcp_keepalive(Some(KEEPALIVE))
            .tcp_keepalive_interval(Some(KEEPALIVE / 3))
            .tcp_keepalive_retries(Some(KEEPALIVE_RETRIES));
        Ok(Self { address, endpoint, files: tls.cloned().unwrap_or_default() })
    }

    /// How to connect by `until`. A connection whose ping has no reply for `silence` counts as broken.
    pub(crate) async fn endpoint(&self, until: Instant, silence: Duration) -> Endpoint {
        let endpoint = self.endpoint.clone();
        let reloaded = self.files.reload(BACKEND, |files| encrypted(endpoint, files)).await;
        let endpoint = reloaded.unwrap_or_else(|| self.endpoint.clone());
        let bound = until.saturating_duration_since(Instant::now());
        endpoint.connect_timeout(bound).keep_alive_timeout(silence)
    }
}

#[cfg(not(feature = "tls"))]
fn encrypted(_endpoint: Endpoint, _files: &TlsFiles) -> Result<Endpoint> {
    Err(Error::invalid("TLS needs the feature `tls` of leasehold-etcd, which is `etcd-tls` of leasehold"))
}

#[cfg(feature = "tls")]
fn encrypted(endpoint: Endpoint, files: &TlsFiles) -> Result<Endpoint> {
    use tonic::transport::{Certificate, ClientTlsConfig, Identity};
    let pem = files.read()?;
    let config = ClientTlsConfig::new();
    let mut config = match pem.ca {
        Some(ca) => config.ca_certificate(Certificate::from_pem(ca)),
        None => config.with_native_roots(),
    };
    if let Some((cert, key)) = pem.identity {
        config = config.identity(Identity::from_pem(cert, key));
    }
    let invalid = |error| Error::invalid("the files in the etcd URL are not valid PEM").with_source(error);
    endpoint.tls_config(config).map_err(invalid)
}
