//! `doctor`: whether the store is fit for locks.

use std::time::{Duration, Instant};

use leasehold::admin::{Check, CheckStatus};
use leasehold::{ErrorKind, LockClient};
use serde::Serialize;

use crate::args::Common;
use crate::exit::{Exit, Failure, with_causes};
use crate::output::Output;
use crate::report::printable;
use crate::store::Store;

/// The number of round trips that are measured.
const ROUND_TRIPS: usize = 20;

/// The ttl of the lock that is acquired as a test.
const TTL: Duration = Duration::from_secs(5);

/// What `doctor --json` prints. Fields are added, never renamed or removed.
#[derive(Serialize)]
struct DoctorReport {
    /// Whether no check has the status `error`.
    fit: bool,
    checks: Vec<CheckReport>,
}

#[derive(Serialize)]
struct CheckReport {
    about: &'static str,
    found: String,
    /// `ok`, `warning` or `error`.
    status: &'static str,
    /// What to do.
    hint: Option<String>,
}

impl From<Check> for CheckReport {
    fn from(Check { about, found, status, .. }: Check) -> Self {
        let (status, hint) = match status {
            CheckStatus::Ok => ("ok", None),
            CheckStatus::Warning(hint) => ("warning", Some(hint)),
            CheckStatus::Error(hint) => ("error", Some(hint)),
        };
        Self { about, found, status, hint }
    }
}

/// Runs all checks. Each warning and error has a hint.
pub(crate) async fn doctor(common: &Common, output: Output) -> Result<Exit, Failure> {
    let store = Store::from_args(common, output)?;
    let mut checks = vec![Check::new("store", store.display_url(), CheckStatus::Ok)];
    let begin = Instant::now();
    match store.connect("").await {
        // A wrong URL leaves nothing to check.
        Err(failure) if failure.exit == Exit::BadInput => return Err(failure),
        Err(failure) => {
            checks.push(Check::new("connection", failure.text, CheckStatus::Error(connection_hint(failure.exit))));
        }
        Ok(client) => {
            checks.push(Check::new("connection", format!("made in {:.1?}", begin.elapsed()), CheckStatus::Ok));
            checks.extend(round_trip(&client).await);
            checks.extend(acquire_and_release(&client).await);
            checks.extend(examine(&client).await);
            checks.push(limits_of_exclusion(&client));
        }
    }
    let checks: Vec<CheckReport> = checks.into_iter().map(CheckReport::from).collect();
    let report = DoctorReport { fit: checks.iter().all(|check| check.status != "error"), checks };
    output.result(&report, || report.to_text())?;
    Ok(if report.fit { Exit::Success } else { Exit::No })
}

fn connection_hint(exit: Exit) -> String {
    match exit {
        Exit::Refused => "the message above says what the store refuses: correct that".to_owned(),
        _ => "check that the store runs, that host and port are right, and that no firewall blocks them".to_owned(),
    }
}

/// Measures round trips: inspects a free lock several times.
async fn round_trip(client: &LockClient) -> Option<Check> {
    let bound = client.capabilities().call_bound;
    let mut trips = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let begin = Instant::now();
        match client.inspect(lock_name()).await {
            Ok(_) => trips.push(begin.elapsed()),
            Err(error) if error.kind() == ErrorKind::Unsupported => return None,
            Err(error) => {
                let hint = "the store was reached and then did not reply: check its load and its log".to_owned();
                return Some(Check::new("round trip", with_causes(&error), CheckStatus::Error(hint)));
            }
        }
    }
    trips.sort();
    let (median, worst) = (trips[ROUND_TRIPS / 2], trips[ROUND_TRIPS - 1]);
    let found = format!("median {median:.1?}, worst {worst:.1?}, of {ROUND_TRIPS}");
    let status = if worst * 4 < bound {
        CheckStatus::Ok
    } else {
        CheckStatus::Warning(format!(
            "a call may take {bound:?} in all: set a longer `timeout` in the URL, if the store has one, and use a ttl \
             of at least {:?}",
            bound * 10
        ))
    };
    Some(Check::new("round trip", found, status))
}

/// Acquires and releases its own lock, which shows whether the permissions are sufficient.
async fn acquire_and_release(client: &LockClient) -> Option<Check> {
    let begin = Instant::now();
    let lock = client.lock(lock_name()).ttl(TTL);
    let outcome = match lock.try_acquire().await {
        Ok(Some(guard)) => guard.release().await,
        Ok(None) => return None,
        Err(error) => Err(error),
    };
    Some(match outcome {
        Ok(()) => Check::new("acquire and release", format!("done in {:.1?}", begin.elapsed()), CheckStatus::Ok),
        Err(error) => {
            let hint = match error.kind() {
                ErrorKind::Auth => "give the user the permissions that `leasehold acl` prints",
                ErrorKind::Capacity => "the store is full: free space, or raise its limits",
                _ => "the message of the store says why: correct that",
            };
            Check::new("acquire and release", with_causes(&error), CheckStatus::Error(hint.to_owned()))
        }
    })
}

/// A name that contains the process id, so that two runs of `doctor` do not contend.
fn lock_name() -> String {
    format!("leasehold doctor {}", std::process::id())
}

async fn examine(client: &LockClient) -> Vec<Check> {
    match client.examine().await {
        Ok(checks) => checks,
        Err(error) if error.kind() == ErrorKind::Unsupported => Vec::new(),
        Err(error) => {
            let hint =
                "the store serves locks, but its version and settings are not checked: see its message".to_owned();
            vec![Check::new("store", with_causes(&error), CheckStatus::Warning(hint))]
        }
    }
}

/// The limits of exclusion on this store.
fn limits_of_exclusion(client: &LockClient) -> Check {
    let capabilities = client.capabilities();
    let limits = capabilities.limits_of_exclusion.iter().map(|limit| format!("\n      {limit}")).collect::<String>();
    let found = match limits.is_empty() {
        true => "none".to_owned(),
        false => format!("two clients may hold a lock, and only the fencing token decides, if{limits}"),
    };
    Check::new("limits of exclusion", found, CheckStatus::Ok)
}

impl DoctorReport {
    fn to_text(&self) -> String {
        let mut text = String::new();
        for CheckReport { about, found, status, hint } in &self.checks {
            let mark = match *status {
                "ok" => "ok",
                "warning" => "??",
                _ => "!!",
            };
            text.push_str(&format!("{mark}  {about}: {}\n", printable_lines(found)));
            if let Some(hint) = hint {
                text.push_str(&format!("      {}\n", printable_lines(hint)));
            }
        }
        text.push_str(if self.fit { "fit for locks" } else { "not fit for locks" });
        text
    }
}

/// Text from a server, printable line by line.
fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_and_errors_come_with_a_hint() {
        let checks = [
            Check::new("a", "1", CheckStatus::Ok),
            Check::new("b", "2\x1b", CheckStatus::Warning("do this".into())),
            Check::new("c", "3", CheckStatus::Error("do that".into())),
        ];
        let report = DoctorReport { fit: false, checks: checks.into_iter().map(CheckReport::from).collect() };
        assert_eq!(
            report.to_text(),
            "ok  a: 1\n??  b: 2\u{fffd}\n      do this\n!!  c: 3\n      do that\nnot fit for locks"
        );
        let json = serde_json::to_string(&report).unwrap();
        assert!(json.contains(r#"{"about":"c","found":"3","status":"error","hint":"do that"}"#), "{json}");
    }
}
