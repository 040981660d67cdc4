//! Settings, and how a URL carries them.

use std::time::Duration;

use leasehold_core::backend::kit::{Cluster, ClusterUrl, CommonSettings, Connecting, TlsFiles};
use leasehold_core::{Error, Result};

use crate::members::Member;

/// The schemes of URLs.
pub const SCHEMES: &[&str] = &["etcd://", "etcds://"];

/// The port of clients.
const PORT: u16 = 2379;

const DEFAULT_PREFIX: &str = "leasehold";

/// The longest prefix, in bytes.
const LONGEST_PREFIX: usize = 256;

/// Settings of the backend.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The longest that one call takes, connecting included. Default 1 s, 10 ms to 60 s. URL: `timeout=`.
    pub timeout: Duration,
    /// The longest that an attempt to connect takes: it goes on when the call that began it has ended. Default 10 s,
    /// 10 ms to 5 minutes. URL: `connect_timeout=`.
    pub connect_timeout: Duration,
    /// What every key begins with, before a `/`. Default `leasehold`. It is the path of a URL.
    pub prefix: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            timeout: CommonSettings::default().timeout,
            connect_timeout: Connecting::CONNECT_TIMEOUT,
            prefix: DEFAULT_PREFIX.to_owned(),
        }
    }
}

/// The members of a cluster, and how to connect to them.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) members: Vec<Member>,
    /// User and password.
    pub(crate) user: Option<(String, String)>,
}

/// Parses a URL. No error contains any part of a password.
pub(crate) fn parse_url(text: &str) -> Result<(Target, Settings)> {
    let mut url = ClusterUrl::parse(text, "etcd", SCHEMES)?;
    let parameters = url.parameters();
    let timeout = parameters.take_duration("timeout")?.unwrap_or(CommonSettings::default().timeout);
    let connect_timeout = Connecting::take_timeout(parameters)?;
    let files = TlsFiles::take(parameters)?;
    let Cluster { scheme, hosts, user, path: prefix, .. } = url.finish(PORT, "etcd://host:2379/prefix")?;
    CommonSettings { timeout, ..CommonSettings::default() }.check()?;
    Connecting::check_timeout(connect_timeout)?;

    let tls = (scheme == "etcds" || files.is_any()).then_some(files);
    let members = hosts.iter().map(|(host, port)| Member::new(host, *port, tls.as_ref())).collect::<Result<_>>()?;
    let prefix = if prefix.is_empty() { DEFAULT_PREFIX.to_owned() } else { prefix };
    if prefix.len() > LONGEST_PREFIX {
        return Err(Error::invalid(format!("the prefix in the etcd URL must have at most {LONGEST_PREFIX} bytes")));
    }
    Ok((Target { members, user }, Settings { timeout, connect_timeout, prefix }))
}

#[cfg(test)]
mod tests {
    use leasehold_core::ErrorKind;

    use super::*;

    fn addresses(url: &str) -> Vec<String> {
        parse_url(url).unwrap().0.members.iter().map(|member| member.address.clone()).collect()
    }

    #[test]
    fn a_url_carries_every_setting() {
        let (target, settings) =
            parse_url("etcd://u:p%40,ss@one:1,two:2,[::1]/team%20a/locks?timeout=250ms&connect_timeout=5s").unwrap();
        let addresses: Vec<_> = target.members.iter().map(|member| &*member.address).collect();
        assert_eq!(addresses, ["one:1", "two:2", "[::1]:2379"]);
        assert_eq!(target.user, Some(("u".to_owned(), "p@,ss".to_owned())));
        let expected = Settings {
            timeout: Duration::from_millis(250),
            connect_timeout: Duration::from_secs(5),
            prefix: "team a/locks".to_owned(),
        };
        assert_eq!(settings, expected);
        assert_eq!(parse_url("etcd://localhost").unwrap().1, Settings::default());
        assert_eq!(addresses_of_default(), ["localhost:2379"]);
    }

    fn addresses_of_default() -> Vec<String> {
        addresses("etcd://localhost/")
    }

    #[test]
    fn bad_urls_are_refused_with_a_hint_and_without_the_password() {
        let long = format!("etcd://u:hunter2@localhost/{}", "x".repeat(LONGEST_PREFIX + 1));
        for (url, hint) in [
            ("http://localhost", "etcd://"),
            ("etcd://", "must name a host"),
            ("etcd://u:hunter2@one,,two", "empty host"),
            ("etcd://u:hunter2@one,two:x", "host:port"),
            ("etcd://u:hunter2@localhost?tiemout=1s", "in the etcd URL: use one of `timeout`"),
            ("etcd://u:hunter2@localhost?timeout=2m", "60s"),
            ("etcd://u:hunter2@localhost/%ff", "UTF-8"),
            (&*long, "256 bytes"),
        ] {
            let error = parse_url(url).map(|_| ()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}");
            let text = format!("{error} {error:?}");
            assert!(text.contains(hint), "{url}: {text}");
            assert!(!text.contains("hunter2"), "{url}: {text}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_names_the_feature_that_it_needs() {
        for url in ["etcds://localhost", "etcd://localhost?ca=ca.pem"] {
            let error = parse_url(url).map(|_| ()).unwrap_err();
            assert!(error.to_string().contains("feature `tls`"), "{error}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn files_of_tls_are_read_at_once() {
        parse_url("etcds://localhost").unwrap();
        for (url, hint) in [
            ("etcd://localhost?ca=/nowhere/ca.pem", "/nowhere/ca.pem"),
            ("etcds://localhost?cert=/nowhere/cert.pem", "belong together"),
        ] {
            let error = parse_url(url).map(|_| ()).unwrap_err();
            assert!(error.to_string().contains(hint), "{error}");
        }
    }
}
