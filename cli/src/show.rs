//! `status`, `ls` and `watch`.

use std::io::IsTerminal as _;

use leasehold::admin::{self, ListedName};
use serde::Serialize;

use crate::args::{Ls, Status, Watch};
use crate::exit::{Exit, Failure};
use crate::output::{LiveLine, Output, Reader, reader_gone};
use crate::report::{LockReport, age, format_time, printable};
use crate::store::Store;

/// `status NAME`.
pub(crate) async fn status(args: &Status, output: Output) -> Result<Exit, Failure> {
    let client = Store::from_args(&args.common, output)?.connect_lazily("")?;
    let report = LockReport::new(&client, &args.name, client.inspect(&args.name).await?);
    output.result(&report, || to_lines(&report))?;
    Ok(if args.exit_code && !report.held { Exit::No } else { Exit::Success })
}

/// `ls`.
pub(crate) async fn ls(args: &Ls, output: Output) -> Result<Exit, Failure> {
    let client = Store::from_args(&args.common, output)?.connect_lazily("")?;
    // Requests one more than the limit, to know whether there are more.
    let asked = (args.limit + 1).min(admin::Listing::MAX);
    let found = client.list(&args.prefix, asked).await?;
    let listed = found.locks.len();
    let mut locks: Vec<ListedReport> = found
        .locks
        .into_iter()
        .map(|lock| ListedReport {
            whole_name: matches!(lock.name, ListedName::Whole(_)),
            lock: LockReport::new(&client, lock.name.to_string(), Some(lock.state)),
        })
        .filter(|listed| args.all || listed.lock.held)
        .collect();
    // Held locks come first: if only free ones were omitted, every held lock is listed.
    let whole = locks.len() <= args.limit && (listed < asked || locks.len() < listed);
    locks.truncate(args.limit);
    locks.sort_by(|a, b| a.lock.name.cmp(&b.lock.name));
    let mut unreadable: Vec<_> = found.unreadable.iter().map(ListedName::to_string).collect();
    unreadable.sort();
    let listing = Listing { locks, whole, unreadable };
    output.result(&listing, || listing.to_text())?;
    Ok(Exit::Success)
}

/// `watch NAME`: overwrites one line on a terminal, and otherwise prints a line for each change. Ends at a signal, or
/// when the reader of its output ends.
pub(crate) async fn watch(args: &Watch, output: Output) -> Result<Exit, Failure> {
    let client = Store::from_args(&args.common, output)?.connect_lazily("")?;
    let live = !output.json() && std::io::stdout().is_terminal() && output.is_interactive();
    let mut line = LiveLine::default();
    let mut last = None;
    let mut gone = std::pin::pin!(reader_gone());
    loop {
        let seen = match client.inspect(&args.name).await {
            Ok(seen) => Ok(LockReport::new(&client, &args.name, seen)),
            Err(error) if error.kind() == leasehold::ErrorKind::InvalidInput => return Err(error.into()),
            Err(error) => Err(error),
        };
        // Without the time that is left, which differs at each read.
        let significant = match &seen {
            Ok(report) => Ok((report.token(), report.last_token, report.waiters)),
            Err(error) => Err(error.kind()),
        };
        let changed = last.replace(significant) != Some(significant);
        match &seen {
            Ok(report) if live => {
                if changed {
                    line.clear();
                    output.result(report, || format!("{} {}", clock(), report.to_text()))?;
                }
                line.show(&live_line(report));
            }
            Ok(report) if changed => {
                let reader = output.result(report, || format!("{} {}", clock(), report.to_text()))?;
                if reader == Reader::Gone {
                    return Ok(Exit::Success);
                }
            }
            Err(error) if changed => {
                line.clear();
                output.warn(Exit::from(error.kind()).kind(), &crate::exit::with_causes(error));
            }
            _ => {}
        }
        tokio::select! {
            () = tokio::time::sleep(args.every) => {}
            () = &mut gone => return Ok(Exit::Success),
        }
    }
}

