//! `doctor`: whether the store is fit for locks.

use std::time::{Duration, Instant};

use leasehold::admin::{Finding, Verdict};
use leasehold::{ErrorKind, LockClient};
use serde::Serialize;

use crate::args::Common;
use crate::exit::{Exit, Failure, with_causes};
use crate::output::Output;
use crate::report::printable;
use crate::store::Store;

/// How many round trips are measured.
const ROUND_TRIPS: usize = 20;

/// The ttl of the lock that is taken for a trial.
const TTL: Duration = Duration::from_secs(5);

/// What `doctor --json` prints. Fields are added, never renamed or removed.
#[derive(Serialize)]
struct DoctorReport {
    /// Whether nothing is wrong.
    fit: bool,
    #[serde(rename = "findings")]
    checks: Vec<Check>,
}

#[derive(Serialize)]
struct Check {
    about: &'static str,
    found: String,
    /// `fine`, `doubtful` or `wrong`.
    verdict: &'static str,
    /// What to do about it.
    #[serde(rename = "mend")]
    hint: Option<String>,
}

impl From<Finding> for Check {
    fn from(Finding { about, found, verdict, .. }: Finding) -> Self {
        let (verdict, hint) = match verdict {
            Verdict::Fine => ("fine", None),
            Verdict::Doubtful(hint) => ("doubtful", Some(hint)),
            Verdict::Wrong(hint) => ("wrong", Some(hint)),
        };
        Self { about, found, verdict, hint }
    }
}

/// Looks at everything, and says how to mend what is wrong.
pub(crate) async fn doctor(common: &Common, output: Output) -> Result<Exit, Failure> {
    let store = Store::from_args(common, output)?;
    let mut findings = vec![Finding::new("store", store.display_url(), Verdict::Fine)];
    let begin = Instant::now();
    match store.connect("").await {
        // With a wrong URL there is nothing to examine.
        Err(failure) if failure.exit == Exit::BadInput => return Err(failure),
        Err(failure) => {
            findings.push(Finding::new("connection", failure.text, Verdict::Wrong(connection_hint(failure.exit))));
        }
        Ok(client) => {
            findings.push(Finding::new("connection", format!("made in {:.1?}", begin.elapsed()), Verdict::Fine));
            findings.extend(round_trip(&client).await);
            findings.extend(acquire_and_release(&client).await);
            findings.extend(examine(&client).await);
            findings.push(limits_of_exclusion(&client));
        }
    }
    let checks: Vec<Check> = findings.into_iter().map(Check::from).collect();
    let report = DoctorReport { fit: checks.iter().all(|check| check.verdict != "wrong"), checks };
    output.result(&report, || report.to_text())?;
    Ok(if report.fit { Exit::Success } else { Exit::No })
}

fn connection_hint(exit: Exit) -> String {
    match exit {
        Exit::Refused => "the message above says what the store refuses: correct that".to_owned(),
        _ => "check that the store runs, that host and port are right, and that no firewall blocks them".to_owned(),
    }
}

/// Asks for a lock that nobody has, again and again.
async fn round_trip(client: &LockClient) -> Option<Finding> {
    let bound = client.capabilities().call_bound;
    let mut trips = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let begin = Instant::now();
        match client.inspect(lock_name()).await {
            Ok(_) => trips.push(begin.elapsed()),
            Err(error) if error.kind() == ErrorKind::Unsupported => return None,
            Err(error) => {
                let hint = "the store was reached and then did not reply: check its load and its log".to_owned();
                return Some(Finding::new("round trip", with_causes(&error), Verdict::Wrong(hint)));
            }
        }
    }
    trips.sort();
    let (median, worst) = (trips[ROUND_TRIPS / 2], trips[ROUND_TRIPS - 1]);
    let found = format!("median {median:.1?}, worst {worst:.1?}, of {ROUND_TRIPS}");
    let verdict = if worst * 4 < bound {
        Verdict::Fine
    } else {
        Verdict::Doubtful(format!(
            "a call may take {bound:?} in all: set a longer `timeout` in the URL, if the store has one, and use a ttl of at \
             least {:?}",
            bound * 10
        ))
    };
    Some(Finding::new("round trip", found, verdict))
}

/// Takes a lock of its own, and lets it go: what the user may do shows best by doing it.
async fn acquire_and_release(client: &LockClient) -> Option<Finding> {
    let begin = Instant::now();
    let lock = client.lock(lock_name()).ttl(TTL);
    let outcome = match lock.try_acquire().await {
        Ok(Some(guard)) => guard.release().await,
        Ok(None) => return None,
        Err(error) => Err(error),
    };
    Some(match outcome {
        Ok(()) => Finding::new("acquire and release", format!("done in {:.1?}", begin.elapsed()), Verdict::Fine),
        Err(error) => {
            let hint = match error.kind() {
                ErrorKind::Auth => "give the user the permissions that `leasehold acl redis` prints",
                ErrorKind::Capacity => "the store is full: free space, or raise its limits",
                _ => "the message of the store says why: correct that",
            };
            Finding::new("acquire and release", with_causes(&error), Verdict::Wrong(hint.to_owned()))
        }
    })
}

/// A name of this very look, so that two doctors do not meet.
fn lock_name() -> String {
    format!("leasehold doctor {}", std::process::id())
}

async fn examine(client: &LockClient) -> Vec<Finding> {
    match client.examine().await {
        Ok(findings) => findings,
        Err(error) if error.kind() == ErrorKind::Unsupported => Vec::new(),
        Err(error) => {
            let hint =
                "the store serves locks, but its version and settings are not checked: see its message".to_owned();
            vec![Finding::new("store", with_causes(&error), Verdict::Doubtful(hint))]
        }
    }
}

/// What no store can mend.
fn limits_of_exclusion(client: &LockClient) -> Finding {
    let capabilities = client.capabilities();
    let limits = capabilities.limits_of_exclusion.iter().map(|limit| format!("\n      {limit}")).collect::<String>();
    let found = if limits.is_empty() { "never".to_owned() } else { format!("when{limits}") };
    Finding::new("exclusion ends", found, Verdict::Fine)
}

impl DoctorReport {
    fn to_text(&self) -> String {
        let mut text = String::new();
        for Check { about, found, verdict, hint } in &self.checks {
            let mark = match *verdict {
                "fine" => "ok",
                "doubtful" => "??",
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

/// Text of a server, with our own line breaks only.
fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_and_errors_come_with_a_hint() {
        let findings = [
            Finding::new("a", "1", Verdict::Fine),
            Finding::new("b", "2\x1b", Verdict::Doubtful("do this".into())),
            Finding::new("c", "3", Verdict::Wrong("do that".into())),
        ];
        let report = DoctorReport { fit: false, checks: findings.into_iter().map(Check::from).collect() };
        assert_eq!(
            report.to_text(),
            "ok  a: 1\n??  b: 2\u{fffd}\n      do this\n!!  c: 3\n      do that\nnot fit for locks"
        );
        let json = serde_json::to_string(&report).unwrap();
        assert!(json.contains(r#"{"about":"c","found":"3","verdict":"wrong","mend":"do that"}"#), "{json}");
    }
}
