//! The settings of a quorum, and the URL that contains them.

use std::time::Duration;

use leasehold_core::backend::kit::quorum::Quorum;
use leasehold_core::backend::kit::{Cluster, ClusterUrl, TlsFiles, within};
use leasehold_core::{Error, Result};

use crate::settings::{Login, Settings, client_of_host, take_settings};

/// The schemes of a quorum in this build, for error messages.
pub(crate) const SCHEMES: &[&str] =
    if cfg!(feature = "tls") { &["redis+quorum://", "rediss+quorum://"] } else { &["redis+quorum://"] };

/// Bounds of [`QuorumSettings::longest_ttl`].
const LONGEST_TTL: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

/// The most servers that make sense, and that the stored format can number.
const MOST_SERVERS: usize = 15;

/// Settings of a [`QuorumBackend`](super::QuorumBackend).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QuorumSettings {
    /// Those that a quorum has in common with a single server. `timeout` bounds a whole call, which has up to three
    /// requests to each server, one after the other.
    pub common: Settings,
    /// The longest ttl of a lease. A server that was restarted gives no vote for this long, so that every lease that it
    /// may have forgotten ends before. All clients must name the same. Default 60 s, 1 s to 1 h.
    pub longest_ttl: Duration,
}

impl QuorumSettings {
    pub(super) fn new(common: Settings) -> Self {
        Self { common, longest_ttl: Duration::from_secs(60) }
    }
}

/// The servers and the settings of a URL. No error contains any part of a password.
pub(super) fn read(text: &str) -> Result<(Quorum, Vec<redis::Client>, TlsFiles, QuorumSettings)> {
    if !cfg!(feature = "tls") && text.starts_with("rediss+quorum://") {
        return Err(Error::invalid(
            "`rediss+quorum://` needs the feature `tls` of leasehold-redis, which is `redis-tls` of leasehold",
        ));
    }
    let mut url = ClusterUrl::parse(text, "Redis", SCHEMES)?;
    let mut settings = QuorumSettings::new(take_settings(url.parameters())?);
    if let Some(ttl) = url.parameters().take_duration("longest_ttl")? {
        within("longest_ttl", ttl, &LONGEST_TTL)?;
        settings.longest_ttl = ttl;
    }
    let is_tls = text.starts_with("rediss");
    let tls = if is_tls { TlsFiles::take(url.parameters())? } else { TlsFiles::default() };
    let Cluster { hosts, user, path, .. } = url.finish(6379, "redis+quorum://one,two,three")?;
    let quorum = Quorum::new(hosts.len()).filter(|_| hosts.len() <= MOST_SERVERS).ok_or_else(|| {
        let text = format!("a quorum must have between 3 and {MOST_SERVERS} servers (got {})", hosts.len());
        Error::invalid(text)
    })?;
    if let Some((at, host)) = hosts.iter().enumerate().find(|(at, host)| hosts[..*at].contains(host)) {
        return Err(Error::invalid(format!("server {} of the quorum, {}, is named twice", at + 1, host.0)));
    }
    let login = Login { is_tls, user: user.as_ref(), database: &path };
    let client = |host: &(String, u16)| client_of_host(host, &login, &tls);
    let clients = hosts.iter().map(client).collect::<Result<_>>()?;
    Ok((quorum, clients, tls, settings))
}

#[cfg(test)]
mod tests {
    use leasehold_core::ErrorKind;

    use super::*;

    #[test]
    fn a_url_names_every_server_and_setting() {
        let url = "redis+quorum://u:p%40ss@one:7000,two,[::1]:7002/3?longest_ttl=20s&timeout=250ms&prefix=app%3A";
        let (quorum, clients, _, settings) = read(url).unwrap();
        assert_eq!((quorum.servers(), quorum.majority()), (3, 2));
        let addresses: Vec<_> = clients.iter().map(crate::settings::address).collect();
        assert_eq!(addresses[..2], ["one:7000", "two:6379"]);
        assert!(addresses[2].contains("::1") && addresses[2].ends_with(":7002"), "{addresses:?}");
        for client in &clients {
            let server = client.get_connection_info().redis_settings();
            assert_eq!((server.db(), server.username(), server.password()), (3, Some("u"), Some("p@ss")));
        }
        assert_eq!(
            (settings.longest_ttl, settings.common.timeout),
            (Duration::from_secs(20), Duration::from_millis(250))
        );
        assert_eq!(settings.common.prefix, "app:");
    }

    #[test]
    fn bad_urls_are_refused_with_a_hint_and_without_the_password() {
        for (url, hint) in [
            ("redis+quorum://:hunter2@one,two", "between 3 and 15 servers (got 2)"),
            ("redis+quorum://:hunter2@one", "between 3 and 15 servers (got 1)"),
            ("redis+quorum://:hunter2@one,two,two", "named twice"),
            ("redis+quorum://:hunter2@one,two,three?longest_ttl=2h", "between 1s and 3600s"),
            ("redis+quorum://:hunter2@one,two,three?longest_ttl=5", "`250ms`"),
            ("redis+quorum://:hunter2@one,two,three?longest=5s", "`longest_ttl`"),
            ("redis+quorum://:hunter2@one,two,three/notanumber", "cannot be used"),
            ("redis+quorum://:hunter2@one,,three", "empty host"),
        ] {
            let error = read(url).unwrap_err();
            let text = format!("{error} {error:?}");
            assert!(error.kind() == ErrorKind::InvalidInput && text.contains(hint), "{url}: {text}");
            assert!(!text.contains("hunter2"), "{url}: {text}");
        }
    }
}
