//! The URL that names nodes of a cluster.

use std::sync::Arc;

use leasehold_core::backend::kit::{Cluster as Hosts, ClusterUrl, TlsFiles};
use leasehold_core::{Error, Result};

use super::nodes::Cluster;
use crate::replicas::MinReplicas;
use crate::sentinel::Address;
use crate::settings::{Login, client_of_host, take_settings};

/// The schemes of a cluster in this build, for error messages.
pub(crate) const SCHEMES: &[&str] =
    if cfg!(feature = "tls") { &["redis+cluster://", "rediss+cluster://"] } else { &["redis+cluster://"] };

const EXAMPLE: &str = "redis+cluster://one,two,three";

/// The cluster of a URL. No error contains any part of a password.
pub(crate) fn read(text: &str) -> Result<Arc<Cluster>> {
    if !cfg!(feature = "tls") && text.starts_with("rediss+cluster://") {
        return Err(Error::invalid(
            "`rediss+cluster://` needs the feature `tls` of leasehold-redis, which is `redis-tls` of leasehold",
        ));
    }
    let is_tls = text.starts_with("rediss");
    let mut url = ClusterUrl::parse(text, "Redis", SCHEMES)?;
    let parameters = url.parameters();
    if MinReplicas::take(parameters)?.is_some() {
        return Err(Error::invalid("`min_replicas` is not supported for a Redis Cluster"));
    }
    let settings = take_settings(parameters)?;
    let tls = if is_tls { TlsFiles::take(parameters)? } else { TlsFiles::default() };
    let Hosts { hosts, user, path, .. } = url.finish(6379, EXAMPLE)?;
    if !matches!(&*path, "" | "0") {
        return Err(Error::invalid("a Redis Cluster has only the database 0: leave out the path of the URL"));
    }
    let login = Login { is_tls, user: user.as_ref(), database: "" };
    let clients = hosts.iter().map(|host| client_of_host(host, &login, &tls)).collect::<Result<Vec<_>>>()?;
    let client = clients.into_iter().next().ok_or_else(|| Error::invalid("the Redis URL names no host"))?;
    let seeds = hosts.into_iter().map(|(host, port)| {
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Address { host, port }
    });
    Ok(Cluster::new(seeds.collect(), client, tls, settings))
}

#[cfg(test)]
mod tests {
    use leasehold_core::ErrorKind;

    use super::*;

    #[test]
    fn a_url_names_nodes_and_settings() {
        let url = "redis+cluster://u:p%40ss@one:7000,two,[::1]:7002/0?timeout=250ms&prefix=app%3A";
        let cluster = read(url).unwrap();
        let seeds: Vec<_> = cluster.topology.seeds.iter().map(Address::to_string).collect();
        assert_eq!(seeds, ["one:7000", "two:6379", "[::1]:7002"]);
        assert_eq!(cluster.settings.prefix, "app:");
        let server = cluster.server(&cluster.topology.seeds[2]).unwrap();
        let client = server.shared.endpoint.client();
        let info = client.get_connection_info();
        assert_eq!((info.redis_settings().username(), info.redis_settings().password()), (Some("u"), Some("p@ss")));
        assert_eq!(info.addr().to_string(), "::1:7002");
    }

    #[test]
    fn bad_urls_are_refused_with_a_hint_and_without_the_password() {
        for (url, hint) in [
            ("redis+cluster://:hunter2@one/3", "only the database 0"),
            ("redis+cluster://:hunter2@one?min_replicas=1", "`min_replicas`"),
            ("redis+cluster://:hunter2@one?longest_ttl=5s", "`longest_ttl`"),
            ("redis+cluster://:hunter2@one,,three", "empty host"),
            ("redis+cluster://:hunter2@", "host"),
        ] {
            let error = read(url).err().unwrap();
            let text = format!("{error} {error:?}");
            assert!(error.kind() == ErrorKind::InvalidInput && text.contains(hint), "{url}: {text}");
            assert!(!text.contains("hunter2"), "{url}: {text}");
        }
    }
}
