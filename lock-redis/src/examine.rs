//! What an operator wants to know of a Redis that keeps locks.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use leasehold_core::Result;
use leasehold_core::admin::{Finding, Verdict};
use leasehold_core::backend::Examine;
use redis::{Cmd, Value};
use tokio::time::Instant;

use crate::backend::RedisBackend;
use crate::connection::Connection;
use crate::errors::Failure;
use crate::replies::text;

/// Above this share of its memory in percent, a server is about to refuse to write.
const NEARLY_FULL: u64 = 90;

/// Clocks that differ by more are not kept by NTP.
const FAR_APART: Duration = Duration::from_secs(1);

#[async_trait]
impl Examine for RedisBackend {
    async fn examine(&self) -> Result<Vec<Finding>> {
        let (connection, until) = self.connection().await?;
        let info = query(&connection, &["INFO"], until).await?;
        let info = text(&info).ok_or(Failure::UnexpectedReply)?;
        let mut findings = of_info(&info);
        findings.push(clock(&connection, until).await?);
        findings.push(user(query(&connection, &["ACL", "WHOAMI"], until).await)?);
        Ok(findings)
    }
}

async fn query(connection: &Connection, words: &[&str], until: Instant) -> Result<Value, Failure> {
    let mut command = Cmd::new();
    for word in words {
        command.arg(*word);
    }
    connection.send(&command, until).await
}