/// What `ls --json` prints. Fields are added, never renamed or removed.
#[derive(Serialize)]
struct Listing {
    locks: Vec<ListedReport>,
    /// Whether nothing was omitted.
    whole: bool,
    /// Names of records that this version cannot read. Each may be a held lock.
    unreadable: Vec<String>,
}

#[derive(Serialize)]
struct ListedReport {
    #[serde(flatten)]
    lock: LockReport,
    /// Whether the name is complete: a store keeps only the beginning of a very long one.
    whole_name: bool,
}

impl Listing {
    fn to_text(&self) -> String {
        let mut text: Vec<String> = self.locks.iter().map(|listed| listed.lock.to_text()).collect();
        for name in &self.unreadable {
            text.push(format!(
                "{}: not readable by this version of leasehold, and may be held: check whether it is out of date",
                printable(name)
            ));
        }
        if !self.whole {
            text.push("there are more: use --limit or --prefix".to_owned());
        }
        if text.is_empty() {
            text.push("no locks".to_owned());
        }
        text.join("\n")
    }
}

/// A lock as several lines of text.
fn to_lines(report: &LockReport) -> String {
    let mut lines = vec![format!("lock     {}", printable(&report.name))];
    let mut line = |what: &str, text: String| lines.push(format!("{what:<8} {text}"));
    line("state", if report.held { "held".to_owned() } else { "free".to_owned() });
    for lease in &report.holders {
        line("holder", lease.who());
        if let Some(started) = lease.started {
            line("started", format_time(started));
        }
        if let Some(since) = lease.since {
            line("for", age(since));
        }
        line("token", lease.token.to_string());
        line("ttl left", lease.ttl_left());
    }
    match report.last_token {
        _ if report.held => {}
        Some(last) => line("token", format!("{last}, of the last grant")),
        None => line("token", "none: the store has no record of this lock".to_owned()),
    }
    if let Some(waiters) = report.waiters {
        line("waiting", waiters.to_string());
    }
    lines.join("\n")
}

fn live_line(report: &LockReport) -> String {
    let Some(lease) = report.holders.first() else { return "  free".to_owned() };
    let held = match lease.since {
        Some(since) => format!("held for {}, ", age(since)),
        None => "held, ".to_owned(),
    };
    let waiters = report.waiters.map_or_else(String::new, |waiters| format!(", {waiters} waiting"));
    format!("  {held}{} left{waiters}", lease.ttl_left())
}

/// The time of day, for people who read a log of changes.
fn clock() -> String {
    humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string()
}

#[cfg(test)]
mod tests {
    use leasehold::LockInfo;

    use super::*;

    const NOTHING: LockInfo = LockInfo::new(None, Vec::new(), None);

    #[test]
    fn a_free_lock_shows_its_record() {
        let text = to_lines(&LockReport::of("x\x1b", NOTHING));
        assert_eq!(text, "lock     x\u{fffd}\nstate    free\ntoken    none: the store has no record of this lock");
    }

    #[test]
    fn a_listing_says_when_it_is_incomplete() {
        let listing = Listing { locks: Vec::new(), whole: true, unreadable: Vec::new() };
        assert_eq!(listing.to_text(), "no locks");
        assert_eq!(serde_json::to_string(&listing).unwrap(), r#"{"locks":[],"whole":true,"unreadable":[]}"#);
        let lock = LockReport::of("x", NOTHING);
        let listing = Listing {
            locks: vec![ListedReport { lock, whole_name: true }],
            whole: false,
            unreadable: vec!["y".into()],
        };
        assert!(listing.to_text().ends_with("there are more: use --limit or --prefix"));
        assert!(listing.to_text().contains("y: not readable"), "{}", listing.to_text());
        let json = serde_json::to_string(&listing).unwrap();
        assert!(json.starts_with(r#"{"locks":[{"name":"x","held":false"#), "{json}");
        assert!(json.ends_with(r#""whole_name":true}],"whole":false,"unreadable":["y"]}"#), "{json}");
    }
}
