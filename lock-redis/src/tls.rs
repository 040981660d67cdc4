//! TLS for `rediss://` URLs, with the system's certificate authorities or a private one.

use leasehold_core::backend::kit::TlsFiles;
use leasehold_core::{Error, Result};
use redis::{Client, ClientTlsConfig, ConnectionInfo, TlsCertificates};

pub(crate) fn client(info: ConnectionInfo, files: &TlsFiles) -> Result<Client> {
    provide_crypto();
    if !files.is_any() {
        return super::settings::open(info);
    }
    let pem = files.read()?;
    let client_tls = pem.identity.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    Client::build_with_tls(info, TlsCertificates { client_tls, root_cert: pem.ca })
        .map_err(|why| Error::invalid("the file of `ca`, `cert` or `key` is not valid PEM").with_source(why))
}

/// Installs a crypto provider. Without it, the client crate panics at the first connection if the process has no
/// provider, or several to choose from. A provider that the program installed earlier stays.
fn provide_crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
