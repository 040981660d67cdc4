//! `doctor`: whether the store is fit for locks.

use std::time::{Duration, Instant};

use leasehold::admin::{Finding, Verdict};
use leasehold::{ErrorKind, LockClient};
use serde::Serialize;

use crate::args::Common;
use crate::exit::{Exit, Failure, with_causes};
use crate::output::Output;
use crate::report::shown;
use crate::store::Store;

/// How many round trips are measured.
const TRIPS: usize = 20;

/// The ttl of the lock that is taken for a trial.
const TRIAL_TTL: Duration = Duration::from_secs(5);

/// What `doctor --json` prints. Fields are added, never renamed or removed.
#[derive(Serialize)]
struct Report {
    /// Whether nothing is wrong.
    fit: bool,
    findings: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    about: &'static str,
    found: String,
    /// `fine`, `doubtful` or `wrong`.
    verdict: &'static str,
    /// How to mend it.
    mend: Option<String>,
}

impl From<Finding> for Row {
    fn from(Finding { about, found, verdict, .. }: Finding) -> Self {
        let (verdict, mend) = match verdict {
            Verdict::Fine => ("fine", None),
            Verdict::Doubtful(mend) => ("doubtful", Some(mend)),
            Verdict::Wrong(mend) => ("wrong", Some(mend)),
        };
        Self { about, found, verdict, mend }
    }
}

/// Looks at everything, and says how to mend what is wrong.
pub(crate) async fn doctor(common: &Common, output: Output) -> Result<Exit, Failure> {
    let store = Store::of(common, output)?;
    let mut findings = vec![Finding::new("store", store.shown(), Verdict::Fine)];
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
            findings.extend(trial(&client).await);
            findings.extend(examined(&client).await);
            findings.push(reach(&client));
        }
    }
    let rows: Vec<Row> = findings.into_iter().map(Row::from).collect();
    let report = Report { fit: rows.iter().all(|row| row.verdict != "wrong"), findings: rows };
    output.result(&report, || report.in_words())?;
    Ok(if report.fit { Exit::Fine } else { Exit::No })
}

fn connection_hint(exit: Exit) -> String {
    match exit {
        Exit::Refused => "what the store says above tells what it refuses".to_owned(),
        _ => "is it there, does a firewall stand between, are host and port right?".to_owned(),
    }
}

/// Asks for a lock that nobody has, again and again.
async fn round_trip(client: &LockClient) -> Option<Finding> {
    let bound = client.capabilities().call_bound;
    let mut trips = Vec::with_capacity(TRIPS);
    for _ in 0..TRIPS {
        let begin = Instant::now();
        match client.inspect(trial_name()).await {
            Ok(_) => trips.push(begin.elapsed()),
            Err(error) if error.kind() == ErrorKind::Unsupported => return None,
            Err(error) => {
                let mend = "the store was reached and then did not answer: look at its load and its log".to_owned();
                return Some(Finding::new("round trip", with_causes(&error), Verdict::Wrong(mend)));
            }
        }
    }
    trips.sort();
    let (median, worst) = (trips[TRIPS / 2], trips[TRIPS - 1]);
    let found = format!("{median:.1?} in the middle, {worst:.1?} at worst, of {TRIPS}");
    let verdict = if worst * 4 < bound {
        Verdict::Fine
    } else {
        Verdict::Doubtful(format!(
            "a call may take {bound:?} in all: give it longer (`timeout` in the URL, where the store has one) and use a ttl \
             of at least {:?}",
            bound * 10
        ))
    };
    Some(Finding::new("round trip", found, verdict))
}

/// Takes a lock of its own, and lets it go: what the user may do shows best by doing it.
async fn trial(client: &LockClient) -> Option<Finding> {
    let begin = Instant::now();
    let lock = client.lock(trial_name()).ttl(TRIAL_TTL);
    let outcome = match lock.try_acquire().await {
        Ok(Some(guard)) => guard.release().await,
        Ok(None) => return None,
        Err(error) => Err(error),
    };
    Some(match outcome {
        Ok(()) => Finding::new("acquire and release", format!("done in {:.1?}", begin.elapsed()), Verdict::Fine),
        Err(error) => {
            let mend = match error.kind() {
                ErrorKind::Auth => "give the user what `leasehold acl redis` prints",
                ErrorKind::Capacity => "the store is full: make room, or raise its limits",
                _ => "what the store says tells more",
            };
            Finding::new("acquire and release", with_causes(&error), Verdict::Wrong(mend.to_owned()))
        }
    })
}

/// A name of this very look, so that two doctors do not meet.
fn trial_name() -> String {
    format!("leasehold doctor {}", std::process::id())
}

async fn examined(client: &LockClient) -> Vec<Finding> {
    match client.examine().await {
        Ok(findings) => findings,
        Err(error) if error.kind() == ErrorKind::Unsupported => Vec::new(),
        Err(error) => {
            let mend = "the store answers to locks and not to questions about itself".to_owned();
            vec![Finding::new("store", with_causes(&error), Verdict::Doubtful(mend))]
        }
    }
}

/// What no store can mend.
fn reach(client: &LockClient) -> Finding {
    let capabilities = client.capabilities();
    let ends = capabilities.exclusion_ends.iter().map(|way| format!("\n      {way}")).collect::<String>();
    let found = if ends.is_empty() { "never".to_owned() } else { format!("when{ends}") };
    Finding::new("exclusion ends", found, Verdict::Fine)
}

impl Report {
    fn in_words(&self) -> String {
        let mut text = String::new();
        for Row { about, found, verdict, mend } in &self.findings {
            let mark = match *verdict {
                "fine" => "ok",
                "doubtful" => "??",
                _ => "!!",
            };
            text.push_str(&format!("{mark}  {about}: {}\n", lines(found)));
            if let Some(mend) = mend {
                text.push_str(&format!("      {}\n", lines(mend)));
            }
        }
        text.push_str(if self.fit { "fit for locks" } else { "not fit for locks" });
        text
    }
}

/// Text of a server, with our own line breaks only.
fn lines(text: &str) -> String {
    text.split('\n').map(shown).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_comes_with_how_to_mend_it() {
        let findings = [
            Finding::new("a", "1", Verdict::Fine),
            Finding::new("b", "2\x1b", Verdict::Doubtful("do this".into())),
            Finding::new("c", "3", Verdict::Wrong("do that".into())),
        ];
        let report = Report { fit: false, findings: findings.into_iter().map(Row::from).collect() };
        assert_eq!(
            report.in_words(),
            "ok  a: 1\n??  b: 2\u{fffd}\n      do this\n!!  c: 3\n      do that\nnot fit for locks"
        );
        let json = serde_json::to_string(&report).unwrap();
        assert!(json.contains(r#"{"about":"c","found":"3","verdict":"wrong","mend":"do that"}"#), "{json}");
    }
}
