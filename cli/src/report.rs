//! A lock as it is shown: the fields that scripts get, and the words that people get.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::backend::Waiting;
use leasehold::{HolderInfo, Inspection, LockClient};
use serde::Serialize;

/// A lock, for `--json`. Fields are added, never renamed or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LockReport {
    pub(crate) name: String,
    pub(crate) held: bool,
    /// The fencing token of the current lease.
    pub(crate) token: Option<u64>,
    /// The fencing token of the last grant, also when the lock is free.
    pub(crate) last_token: Option<u64>,
    /// How long the lease lasts unless it is renewed.
    pub(crate) ttl_left_ms: Option<u64>,
    /// Since when it is held, in seconds since the Unix epoch, where the store's tokens tell.
    pub(crate) since: Option<u64>,
    /// How many wait, where the store knows.
    pub(crate) waiters: Option<u64>,
    pub(crate) holder: Option<Holder>,
}

/// Who holds a lock, as far as the holder said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Holder {
    pub(crate) host: String,
    pub(crate) pid: u32,
    /// When it was started, in seconds since the Unix epoch, by its own clock.
    pub(crate) started: u64,
    pub(crate) label: String,
}

impl From<HolderInfo> for Holder {
    fn from(info: HolderInfo) -> Self {
        Self { host: info.host, pid: info.pid, started: info.started, label: info.label }
    }
}

impl LockReport {
    /// The report of an inspection, or of a lock that the store has no record of.
    pub(crate) fn new(client: &LockClient, name: impl Into<String>, seen: Option<Inspection>) -> Self {
        Self::of(name, seen, client.capabilities().waiting == Waiting::ServerQueue)
    }

    /// Only a store with a queue knows who waits.
    pub(crate) fn of(name: impl Into<String>, seen: Option<Inspection>, has_queue: bool) -> Self {
        let Inspection { last_token, lease, waiters, .. } = seen.unwrap_or_else(|| Inspection::new(None, None, 0));
        let token = lease.as_ref().map(|lease| lease.token.get());
        let ttl_left_ms = lease.as_ref().map(|lease| u64::try_from(lease.ttl_left.as_millis()).unwrap_or(u64::MAX));
        let held = lease.is_some();
        let holder: Option<Holder> = lease.and_then(|lease| lease.holder).map(Holder::from);
        let since = token.and_then(|token| granted_at(token, holder.as_ref()?.started));
        let last_token = last_token.map(|token| token.get());
        Self {
            name: name.into(),
            held,
            token,
            last_token,
            ttl_left_ms,
            since,
            waiters: has_queue.then_some(waiters),
            holder,
        }
    }

    /// One paragraph for people.
    pub(crate) fn in_words(&self) -> String {
        let mut text = format!("{}: ", shown(&self.name));
        let Some(token) = self.token else {
            text.push_str("free");
            match self.last_token {
                Some(last) => _ = write!(text, ", last token {last}"),
                None => text.push_str(", no record of it"),
            }
            self.add_waiters(&mut text);
            return text;
        };
        text.push_str("held by ");
        text.push_str(&self.who());
        if let Some(since) = self.since {
            _ = write!(text, " for {}", age(since));
        }
        _ = write!(text, ", token {token}, {} left", in_seconds(self.ttl_left_ms));
        self.add_waiters(&mut text);
        text
    }

    /// The holder in words.
    pub(crate) fn who(&self) -> String {
        let Some(Holder { host, pid, label, .. }) = &self.holder else { return "somebody".to_owned() };
        let label = if label.is_empty() { String::new() } else { format!(", {}", shown(label)) };
        format!("{} (process {pid}{label})", shown(host))
    }

    fn add_waiters(&self, text: &mut String) {
        match self.waiters {
            None | Some(0) => {}
            Some(1) => text.push_str(", 1 waits"),
            Some(more) => _ = write!(text, ", {more} wait"),
        }
    }
}

