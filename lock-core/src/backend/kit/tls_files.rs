//! The files for TLS that a URL names.

use std::fmt;
use std::fs;

use super::StoreUrl;
use crate::error::{Error, Result};

/// The paths of the files for TLS that a URL names. It knows no library of TLS: a backend gives the [contents](Pem) to
/// its own.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    ca: Option<String>,
    identity: Option<(String, String)>,
}

/// What the files contain.
#[non_exhaustive]
pub struct Pem {
    /// The certificate authority. `None`: those of the system.
    pub ca: Option<Vec<u8>>,
    /// The client's own certificate, and its key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl TlsFiles {
    /// Takes `ca`, `cert` and `key` from a URL.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if there is only one of `cert` and `key`.
    pub fn take(url: &mut StoreUrl) -> Result<Self> {
        let [ca, cert, key] = ["ca", "cert", "key"].map(|name| url.take(name));
        if cert.is_some() != key.is_some() {
            return Err(Error::invalid("`cert` and `key` belong together: a client's certificate and its key"));
        }
        Ok(Self { ca, identity: cert.zip(key) })
    }

    /// Whether there is a file.
    pub const fn is_any(&self) -> bool {
        self.ca.is_some() || self.identity.is_some()
    }

    /// The path of the certificate authority.
    pub fn ca(&self) -> Option<&str> {
        self.ca.as_deref()
    }

    /// The paths of the client's own certificate and of its key.
    pub fn identity(&self) -> Option<(&str, &str)> {
        self.identity.as_ref().map(|(cert, key)| (&**cert, &**key))
    }

    /// Reads the files.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput), with the path and the parameter, if a file cannot be read.
    pub fn read(&self) -> Result<Pem> {
        let read = |name, path: &String| {
            let unreadable = || Error::invalid(format!("the file `{path}` of `{name}` cannot be read"));
            fs::read(path).map_err(|why| unreadable().with_source(why))
        };
        let ca = self.ca.as_ref().map(|path| read("ca", path)).transpose()?;
        let identity = match &self.identity {
            Some((cert, key)) => Some((read("cert", cert)?, read("key", key)?)),
            None => None,
        };
        Ok(Pem { ca, identity })
    }

    /// What `load` makes of the files now, because they may have been replaced. `None` if there are no files, or if
    /// they cannot be used, as in the middle of a replacement: the caller then uses what it loaded at the start.
    pub async fn reload<T: Send + 'static>(
        &self,
        backend: &'static str,
        load: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Option<T> {
        if !self.is_any() {
            return None;
        }
        let files = self.clone();
        match tokio::task::spawn_blocking(move || load(&files)).await {
            Ok(Ok(loaded)) => Some(loaded),
            Ok(Err(error)) => {
                tracing::warn!(backend, %error, "the TLS files as they were at the start are used");
                None
            }
            // The runtime shuts down.
            Err(_) => None,
        }
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pem").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(parameters: &str) -> Result<TlsFiles> {
        TlsFiles::take(&mut StoreUrl::parse(&format!("store://host?{parameters}"), "store", &["store://"])?)
    }

    #[test]
    fn a_certificate_and_its_key_belong_together() {
        for parameters in ["cert=a", "ca=a&key=a"] {
            assert!(take(parameters).unwrap_err().to_string().contains("belong together"), "{parameters}");
        }
        let files = take("ca=a&cert=b&key=c").unwrap();
        assert_eq!((files.ca(), files.identity(), files.is_any()), (Some("a"), Some(("b", "c")), true));
        assert!(take("cert=b&key=c").unwrap().is_any() && !take("x=1").unwrap().is_any());
    }

    #[tokio::test]
    async fn files_that_are_missing_are_named_and_the_caller_keeps_what_it_has() {
        let files = take("cert=/nowhere/c.pem&key=/nowhere/k.pem").unwrap();
        let error = files.read().unwrap_err();
        assert_eq!(error.to_string(), "the file `/nowhere/c.pem` of `cert` cannot be read");
        assert!(std::error::Error::source(&error).is_some());
        assert!(files.reload("store", TlsFiles::read).await.is_none());
        assert_eq!(files.reload("store", |_| Ok(7)).await, Some(7));
        assert_eq!(take("x=1").unwrap().reload("store", |_| Ok(7)).await, None);
    }
}
