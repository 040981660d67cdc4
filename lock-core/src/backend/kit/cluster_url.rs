//! The URL of a store of several servers.

use std::fmt;

use url::Url;

use super::StoreUrl;
use super::store_url::decoded;
use crate::error::{Error, Result};

/// A URL of several hosts, `scheme://user:password@host1:1,host2:2/path?…`.
#[derive(Debug)]
pub struct ClusterUrl {
    /// The URL with its first host alone, for the parameters.
    url: StoreUrl,
    others: Vec<String>,
    store: &'static str,
}

/// The parts of a [`ClusterUrl`] beside its parameters.
#[non_exhaustive]
pub struct Cluster {
    /// The scheme, without `://`.
    pub scheme: String,
    /// The hosts and their ports, in the order of the URL.
    pub hosts: Vec<(String, u16)>,
    /// User and password.
    pub user: Option<(String, String)>,
    /// The path, without slashes at its ends.
    pub path: String,
}

impl ClusterUrl {
    /// Reads a URL, as [`StoreUrl::parse`] does.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) as there, and for an empty host.
    pub fn parse(text: &str, store: &'static str, schemes: &[&str]) -> Result<Self> {
        let (first, others) = StoreUrl::split_hosts(text, store)?;
        Ok(Self { url: StoreUrl::parse(&first, store, schemes)?, others, store })
    }

    /// The URL, to take its parameters.
    pub const fn parameters(&mut self) -> &mut StoreUrl {
        &mut self.url
    }

    /// The parts of the URL, after the store has taken all parameters that it knows. A host without a port gets `port`.
    /// The error of a URL without a host shows the `example`.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) as for [`StoreUrl::finish`], if there is no host or a host
    /// cannot be read, and for a user, password or path that is not UTF-8.
    pub fn finish(self, port: u16, example: &str) -> Result<Cluster> {
        let (store, url) = (self.store, self.url.finish()?);
        let no_host = || Error::invalid(format!("the {store} URL must name a host, as in {example}"));
        let unreadable =
            || Error::invalid(format!("a host in the {store} URL cannot be read: write hosts as host:port,host:port"));
        let host = url.host_str().filter(|host| !host.is_empty());
        let mut hosts = vec![(host.ok_or_else(no_host)?.to_owned(), url.port().unwrap_or(port))];
        for other in self.others {
            let other = Url::parse(&format!("{}://{other}", url.scheme())).map_err(|_| unreadable())?;
            let host = other.host_str().filter(|host| !host.is_empty() && other.username().is_empty());
            hosts.push((host.ok_or_else(unreadable)?.to_owned(), other.port().unwrap_or(port)));
        }
        let user = match (url.username(), url.password()) {
            ("", None) => None,
            (user, password) => Some((decoded(user, store)?, decoded(password.unwrap_or_default(), store)?)),
        };
        let path = decoded(url.path().trim_matches('/'), store)?;
        Ok(Cluster { scheme: url.scheme().to_owned(), hosts, user, path })
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("hosts", &self.hosts).field("path", &self.path).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Cluster> {
        let mut url = ClusterUrl::parse(text, "store", &["store://", "stores://"])?;
        url.parameters().take("x");
        url.finish(7, "store://host:7/path")
    }

    #[test]
    fn every_part_is_read() {
        let cluster = read("stores://u:p%40,ss@one:1,two,[::1]/team%20a/locks/?x=1").unwrap();
        let hosts = [("one", 1), ("two", 7), ("[::1]", 7)].map(|(host, port)| (host.to_owned(), port));
        assert_eq!((&*cluster.scheme, &*cluster.hosts, &*cluster.path), ("stores", &hosts[..], "team a/locks"));
        assert_eq!(cluster.user, Some(("u".to_owned(), "p@,ss".to_owned())));
        assert!(!format!("{cluster:?}").contains("p@,ss"));
        let cluster = read("store://one").unwrap();
        assert_eq!((cluster.user, &*cluster.path), (None, ""));
    }

    #[test]
    fn what_cannot_be_read_is_refused_without_the_password() {
        for (text, hint) in [
            ("store://", "the store URL must name a host, as in store://host:7/path"),
            ("store://u:hunter2@one,,two", "empty host"),
            ("store://u:hunter2@one,two:x", "a host in the store URL cannot be read"),
            ("store://u:hunter2@one?y=1", "unknown parameter `y`"),
            ("store://u:hunter2@one/%ff", "the store URL has a part that is not UTF-8"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(hint) && !error.contains("hunter2"), "{text}: {error}");
        }
    }
}
