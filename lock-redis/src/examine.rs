//! Checks whether a Redis server is fit for locks.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_core::Result;
use leasehold_core::admin::{Check, CheckStatus};
use redis::Value;
use tokio::time::Instant;

use crate::connection::Connection;
use crate::errors::Failure;
use crate::info::Info;
use crate::protocol::Protocol;
use crate::replies::text;
use crate::servers::Servers;

/// From this memory use on, in percent, the server is about to refuse writes.
const NEARLY_FULL: u64 = 90;

/// Clocks that NTP synchronizes differ by less.
const FAR_APART: Duration = Duration::from_secs(1);

impl Servers {
    pub(crate) async fn checks(&self) -> Result<Vec<Check>> {
        let until = self.until();
        match self {
            Self::One(server) => {
                let mut checks = checks_of(&*server.manager()?.connection(until).await?, until).await?;
                if let Some(sentinels) = server.shared.endpoint.sentinels() {
                    checks.extend(sentinels.checks(until).await?);
                }
                Ok(checks)
            }
            Self::Cluster(cluster) => cluster.checks(until).await,
        }
    }
}

/// Checks the server of a connection.
pub(crate) async fn checks_of<P: Protocol>(connection: &Connection<P>, until: Instant) -> Result<Vec<Check>> {
    let mut checks = of_info(&Info::read(connection, &["INFO"], until).await?);
    checks.push(clock(connection, until).await?);
    checks.push(user(connection.query(&["ACL", "WHOAMI"], until).await)?);
    Ok(checks)
}

/// Adds what was found on one of several servers: one line for each subject, with the worst that it means.
pub(crate) fn merge(checks: &mut Vec<Check>, of_server: Vec<Check>, address: &str) {
    for check in of_server {
        let found = format!("{address}: {}", check.found);
        match checks.iter_mut().find(|known| known.about == check.about) {
            Some(known) => {
                known.found = format!("{}; {found}", known.found);
                if severity(&check.status) > severity(&known.status) {
                    known.status = check.status;
                }
            }
            None => checks.push(Check::new(check.about, found, check.status)),
        }
    }
}

const fn severity(status: &CheckStatus) -> u8 {
    match status {
        CheckStatus::Ok => 0,
        CheckStatus::Warning(_) => 1,
        _ => 2,
    }
}

/// Checks the fields of `INFO`.
fn of_info(info: &Info) -> Vec<Check> {
    let field = |name: &str| info.get(name).unwrap_or("unknown");
    let number = |name: &str| info.number(name);
    let warning = |hint: &str| CheckStatus::warning(hint);
    let error = |hint: &str| CheckStatus::error(hint);

    let eviction = match field("maxmemory_policy") {
        "noeviction" => CheckStatus::Ok,
        _ => error(
            "it may evict a held lock: CONFIG SET maxmemory-policy noeviction, and set it in the configuration file",
        ),
    };
    let (used, most) = (number("used_memory"), number("maxmemory"));
    let (memory, room) = match used.saturating_mul(100).checked_div(most) {
        None => (format!("{} KiB, no limit", used >> 10), CheckStatus::Ok),
        Some(percent) if percent < NEARLY_FULL => (format!("{percent} % of {} KiB", most >> 10), CheckStatus::Ok),
        Some(percent) => (
            format!("{percent} % of {} KiB", most >> 10),
            warning("a full server grants no lock: raise maxmemory, or keep other data elsewhere"),
        ),
    };
    let (kept, persistence) = match number("aof_enabled") {
        0 => (
            "a restart may lose data",
            warning(
                "set `appendonly yes`: otherwise clients wait for the longest ttl in use after a restart, and clients \
                 that never saw the server before may not know that they have to",
            ),
        ),
        _ => ("append-only file", CheckStatus::Ok),
    };
    let replicas = number("connected_slaves");
    let (role, replication) = match (field("role"), replicas) {
        // The server has this field only with `min-replicas-to-write`.
        ("master", _) if field("min_slaves_good_slaves") == "0" => (
            "too few replicas".to_owned(),
            error("the server refuses writes: it has fewer replicas than it requires (`min-replicas-to-write`)"),
        ),
        ("master", 0) => ("no replicas".to_owned(), CheckStatus::Ok),
        ("master", _) if field("min_slaves_good_slaves") == "unknown" => (
            format!("{replicas} replicas"),
            warning(
                "after a failover, the former primary confirms requests for many seconds: CONFIG SET \
                 min-replicas-to-write 1 and min-replicas-max-lag 1 make it about one",
            ),
        ),
        ("master", _) => (
            format!("{replicas} replicas"),
            warning(
                "a failover may lose the last grants: no lock is granted for the longest ttl in use then, and while \
                 the former primary still confirms requests, only fencing tokens decide",
            ),
        ),
        (role, _) => (role.to_owned(), error("a replica cannot be written to: use the address of its primary")),
    };
    let version = format!("{}, up for {} s", field("redis_version"), number("uptime_in_seconds"));
    vec![
        Check::new("server", version, CheckStatus::Ok),
        Check::new("eviction", field("maxmemory_policy"), eviction),
        Check::new("memory", memory, room),
        Check::new("persistence", kept, persistence),
        Check::new("replication", role, replication),
    ]
}

