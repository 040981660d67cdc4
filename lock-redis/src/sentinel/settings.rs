//! The URL that names the Sentinels and the primary.

use std::sync::Arc;

use leasehold_core::backend::kit::{Cluster, ClusterUrl, TlsFiles};
use leasehold_core::{Error, Result};

use super::sentinels::Sentinels;
use crate::endpoint::Endpoint;
use crate::replicas::MinReplicas;
use crate::settings::{Login, Settings, client_of_host, take_settings};

/// The schemes of Sentinels in this build, for error messages.
pub(crate) const SCHEMES: &[&str] =
    if cfg!(feature = "tls") { &["redis+sentinel://", "rediss+sentinel://"] } else { &["redis+sentinel://"] };

const EXAMPLE: &str = "redis+sentinel://one,two,three/mymaster";

/// The most Sentinels that make sense.
const MOST_SENTINELS: usize = 15;

/// The server behind the Sentinels of a URL, and the settings. No error contains any part of a password.
pub(crate) fn read(text: &str) -> Result<(Endpoint, Settings)> {
    let is_tls = text.starts_with("rediss");
    let mut url = ClusterUrl::parse(text, "Redis", SCHEMES)?;
    let parameters = url.parameters();
    let min_replicas = MinReplicas::take(parameters)?;
    let settings = Settings { min_replicas, ..take_settings(parameters)? };
    let login = match (parameters.take("sentinel_user"), parameters.take("sentinel_password")) {
        (None, None) => None,
        (user, Some(password)) => Some((user.unwrap_or_default(), password)),
        (Some(_), None) => return Err(Error::invalid("`sentinel_user` needs `sentinel_password`")),
    };
    let tls_of_sentinels = parameters.take_choice("sentinel_tls", &[("on", true), ("off", false)])?.unwrap_or(is_tls);
    if (is_tls || tls_of_sentinels) && !cfg!(feature = "tls") {
        return Err(Error::invalid(
            "TLS needs the feature `tls` of leasehold-redis, which is `redis-tls` of leasehold",
        ));
    }
    let tls = if is_tls || tls_of_sentinels { TlsFiles::take(parameters)? } else { TlsFiles::default() };
    let Cluster { hosts, user, path, .. } = url.finish(26379, EXAMPLE)?;
    if hosts.len() > MOST_SENTINELS {
        let text = format!("the Redis URL must name at most {MOST_SENTINELS} Sentinels (got {})", hosts.len());
        return Err(Error::invalid(text));
    }
    if let Some((at, host)) = hosts.iter().enumerate().find(|(at, host)| hosts[..*at].contains(host)) {
        return Err(Error::invalid(format!("Sentinel {} in the Redis URL, {}, is named twice", at + 1, host.0)));
    }
    let (name, database) = path.split_once('/').unwrap_or((&path, ""));
    if name.is_empty() {
        let text = format!("the path of the Redis URL must be the name of a primary, as in {EXAMPLE}");
        return Err(Error::invalid(text));
    }
    // A client without TLS takes no files.
    let files = |is_tls: bool| if is_tls { tls.clone() } else { TlsFiles::default() };
    let login = Login { is_tls: tls_of_sentinels, user: login.as_ref(), database: "" };
    let endpoint = |host: &(String, u16)| {
        let client = client_of_host(host, &login, &files(tls_of_sentinels))?;
        Endpoint::new(&client, files(tls_of_sentinels), settings.timeout, settings.connect_timeout)
    };
    let sentinels = hosts.iter().map(endpoint).collect::<Result<Vec<_>>>()?;
    // The address is that which the Sentinels name.
    let login = Login { is_tls, user: user.as_ref(), database };
    let client = client_of_host(&("primary".to_owned(), 6379), &login, &files(is_tls))?;
    let sentinels = Arc::new(Sentinels::new(name.to_owned(), sentinels, settings.timeout));
    let endpoint = Endpoint::behind(sentinels, &client, files(is_tls), settings.timeout, settings.connect_timeout)?;
    Ok((endpoint, settings))
}

#[cfg(test)]
mod tests {
    use leasehold_core::ErrorKind;

    use super::*;

