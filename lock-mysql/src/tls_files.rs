//! The files for TLS that a URL names.

use std::fs::File;

use leasehold_core::backend::kit::StoreUrl;
use leasehold_core::{Error, Result};

/// Their paths.
#[derive(Default)]
pub(crate) struct TlsFiles {
    /// The certificate authority.
    pub(crate) ca: Option<String>,
    /// The client's own certificate and key.
    pub(crate) identity: Option<(String, String)>,
}

impl TlsFiles {
    /// Takes `ca`, `cert` and `key`. `url_of` is "the URL of MySQL", for errors.
    ///
    /// # Errors
    /// `InvalidInput`: one of `cert` and `key` is missing, or a file cannot be read.
    pub(crate) fn take(url: &mut StoreUrl, url_of: &str) -> Result<Self> {
        let [ca, cert, key] = ["ca", "cert", "key"].map(|name| url.take(name));
        if cert.is_some() != key.is_some() {
            return Err(Error::invalid(format!("`cert` and `key` in {url_of} belong together")));
        }
        for file in [&ca, &cert, &key].into_iter().flatten() {
            if let Err(error) = File::open(file) {
                return Err(Error::invalid(format!("the file {file} in {url_of} cannot be read")).with_source(error));
            }
        }
        Ok(Self { ca, identity: cert.zip(key) })
    }
}
