//! How a lock is shown: JSON fields for scripts, text for people.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::backend::Waiting;
use leasehold::{LeaseInfo, LockClient, LockInfo};
use serde::Serialize;

/// A lock, for `--json`. Fields are added, never renamed or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LockReport {
    pub(crate) name: String,
    pub(crate) held: bool,
    /// The fencing token of the last grant, even if the lock is free.
    pub(crate) last_token: Option<u64>,
    /// The number of waiters, if the store knows it.
    pub(crate) waiters: Option<u64>,
    /// The leases. An exclusive lock has at most one.
    pub(crate) holders: Vec<LeaseReport>,
}

/// A lease and what its holder has recorded about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LeaseReport {
    /// Its fencing token.
    pub(crate) token: u64,
    /// The rest of its ttl, unless it is renewed, or an upper bound of that.
    pub(crate) ttl_left_ms: u64,
    /// Whether the store knows when the lease ends.
    pub(crate) ttl_left_exact: bool,
    /// When it was granted, in seconds since the Unix epoch, if the store's tokens contain the time.
    pub(crate) since: Option<u64>,
    pub(crate) host: Option<String>,
    pub(crate) pid: Option<u32>,
    /// When the holder was started, in seconds since the Unix epoch, by its own clock.
    pub(crate) started: Option<u64>,
    pub(crate) label: Option<String>,
}

impl From<LeaseInfo> for LeaseReport {
    fn from(lease: LeaseInfo) -> Self {
        let token = lease.token.get();
        let ttl_left_ms = u64::try_from(lease.ttl_left.as_millis()).unwrap_or(u64::MAX);
        let ttl_left_exact = lease.ttl_left_exact;
        let (since, host, pid, started, label) = (None, None, None, None, None);
        let nobody = Self { token, ttl_left_ms, ttl_left_exact, since, host, pid, started, label };
        let Some(holder) = lease.holder else { return nobody };
        Self {
            since: granted_at(token, holder.started),
            host: Some(holder.host),
            pid: Some(holder.pid),
            started: Some(holder.started),
            label: Some(holder.label),
            ..nobody
        }
    }
}

impl LeaseReport {
    /// The rest of its ttl as text.
    pub(crate) fn ttl_left(&self) -> String {
        let left = format_seconds(self.ttl_left_ms);
        if self.ttl_left_exact { left } else { format!("at most {left}") }
    }

    /// The holder as text.
    pub(crate) fn who(&self) -> String {
        let (Some(host), Some(pid)) = (&self.host, self.pid) else { return "an unknown holder".to_owned() };
        let label = self.label.as_ref().filter(|label| !label.is_empty());
        let label = label.map_or_else(String::new, |label| format!(", {}", printable(label)));
        format!("{} (process {pid}{label})", printable(host))
    }
}

impl LockReport {
    /// The report of a lock, or of one that the store has no record of.
    pub(crate) fn new(client: &LockClient, name: impl Into<String>, seen: Option<LockInfo>) -> Self {
        let has_queue = client.capabilities().waiting == Waiting::ServerQueue;
        Self::of(name, seen.unwrap_or_else(|| LockInfo::new(None, Vec::new(), has_queue.then_some(0))))
    }

    pub(crate) fn of(name: impl Into<String>, seen: LockInfo) -> Self {
        Self {
            name: name.into(),
            held: seen.is_held(),
            last_token: seen.last_token.map(|token| token.get()),
            waiters: seen.waiters,
            holders: seen.holders.into_iter().map(LeaseReport::from).collect(),
        }
    }

    /// The fencing token of the lease that was granted first.
    pub(crate) fn token(&self) -> Option<u64> {
        self.holders.first().map(|lease| lease.token)
    }

    /// One paragraph of text.
    pub(crate) fn to_text(&self) -> String {
        let mut text = format!("{}: ", printable(&self.name));
        if self.holders.is_empty() {
            text.push_str("free");
            match self.last_token {
                Some(last) => _ = write!(text, ", last token {last}"),
                None => text.push_str(", no record of it"),
            }
        }
        for (index, lease) in self.holders.iter().enumerate() {
            text.push_str(if index == 0 { "held by " } else { "; and by " });
            text.push_str(&lease.who());
            if let Some(since) = lease.since {
                _ = write!(text, " for {}", age(since));
            }
            _ = write!(text, ", token {}, {} left", lease.token, lease.ttl_left());
        }
        self.add_waiters(&mut text);
        text
    }

    /// The holders as text.
    pub(crate) fn who(&self) -> String {
        self.holders.iter().map(LeaseReport::who).collect::<Vec<_>>().join(" and ")
    }

    fn add_waiters(&self, text: &mut String) {
        match self.waiters {
            None | Some(0) => {}
            Some(1) => text.push_str(", 1 waiting"),
            Some(more) => _ = write!(text, ", {more} waiting"),
        }
    }
}