/// Text of others, as a terminal may see it.
pub(crate) fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// A number of milliseconds as seconds with one decimal.
pub(crate) fn in_seconds(ms: Option<u64>) -> String {
    let ms = ms.unwrap_or_default();
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

/// A moment in seconds since the Unix epoch, as people write it.
pub(crate) fn moment(seconds: u64) -> String {
    // What no clock shows is not worth a panic.
    let at = UNIX_EPOCH.checked_add(Duration::from_secs(seconds.min(LAST_MOMENT))).unwrap_or(UNIX_EPOCH);
    humantime::format_rfc3339_seconds(at).to_string()
}

/// The last second of the year 9999, which is the last that can be written.
const LAST_MOMENT: u64 = 253_402_300_799;

/// How long ago a moment is, roughly.
pub(crate) fn age(since: u64) -> String {
    rough(Duration::from_secs(now().saturating_sub(since)))
}

/// A duration with at most two units.
pub(crate) fn rough(duration: Duration) -> String {
    let text = humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// When a token was granted. Most stores make a token from their clock, in µs since the Unix epoch. Where it was not, it is
/// no moment between the holder's start and now, and nothing is told.
fn granted_at(token: u64, started: u64) -> Option<u64> {
    const SLACK: u64 = 5;
    let seconds = token / 1_000_000;
    (seconds + SLACK >= started && seconds <= now() + SLACK).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use leasehold::{FencingToken, LeaseView};

    use super::*;

    fn holder() -> HolderInfo {
        HolderInfo::of_this_process("nightly").unwrap()
    }

    fn report(token: u64, waiters: u64) -> LockReport {
        let lease = LeaseView::new(FencingToken::new(token), Duration::from_millis(12_345), Some(holder()));
        let seen = Inspection::new(Some(FencingToken::new(token)), Some(lease), waiters);
        LockReport::of("orders/42", Some(seen), true)
    }

    #[test]
    fn fields_for_scripts_never_change() {
        let mut report = report(7, 2);
        report.holder = Some(Holder { host: "web-1".into(), pid: 42, started: 1_700_000_000, label: String::new() });
        assert_eq!(
            serde_json::to_string(&report).unwrap(),
            r#"{"name":"orders/42","held":true,"token":7,"last_token":7,"ttl_left_ms":12345,"since":null,"waiters":2,"#
                .to_owned()
                + r#""holder":{"host":"web-1","pid":42,"started":1700000000,"label":""}}"#
        );
        assert_eq!(
            serde_json::to_string(&LockReport::of("x", None, false)).unwrap(),
            r#"{"name":"x","held":false,"token":null,"last_token":null,"ttl_left_ms":null,"since":null,"waiters":null,"#
                .to_owned() + r#""holder":null}"#
        );
    }

    #[test]
    fn people_read_who_and_for_how_long() {
        let granted = (now() - 65) * 1_000_000;
        let mut lock = report(granted, 1);
        lock.since = granted_at(granted, now() - 70);
        let text = lock.in_words();
        assert!(text.starts_with("orders/42: held by "), "{text}");
        assert!(text.contains("nightly) for 1m 5s") || text.contains("nightly) for 1m 6s"), "{text}");
        assert!(text.ends_with(&format!("token {granted}, 12.3 s left, 1 waits")), "{text}");
        assert_eq!(LockReport::of("x", None, true).in_words(), "x: free, no record of it");
    }

    #[test]
    fn a_token_that_is_no_moment_tells_no_moment() {
        assert_eq!(granted_at(7, now()), None);
        assert_eq!(granted_at((now() + 3600) * 1_000_000, now()), None);
        assert_eq!(granted_at(now() * 1_000_000, now()), Some(now()));
    }

    #[test]
    fn any_number_is_a_moment() {
        assert_eq!(moment(1_700_000_000), "2023-11-14T22:13:20Z");
        assert_eq!(moment(u64::MAX), "9999-12-31T23:59:59Z");
    }

    #[test]
    fn a_name_cannot_move_the_cursor() {
        assert_eq!(shown("a\x1b[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
    }
}