    #[test]
    fn a_url_names_the_sentinels_the_primary_and_two_users() {
        let url = "redis+sentinel://u:p%40ss@one:7000,two,[::1]:7002/mymaster/3?sentinel_user=s&\
                   sentinel_password=q%40%2Bss&timeout=250ms&prefix=app%3A";
        let (endpoint, settings) = read(url).unwrap();
        let server = endpoint.client().get_connection_info().redis_settings();
        assert_eq!((server.db(), server.username(), server.password()), (3, Some("u"), Some("p@ss")));
        assert_eq!(settings.prefix, "app:");
        let sentinels = endpoint.sentinels().unwrap();
        assert_eq!(sentinels.state.name, "mymaster");
        let addresses: Vec<_> = sentinels.members.iter().map(|it| it.endpoint.address.as_str()).collect();
        assert_eq!(addresses[..2], ["one:7000", "two:26379"]);
        assert!(addresses[2].contains("::1") && addresses[2].ends_with(":7002"), "{addresses:?}");
        for sentinel in &sentinels.members {
            let info = sentinel.endpoint.client().get_connection_info().redis_settings();
            assert_eq!((info.db(), info.username(), info.password()), (0, Some("s"), Some("q@+ss")));
        }
        assert_eq!(endpoint.address, format!("mymaster (of the Sentinels {})", addresses.join(", ")));
    }

    #[test]
    fn sentinels_have_no_user_unless_it_is_named() {
        let (endpoint, _) = read("redis+sentinel://:secret@one/mymaster").unwrap();
        let sentinels = endpoint.sentinels().unwrap();
        let info = sentinels.members[0].endpoint.client().get_connection_info().redis_settings();
        assert_eq!((info.username(), info.password()), (None, None));
        let (endpoint, _) = read("redis+sentinel://one/mymaster?sentinel_password=secret").unwrap();
        let sentinels = endpoint.sentinels().unwrap();
        let info = sentinels.members[0].endpoint.client().get_connection_info().redis_settings();
        assert_eq!((info.username(), info.password()), (None, Some("secret")));
        assert_eq!(endpoint.client().get_connection_info().redis_settings().password(), None);
    }

    #[cfg(feature = "tls")]
    #[test]
    fn servers_and_sentinels_have_tls_each_on_its_own() {
        use redis::ConnectionAddr;
        let is_tls =
            |client: &redis::Client| matches!(client.get_connection_info().addr(), ConnectionAddr::TcpTls { .. });
        for (url, server, sentinel) in [
            ("redis+sentinel://one/m", false, false),
            ("rediss+sentinel://one/m", true, true),
            ("rediss+sentinel://one/m?sentinel_tls=off", true, false),
            ("redis+sentinel://one/m?sentinel_tls=on", false, true),
        ] {
            let (endpoint, _) = read(url).unwrap();
            let of_sentinel = is_tls(endpoint.sentinels().unwrap().members[0].endpoint.client());
            assert_eq!((is_tls(endpoint.client()), of_sentinel), (server, sentinel), "{url}");
        }
    }

    #[test]
    fn bad_urls_are_refused_with_a_hint_and_without_the_password() {
        for (url, hint) in [
            ("redis+sentinel://:hunter2@one,two", "must be the name of a primary"),
            ("redis+sentinel://:hunter2@one,one/m", "named twice"),
            ("redis+sentinel://:hunter2@one/m/notanumber", "cannot be used"),
            ("redis+sentinel://:hunter2@one/m/1/2", "cannot be used"),
            ("redis+sentinel://:hunter2@one/m?sentinel_user=s", "needs `sentinel_password`"),
            ("redis+sentinel://:hunter2@one/m?sentinel_pass=hunter2", "`sentinel_password`"),
            ("redis+sentinel://:hunter2@one/m?sentinel_tls=yes", "`on`, `off`"),
            ("redis+sentinel://:hunter2@one/m?ca=x.pem", "`ca`"),
            ("redis+sentinel://:hunter2@one,,three/m", "empty host"),
        ] {
            let error = read(url).err().unwrap_or_else(|| panic!("{url} is accepted"));
            let text = format!("{error} {error:?}");
            assert!(error.kind() == ErrorKind::InvalidInput && text.contains(hint), "{url}: {text}");
            assert!(!text.contains("hunter2"), "{url}: {text}");
        }
    }
}
