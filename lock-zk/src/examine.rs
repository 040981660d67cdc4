//! Checks whether the servers are fit for locks.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold_core::admin::{Check, CheckStatus};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use zookeeper_client::Permission;

use crate::backend::ZkBackend;
use crate::errors::Failure;
use crate::nodes::is_lock;

/// The ttls of two sessions that ask for the limits: the shortest that a lock can have, and more than any server gives.
const SHORT: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_millis(i32::MAX as u64);

/// The first version with container nodes.
const OLDEST: (u32, u32, u32) = (3, 5, 3);

/// What a server says of itself.
struct Status {
    version: String,
    mode: String,
}

impl ZkBackend {
    pub(crate) async fn checks(&self) -> Vec<Check> {
        let (shared, until) = (&self.inner.shared, self.inner.shared.until());
        let addresses = shared.target.servers.all();
        let mut checks = vec![Check::new("server", addresses.join(", "), CheckStatus::Ok)];
        // All at once, because each may be silent until the bound.
        let servers: Vec<_> = addresses.iter().map(|address| tokio::spawn(status_of(address.clone(), until))).collect();
        let (mut states, mut down) = (Vec::new(), Vec::new());
        for (address, task) in addresses.iter().zip(servers) {
            match task.await {
                Ok(Some(status)) => states.push(status),
                Ok(None) | Err(_) => down.push(address.as_str()),
            }
        }
        let until = shared.until();
        let limits = self.limits(until).await;
        if self.speaks_plainly() {
            checks.push(reachable(addresses.len(), &down));
            if !states.is_empty() {
                checks.push(mode(&states));
                checks.push(versions(&states));
            }
        }
        checks.push(match limits {
            Ok((shortest, longest)) => session_limits(shortest, longest, shared.settings.tick),
            Err(failure) => Check::failed("session limits", &failure.without_effect()),
        });
        checks.push(self.root(shared.until()).await);
        checks
    }
}

/// Asks a server for its state. `None` if it does not reply.
async fn status_of(address: String, until: Instant) -> Option<Status> {
    let ask = async {
        let mut stream = TcpStream::connect(&address).await.ok()?;
        stream.write_all(b"srvr").await.ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.ok()?;
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        let version = field("Zookeeper version: ")?;
        let version = version.split([',', '-']).next().unwrap_or_default().to_owned();
        Some(Status { version, mode: field("Mode: ")? })
    };
    timeout_at(until, ask).await.ok().flatten()
}

fn reachable(all: usize, down: &[&str]) -> Check {
    if down.is_empty() {
        return Check::new("servers", format!("{all} of {all} reply"), CheckStatus::Ok);
    }
    let found = format!("{} of {all} do not serve clients, or do not reply to `srvr`: {}", down.len(), down.join(", "));
    let hint = "start them, or allow the word by `4lw.commands.whitelist=srvr`: an ensemble grants no lock without a \
                majority";
    Check::new("servers", found, CheckStatus::warning(hint))
}

fn mode(states: &[Status]) -> Check {
    let modes: Vec<_> = states.iter().map(|state| state.mode.as_str()).collect();
    let found = modes.join(", ");
    if modes.iter().any(|mode| matches!(*mode, "standalone" | "leader")) || modes.contains(&"follower") {
        return Check::new("mode", found, CheckStatus::Ok);
    }
    let hint = "a majority of the servers must be running and able to reach each other";
    Check::new("mode", found, CheckStatus::error(hint))
}

fn versions(states: &[Status]) -> Check {
    let versions: BTreeSet<_> = states.iter().map(|state| state.version.as_str()).collect();
    let found = versions.iter().copied().collect::<Vec<_>>().join(", ");
    let status = match versions.iter().all(|version| is_new_enough(version)) {
        true => CheckStatus::Ok,
        false => CheckStatus::error("ZooKeeper 3.5.3 or later is needed, for container nodes"),
    };
    Check::new("server version", found, status)
}

fn is_new_enough(version: &str) -> bool {
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or_default());
    let mut next = || numbers.next().unwrap_or_default();
    (next(), next(), next()) >= OLDEST
}

