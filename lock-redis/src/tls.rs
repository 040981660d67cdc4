//! TLS for `rediss://` URLs, with the system's certificate authorities or a private one.

use std::fs;

use leasehold_core::{Error, Result};
use redis::{Client, ClientTlsConfig, ConnectionInfo, TlsCertificates};

/// The files that a URL names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files {
    ca: Option<String>,
    cert: Option<String>,
    key: Option<String>,
}

impl Files {
    pub(crate) fn set(&mut self, key: &str, path: String) {
        match key {
            "ca" => self.ca = Some(path),
            "cert" => self.cert = Some(path),
            _ => self.key = Some(path),
        }
    }

    fn is_empty(&self) -> bool {
        self.ca.is_none() && self.cert.is_none() && self.key.is_none()
    }

    /// The same client with the present contents of the files, which may have been replaced. If they cannot be used, as
    /// in the middle of a replacement, this uses the contents from the start.
    pub(crate) async fn reload(&self, client: &Client) -> Client {
        if self.is_empty() {
            return client.clone();
        }
        let (files, info) = (self.clone(), client.get_connection_info().clone());
        match tokio::task::spawn_blocking(move || files.client(info)).await {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => {
                tracing::warn!(
                    backend = crate::errors::BACKEND,
                    %error,
                    "the TLS files as they were at the start are used"
                );
                client.clone()
            }
            Err(_) => client.clone(),
        }
    }

    pub(crate) fn client(&self, info: ConnectionInfo) -> Result<Client> {
        provide_crypto();
        if self.is_empty() {
            return super::settings::open(info);
        }
        let client_tls = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                Some(ClientTlsConfig { client_cert: read("cert", cert)?, client_key: read("key", key)? })
            }
            (None, None) => None,
            _ => {
                return Err(Error::invalid(
                    "`cert` and `key` are only valid together: a client's certificate and its key",
                ));
            }
        };
        let root_cert = self.ca.as_ref().map(|path| read("ca", path)).transpose()?;
        Client::build_with_tls(info, TlsCertificates { client_tls, root_cert })
            .map_err(|why| Error::invalid("the file of `ca`, `cert` or `key` is not valid PEM").with_source(why))
    }
}

fn read(name: &str, path: &str) -> Result<Vec<u8>> {
    fs::read(path)
        .map_err(|why| Error::invalid(format!("the file `{path}` of `{name}` cannot be read")).with_source(why))
}

/// Installs a crypto provider. Without it, the client crate panics at the first connection if the process has no
/// provider, or several to choose from. A provider that the program installed earlier stays.
fn provide_crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