/// What the server says of itself.
fn of_info(info: &str) -> Vec<Finding> {
    let fields: HashMap<&str, &str> = info.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
    let field = |name: &str| fields.get(name).copied().unwrap_or("unknown");
    let number = |name: &str| fields.get(name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let warning = |hint: &str| Verdict::Doubtful(hint.to_owned());
    let error = |hint: &str| Verdict::Wrong(hint.to_owned());

    let eviction = match field("maxmemory_policy") {
        "noeviction" => Verdict::Fine,
        _ => {
            error("it may evict a lock that is held: CONFIG SET maxmemory-policy noeviction, and the same in its file")
        }
    };
    let (used, most) = (number("used_memory"), number("maxmemory"));
    let (memory, room) = match used.saturating_mul(100).checked_div(most) {
        None => (format!("{} KiB, no limit", used >> 10), Verdict::Fine),
        Some(percent) if percent < NEARLY_FULL => (format!("{percent} % of {} KiB", most >> 10), Verdict::Fine),
        Some(percent) => (
            format!("{percent} % of {} KiB", most >> 10),
            warning("when it is full nobody gets a lock: raise maxmemory, or keep other data elsewhere"),
        ),
    };
    let (kept, persistence) = match number("aof_enabled") {
        0 => (
            "not all is kept over a restart",
            warning(
                "set `appendonly yes`: without it a restart is followed by a wait for the longest ttl in use, and clients that \
                 never saw the server before may not know that they have to",
            ),
        ),
        _ => ("append-only file", Verdict::Fine),
    };
    let replicas = number("connected_slaves");
    let (role, replication) = match (field("role"), replicas) {
        ("master", 0) => ("no replicas".to_owned(), Verdict::Fine),
        ("master", _) => (
            format!("{replicas} replicas"),
            warning(
                "a failover to one that lags forgets locks: there only fencing tokens decide, so let resources check them",
            ),
        ),
        (role, _) => (role.to_owned(), error("a replica cannot be written to: give the address of its master")),
    };
    let cluster = match number("cluster_enabled") {
        0 => None,
        _ => Some(Finding::new("cluster", "on", error("Cluster is not supported: use a server of its own for locks"))),
    };
    let version = format!("{}, up for {} s", field("redis_version"), number("uptime_in_seconds"));
    let mut findings = vec![
        Finding::new("server", version, Verdict::Fine),
        Finding::new("eviction", field("maxmemory_policy"), eviction),
        Finding::new("memory", memory, room),
        Finding::new("persistence", kept, persistence),
        Finding::new("replication", role, replication),
    ];
    findings.extend(cluster);
    findings
}

/// The server's clock against ours, by the middle of the request.
async fn clock(connection: &Connection, until: Instant) -> Result<Finding> {
    let wall = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let before = wall();
    let reply = query(connection, &["TIME"], until).await?;
    let after = wall();
    let server = seconds_and_micros(&reply).ok_or(Failure::UnexpectedReply)?;
    Ok(apart(server, before, after))
}

fn apart(server: Duration, before: Duration, after: Duration) -> Finding {
    let (ahead, behind) = (server.saturating_sub(after), before.saturating_sub(server));
    let found = match (ahead.is_zero(), behind.is_zero()) {
        (true, true) => format!("within {:.1?} of ours", after.saturating_sub(before)),
        (false, _) => format!("{ahead:.1?} ahead of ours"),
        (_, false) => format!("{behind:.1?} behind ours"),
    };
    let verdict = if ahead.max(behind) < FAR_APART {
        Verdict::Fine
    } else {
        Verdict::Doubtful(
            "leases end by the server's clock alone, so a difference does no harm; but a clock that is put right in one step \
             ends leases early or late: let NTP keep both"
                .to_owned(),
        )
    };
    Finding::new("clock", found, verdict)
}

fn seconds_and_micros(reply: &Value) -> Option<Duration> {
    let Value::Array(parts) = reply else { return None };
    let [seconds, micros] = &parts[..] else { return None };
    let number = |value| text(value)?.parse::<u64>().ok();
    Some(Duration::from_secs(number(seconds)?) + Duration::from_micros(number(micros)?))
}

/// Who we are to the server.
fn user(reply: Result<Value, Failure>) -> Result<Finding> {
    let (found, verdict) = match reply {
        Ok(reply) => match text(&reply).ok_or(Failure::UnexpectedReply)? {
            user if user == "default" => (
                user,
                Verdict::Doubtful(
                    "who reaches the server as `default` may lock and break everything: make a user with the least permissions \
                     (`leasehold acl redis`)"
                        .to_owned(),
                ),
            ),
            user => (user, Verdict::Fine),
        },
        // The least permissions do not include the question.
        Err(Failure::ErrorReply(_)) => ("one who may not ask who he is".to_owned(), Verdict::Fine),
        Err(failure) => return Err(failure.into()),
    };
    Ok(Finding::new("user", found, verdict))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIT: &str = "# Server\r\nredis_version:7.0.15\r\nuptime_in_seconds:7\r\nused_memory:2048\r\nmaxmemory:0\r\n\
        maxmemory_policy:noeviction\r\naof_enabled:1\r\nrole:master\r\nconnected_slaves:0\r\ncluster_enabled:0\r\n";

    fn verdict(findings: &[Finding], about: &str) -> &'static str {
        match findings.iter().find(|finding| finding.about == about).map(|finding| &finding.verdict) {
            Some(Verdict::Fine) => "fine",
            Some(Verdict::Doubtful(_)) => "doubtful",
            Some(Verdict::Wrong(_)) => "wrong",
            None => "nothing",
        }
    }

    #[test]
    fn each_setting_that_harms_locks_is_found() {
        assert!(of_info(FIT).iter().all(|finding| finding.verdict == Verdict::Fine), "{:?}", of_info(FIT));
        for (from, to, about, expected) in [
            ("noeviction", "allkeys-lru", "eviction", "wrong"),
            ("maxmemory_policy:noeviction\r\n", "", "eviction", "wrong"),
            ("maxmemory:0", "maxmemory:2100", "memory", "doubtful"),
            ("maxmemory:0", "maxmemory:4096", "memory", "fine"),
            ("aof_enabled:1", "aof_enabled:0", "persistence", "doubtful"),
            ("connected_slaves:0", "connected_slaves:2", "replication", "doubtful"),
            ("role:master", "role:slave", "replication", "wrong"),
            ("cluster_enabled:0", "cluster_enabled:1", "cluster", "wrong"),
        ] {
            assert_eq!(verdict(&of_info(&FIT.replace(from, to)), about), expected, "{from} to {to}");
        }
    }

    #[test]
    fn clocks_are_compared_by_what_is_certain() {
        let ms = Duration::from_millis;
        assert_eq!(verdict(&[apart(ms(5_000), ms(4_000), ms(6_000))], "clock"), "fine");
        assert_eq!(verdict(&[apart(ms(7_100), ms(4_000), ms(6_000))], "clock"), "doubtful");
        assert_eq!(verdict(&[apart(ms(1_000), ms(4_000), ms(6_000))], "clock"), "doubtful");
        let reply = Value::Array(vec![Value::BulkString(b"12".to_vec()), Value::BulkString(b"345000".to_vec())]);
        assert_eq!(seconds_and_micros(&reply), Some(ms(12_345)));
        assert_eq!(seconds_and_micros(&Value::Nil), None);
    }

    #[test]
    fn everybody_is_told_from_somebody() {
        let reply = |name: &str| Ok(Value::BulkString(name.as_bytes().to_vec()));
        assert_eq!(verdict(&[user(reply("default")).unwrap()], "user"), "doubtful");
        assert_eq!(verdict(&[user(reply("locks")).unwrap()], "user"), "fine");
        assert_eq!(verdict(&[user(Err(Failure::ErrorReply("NOPERM".into()))).unwrap()], "user"), "fine");
        assert!(user(Err(Failure::TimedOut)).is_err());
    }
}