/// A session lasts two ticks longer than its leases.
fn session_limits(shortest: Duration, longest: Duration, tick: Duration) -> Check {
    let more = tick * 2;
    let found = format!(
        "leases of at most {:?}: the servers end a session after {shortest:?} to {longest:?}, and its leases end two \
         of `tick` before",
        longest.saturating_sub(more)
    );
    let default = leasehold_core::defaults::DEFAULT_TTL;
    let status = match longest >= default + more {
        // Without another setting, the shortest session lasts two ticks of the server.
        true if shortest > SHORT.max(more) => CheckStatus::Warning(format!(
            "a tick of the servers seems to take {:?}: `tick` in the URL must not be less than their `tickTime`",
            shortest / 2
        )),
        true => CheckStatus::Ok,
        false => CheckStatus::Warning(format!(
            "a longer ttl, such as the default of {default:?}, is refused: raise `maxSessionTimeout`, or set a ttl"
        )),
    };
    Check::new("session limits", found, status)
}

impl ZkBackend {
    /// Whether servers can be asked without TLS.
    fn speaks_plainly(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.inner.shared.target.tls.is_none();
        #[cfg(not(feature = "tls"))]
        true
    }

    /// The shortest and the longest ttl that the server gives.
    async fn limits(&self, until: Instant) -> Result<(Duration, Duration), Failure> {
        let mut limits = [Duration::ZERO; 2];
        for (limit, ttl) in limits.iter_mut().zip([SHORT, LONG]) {
            let link = self.any_link(ttl, until).await?;
            *limit = link.ttl();
            tokio::spawn(std::sync::Arc::new(link).close());
        }
        Ok((limits[0], limits[1]))
    }

    /// The root, its permissions and its locks.
    async fn root(&self, until: Instant) -> Check {
        let root = self.inner.shared.nodes.root();
        let read = async {
            let link = self.inner.reader(until).await?;
            let names = link.call(|client| client.list_children(root), until).await?;
            let acl = link.call(|client| client.get_acl(root), until).await;
            Ok((names.iter().filter(|name| is_lock(name)).count(), acl.ok()))
        };
        // Without a user in the URL, the nodes that are created belong to everybody.
        let has_user = self.inner.shared.target.user.is_some();
        match read.await {
            Ok((count, acl)) => {
                let is_open = acl.is_some_and(|(acl, _)| {
                    let world =
                        |acl: &zookeeper_client::Acl| acl.scheme() == "world" && acl.permission() != Permission::READ;
                    acl.iter().any(world)
                });
                Check::new("root", format!("{root} with {count} locks"), status_if(is_open || !has_user))
            }
            Err(Failure::NoNode) => {
                Check::new("root", format!("{root} does not exist: the first lock creates it"), status_if(!has_user))
            }
            Err(failure) => Check::failed("root", &Failure::without_effect(failure)),
        }
    }
}

fn status_if(is_open: bool) -> CheckStatus {
    match is_open {
        true => CheckStatus::warning(
            "anyone who reaches the servers may take and break every lock: set the permissions that `leasehold acl zk` \
             prints, and write the user into the URL",
        ),
        false => CheckStatus::Ok,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_without_container_nodes_are_named() {
        for version in ["3.5.3", "3.5.10", "3.8.0", "3.9.3", "4.0.0"] {
            assert!(is_new_enough(version), "{version}");
        }
        for version in ["3.4.14", "3.5.2", "3.5", "", "x"] {
            assert!(!is_new_enough(version), "{version}");
        }
    }

    #[test]
    fn limits_below_the_default_ttl_are_named() {
        let seconds = Duration::from_secs;
        assert_eq!(session_limits(seconds(4), seconds(40), seconds(2)).status, CheckStatus::Ok);
        assert!(matches!(session_limits(seconds(4), seconds(33), seconds(2)).status, CheckStatus::Warning(_)));
    }

    #[test]
    fn a_tick_of_the_servers_that_is_longer_than_that_of_the_url_is_named() {
        let (seconds, tick) = (Duration::from_secs, Duration::from_millis(100));
        assert_eq!(session_limits(seconds(1), seconds(600), tick).status, CheckStatus::Ok);
        let CheckStatus::Warning(text) = session_limits(seconds(4), seconds(40), tick).status else {
            panic!("no warning")
        };
        assert!(text.contains("2s"), "{text}");
    }
}