/// Foreign text, escaped for a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// A number of milliseconds as seconds with one decimal.
pub(crate) fn format_seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

/// A moment in seconds since the Unix epoch, as people write it.
pub(crate) fn format_time(seconds: u64) -> String {
    // A time that cannot be formatted must not cause a panic.
    let at = UNIX_EPOCH.checked_add(Duration::from_secs(seconds.min(MAX_TIME))).unwrap_or(UNIX_EPOCH);
    humantime::format_rfc3339_seconds(at).to_string()
}

/// The last second of the year 9999, which is the last that can be written.
const MAX_TIME: u64 = 253_402_300_799;

/// The time since then, rounded.
pub(crate) fn age(since: u64) -> String {
    format_duration_roughly(Duration::from_secs(now().saturating_sub(since)))
}

/// A duration with at most two units.
pub(crate) fn format_duration_roughly(duration: Duration) -> String {
    let text = humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// When a token was granted. Most stores derive a token from their clock, in µs since the Unix epoch. A token outside
/// the time between the holder's start and now was not derived from a clock: the result is then `None`.
fn granted_at(token: u64, started: u64) -> Option<u64> {
    const SLACK: u64 = 5;
    let seconds = token / 1_000_000;
    (seconds + SLACK >= started && seconds <= now() + SLACK).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use leasehold::{FencingToken, HolderInfo};

    use super::*;

    fn report(token: u64, waiters: u64) -> LockReport {
        let holder = HolderInfo::of_this_process("nightly").unwrap();
        let lease = LeaseInfo::new(FencingToken::new(token), Duration::from_millis(12_345), Some(holder));
        let seen = LockInfo::new(Some(FencingToken::new(token)), vec![lease], Some(waiters));
        LockReport::of("orders/42", seen)
    }

    #[test]
    fn json_fields_never_change() {
        let mut report = report(7, 2);
        let lease = &mut report.holders[0];
        (lease.host, lease.pid) = (Some("web-1".into()), Some(42));
        (lease.started, lease.label) = (Some(1_700_000_000), Some(String::new()));
        assert_eq!(
            serde_json::to_string(&report).unwrap(),
            r#"{"name":"orders/42","held":true,"last_token":7,"waiters":2,"holders":[{"token":7,"ttl_left_ms":12345,"#
                .to_owned()
                + r#""ttl_left_exact":true,"since":null,"host":"web-1","pid":42,"started":1700000000,"label":""}]}"#
        );
        let lease = LeaseInfo::of_unknown_age(FencingToken::new(8), Duration::from_millis(1), None);
        assert_eq!(
            serde_json::to_string(&LeaseReport::from(lease)).unwrap(),
            r#"{"token":8,"ttl_left_ms":1,"ttl_left_exact":false,"since":null,"host":null,"pid":null,"#.to_owned()
                + r#""started":null,"label":null}"#
        );
        assert_eq!(
            serde_json::to_string(&LockReport::of("x", LockInfo::new(None, Vec::new(), None))).unwrap(),
            r#"{"name":"x","held":false,"last_token":null,"waiters":null,"holders":[]}"#
        );
    }

    #[test]
    fn the_text_names_the_holder_and_its_age() {
        let granted = (now() - 65) * 1_000_000;
        let mut lock = report(granted, 1);
        lock.holders[0].since = granted_at(granted, now() - 70);
        let text = lock.to_text();
        assert!(text.starts_with("orders/42: held by "), "{text}");
        assert!(text.contains("nightly) for 1m 5s") || text.contains("nightly) for 1m 6s"), "{text}");
        assert!(text.ends_with(&format!("token {granted}, 12.3 s left, 1 waiting")), "{text}");
        assert_eq!(LockReport::of("x", LockInfo::new(None, Vec::new(), None)).to_text(), "x: free, no record of it");
    }

    #[test]
    fn an_upper_bound_is_shown_as_one() {
        let lease = LeaseInfo::of_unknown_age(FencingToken::new(7), Duration::from_secs(30), None);
        let text = LockReport::of("x", LockInfo::new(None, vec![lease], None)).to_text();
        assert!(text.ends_with("token 7, at most 30.0 s left"), "{text}");
    }

    #[test]
    fn a_token_without_a_time_gives_no_time() {
        assert_eq!(granted_at(7, now()), None);
        assert_eq!(granted_at((now() + 3600) * 1_000_000, now()), None);
        assert_eq!(granted_at(now() * 1_000_000, now()), Some(now()));
    }

    #[test]
    fn any_number_is_a_time() {
        assert_eq!(format_time(1_700_000_000), "2023-11-14T22:13:20Z");
        assert_eq!(format_time(u64::MAX), "9999-12-31T23:59:59Z");
    }

    #[test]
    fn a_name_cannot_move_the_cursor() {
        assert_eq!(printable("a\x1b[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
    }
}
