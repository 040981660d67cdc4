//! The members of a cluster.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use leasehold_core::backend::kit::{Lookups, Progress, TlsFiles, TlsRefusal, connect_to_any, expects_tls, first_reply};
use leasehold_core::{Error, Result};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tonic::transport::{Channel, Endpoint, Uri};

use crate::errors::{self, BACKEND};

/// The server closes a connection with more frequent pings, or with pings while no request is in flight.
const PING_INTERVAL: Duration = Duration::from_secs(6);

/// After so long without a packet, one is sent. NATs and balancers forget a connection after a minute or more.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Packets without a reply, a third of [`KEEPALIVE`] apart, until the connection is broken.
const KEEPALIVE_RETRIES: u32 = 3;

/// What begins a connection of HTTP/2, with settings that change nothing.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// One member.
#[derive(Clone)]
pub(crate) struct Member {
    /// Host and port, for errors and logs.
    pub(crate) address: String,
    endpoint: Endpoint,
    files: TlsFiles,
    pub(crate) is_tls: bool,
    lookups: Arc<Lookups>,
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
        let endpoint = endpoint.http2_keep_alive_interval(PING_INTERVAL).keep_alive_while_idle(false);
        let (files, is_tls) = (tls.cloned().unwrap_or_default(), tls.is_some());
        Ok(Self { address, endpoint, files, is_tls, lookups: Arc::default() })
    }

    /// Why no connection to this member can be used, if its port expects TLS and the URL has none, or the reverse. A
    /// server closes such a connection without a word, like one that is being stopped, so this asks on another one.
    pub(crate) async fn wrong_tls(&self, until: Instant) -> Option<Error> {
        let ask = async {
            let addresses = self.lookups.of(&self.address, self.address.clone()).await.ok()?;
            if !self.is_tls {
                return expects_tls(addresses, TcpStream::connect).await.then(|| errors::expects_tls(&self.address));
            }
            let reply = first_reply(addresses, TcpStream::connect, HELLO).await;
            // A frame of HTTP/2 with settings.
            matches!(reply[..], [_, _, _, 4, ..]).then(|| errors::wrong_tls(&self.address, TlsRefusal::NoTls))
        };
        timeout_at(until, ask).await.ok().flatten()
    }

    /// Connects by `until`. A connection whose ping has no reply for `silence` counts as broken.
    pub(crate) async fn connect(
        &self,
        until: Instant,
        silence: Duration,
        progress: Progress,
    ) -> Result<Channel, tonic::transport::Error> {
        let endpoint = self.endpoint.clone();
        let reloaded = self.files.reload(BACKEND, |files| encrypted(endpoint, files)).await;
        let endpoint = reloaded.unwrap_or_else(|| self.endpoint.clone());
        // Later than the caller's deadline, whose error names the step that was slow.
        let bound = until.saturating_duration_since(Instant::now()) + Duration::from_secs(1);
        let endpoint = endpoint.connect_timeout(bound).keep_alive_timeout(silence);
        // tonic would try the addresses of a name one after the other, and wait for each that is silent.
        let (lookups, address) = (self.lookups.clone(), self.address.clone());
        let connector = tower::service_fn(move |_: Uri| {
            let (lookups, address, progress) = (lookups.clone(), address.clone(), progress.clone());
            async move {
                let addresses = lookups.of(&address, address.clone()).await?;
                progress.begins("the TCP connection");
                let stream = connect_to_any(addresses, open).await?;
                progress.begins("TLS");
                Ok::<_, io::Error>(TokioIo::new(stream))
            }
        });
        endpoint.connect_with_connector(connector).await
    }
}

async fn open(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    // While no request is in flight, these packets keep a NAT from forgetting the connection.
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3).with_retries(KEEPALIVE_RETRIES);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    Ok(stream)
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
