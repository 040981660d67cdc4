//! The members of a cluster. A client stays with one, and moves to the next one when that does not serve it.

use std::sync::atomic::{AtomicUsize, Ordering};
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
        let invalid = |error| Error::invalid("a host in the URL of an etcd cannot be used").with_source(error);
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
    let invalid = |error| Error::invalid("the files in the URL of an etcd are not valid PEM").with_source(error);
    endpoint.tls_config(config).map_err(invalid)
}

/// The members, and the one that clients stay with.
pub(crate) struct Members {
    list: Vec<Member>,
    preferred: AtomicUsize,
}

impl Members {
    pub(crate) fn new(list: Vec<Member>) -> Self {
        Self { list, preferred: AtomicUsize::new(0) }
    }

    pub(crate) fn all(&self) -> &[Member] {
        &self.list
    }

    pub(crate) fn are_several(&self) -> bool {
        self.list.len() > 1
    }

    /// The members to try, beginning with the preferred one.
    pub(crate) fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, count) = (self.preferred.load(Ordering::Relaxed), self.list.len());
        (0..count).map(move |index| (first + index) % count)
    }

    /// The `nth` member of that order, which begins anew after the last one.
    pub(crate) fn nth(&self, nth: usize) -> usize {
        (self.preferred.load(Ordering::Relaxed) + nth) % self.list.len()
    }

    /// This member has served a client.
    pub(crate) fn prefer(&self, member: usize) {
        self.preferred.store(member, Ordering::Relaxed);
    }

    /// This member has not served a client: the next one is tried first from now on.
    pub(crate) fn avoid(&self, member: usize) {
        let next = (member + 1) % self.list.len();
        let _ = self.preferred.compare_exchange(member, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_stay_with_a_member_until_it_fails() {
        let members = Members::new([1, 2, 3].map(|port| Member::new("localhost", port, None).unwrap()).to_vec());
        let order = || members.order().collect::<Vec<_>>();
        assert_eq!((order(), order()), (vec![0, 1, 2], vec![0, 1, 2]));
        members.avoid(0);
        // Another task reports the same failure.
        members.avoid(0);
        assert_eq!(order(), [1, 2, 0]);
        members.prefer(2);
        members.avoid(2);
        assert_eq!(order(), [0, 1, 2]);
    }
}