/// Compares the server's clock with the client's, between the sending of the request and its reply.
async fn clock<P: Protocol>(connection: &Connection<P>, until: Instant) -> Result<Check> {
    let wall = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let before = wall();
    let reply = connection.query(&["TIME"], until).await?;
    let after = wall();
    let server = seconds_and_micros(&reply).ok_or(Failure::UnexpectedReply)?;
    Ok(apart(server, before, after))
}

fn apart(server: Duration, before: Duration, after: Duration) -> Check {
    let (ahead, behind) = (server.saturating_sub(after), before.saturating_sub(server));
    let found = match (ahead.is_zero(), behind.is_zero()) {
        (true, true) => format!("within {:.1?} of the client", after.saturating_sub(before)),
        (false, _) => format!("{ahead:.1?} ahead of the client"),
        (_, false) => format!("{behind:.1?} behind the client"),
    };
    let status = if ahead.max(behind) < FAR_APART {
        CheckStatus::Ok
    } else {
        CheckStatus::warning(
            "leases end by the server's clock alone, so a difference is harmless; but a step that corrects the clock \
             ends leases early or late: keep both clocks with NTP",
        )
    };
    Check::new("clock", found, status)
}

fn seconds_and_micros(reply: &Value) -> Option<Duration> {
    let Value::Array(parts) = reply else { return None };
    let [seconds, micros] = &parts[..] else { return None };
    let number = |value| text(value)?.parse::<u64>().ok();
    Some(Duration::from_secs(number(seconds)?) + Duration::from_micros(number(micros)?))
}

/// Checks the user of the connection.
fn user(reply: Result<Value, Failure>) -> Result<Check> {
    let (found, status) = match reply {
        Ok(reply) => match text(&reply).ok_or(Failure::UnexpectedReply)? {
            user if user == "default" => (
                user,
                CheckStatus::warning(
                    "anyone who reaches the server as `default` may take and break every lock: create a user with the \
                     minimal permissions (`leasehold acl redis`)",
                ),
            ),
            user => (user, CheckStatus::Ok),
        },
        // The minimal permissions do not include this command.
        Err(Failure::ErrorReply(_)) => ("unknown, because the user may not run ACL WHOAMI".to_owned(), CheckStatus::Ok),
        Err(failure) => return Err(failure.into()),
    };
    Ok(Check::new("user", found, status))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIT: &str = "# Server\r\nredis_version:7.0.15\r\nuptime_in_seconds:7\r\nused_memory:2048\r\nmaxmemory:0\r\n\
        maxmemory_policy:noeviction\r\naof_enabled:1\r\nrole:master\r\nconnected_slaves:0\r\n";

    fn status(checks: &[Check], about: &str) -> &'static str {
        match checks.iter().find(|check| check.about == about).map(|check| &check.status) {
            Some(CheckStatus::Ok) => "ok",
            Some(CheckStatus::Warning(_)) => "warning",
            Some(CheckStatus::Error(_)) => "error",
            None => "nothing",
        }
    }

    #[test]
    fn each_setting_that_harms_locks_is_found() {
        let checks = of_info(&Info::of(FIT));
        assert!(checks.iter().all(|check| check.status == CheckStatus::Ok), "{checks:?}");
        for (from, to, about, expected) in [
            ("noeviction", "allkeys-lru", "eviction", "error"),
            ("maxmemory_policy:noeviction\r\n", "", "eviction", "error"),
            ("maxmemory:0", "maxmemory:2100", "memory", "warning"),
            ("maxmemory:0", "maxmemory:4096", "memory", "ok"),
            ("aof_enabled:1", "aof_enabled:0", "persistence", "warning"),
            ("connected_slaves:0", "connected_slaves:2", "replication", "warning"),
            ("role:master", "role:slave", "replication", "error"),
            ("role:master", "role:master\r\nmin_slaves_good_slaves:0", "replication", "error"),
        ] {
            assert_eq!(status(&of_info(&Info::of(&FIT.replace(from, to))), about), expected, "{from} to {to}");
        }
    }

    #[test]
    fn only_a_certain_difference_of_clocks_counts() {
        let ms = Duration::from_millis;
        assert_eq!(status(&[apart(ms(5_000), ms(4_000), ms(6_000))], "clock"), "ok");
        assert_eq!(status(&[apart(ms(7_100), ms(4_000), ms(6_000))], "clock"), "warning");
        assert_eq!(status(&[apart(ms(1_000), ms(4_000), ms(6_000))], "clock"), "warning");
        let reply = Value::Array(vec![Value::BulkString(b"12".to_vec()), Value::BulkString(b"345000".to_vec())]);
        assert_eq!(seconds_and_micros(&reply), Some(ms(12_345)));
        assert_eq!(seconds_and_micros(&Value::Nil), None);
    }

    #[test]
    fn the_default_user_is_a_warning() {
        let reply = |name: &str| Ok(Value::BulkString(name.as_bytes().to_vec()));
        assert_eq!(status(&[user(reply("default")).unwrap()], "user"), "warning");
        assert_eq!(status(&[user(reply("locks")).unwrap()], "user"), "ok");
        assert_eq!(status(&[user(Err(Failure::ErrorReply("NOPERM".into()))).unwrap()], "user"), "ok");
        assert!(user(Err(Failure::TimedOut)).is_err());
    }
}
