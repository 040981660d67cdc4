//! The options of `run`, checked before anything is sent.

use std::time::Duration;

use crate::args::{OnLost, Run};
use crate::exit::Failure;

/// The checked options of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunOptions {
    /// At least the shortest hold, so that the lock stays held even if this process is killed.
    pub(crate) ttl: Duration,
    pub(crate) grace: Duration,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) on_lost: OnLost,
}

impl RunOptions {
    /// Checks the options of this command. The client checks the bounds of the ttl.
    pub(crate) fn from_args(args: &Run) -> Result<Self, Failure> {
        let Run { ttl, min_hold, max_hold, on_lost, .. } = *args;
        let ttl = min_hold.map_or(ttl, |min_hold| min_hold.max(ttl));
        // A lease is renewed every third of its ttl. When less than that is left, two renewals have failed.
        let shortest = max_hold.unwrap_or(ttl).min(ttl);
        // Whole milliseconds are easier to read.
        let grace = args.grace.unwrap_or_else(|| match shortest.as_millis() / 6 {
            0 => shortest / 6,
            ms => Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX)),
        });
        if grace >= ttl / 3 {
            let (grace, ttl) = (humantime::format_duration(grace), humantime::format_duration(ttl));
            return Err(Failure::input(format!("--grace ({grace}) must be shorter than a third of --ttl ({ttl})")));
        }
        if let Some(max_hold) = max_hold
            && grace >= max_hold
        {
            let (grace, max_hold) = (humantime::format_duration(grace), humantime::format_duration(max_hold));
            return Err(Failure::input(format!("--grace ({grace}) must be shorter than --max-hold ({max_hold})")));
        }
        Ok(Self { ttl, grace, min_hold, max_hold, on_lost })
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::args::{Command, parse};
    use crate::exit::Exit;

    fn options(args: &[&str]) -> Result<RunOptions, Failure> {
        let words = ["leasehold", "run", "x"].iter().chain(args).chain(&["--", "true"]);
        let Command::Run(run) = parse(&words.map(OsString::from).collect::<Vec<_>>()).unwrap().command else {
            panic!("not a run")
        };
        RunOptions::from_args(&run)
    }

    #[test]
    fn the_grace_is_shorter_than_a_third_of_the_ttl_and_than_the_longest_hold() {
        assert_eq!(options(&[]).unwrap().grace, Duration::from_secs(5));
        assert_eq!(options(&["--ttl", "1s"]).unwrap().grace, Duration::from_millis(166));
        assert_eq!(options(&["--max-hold", "5ms"]).unwrap().grace, Duration::from_millis(5) / 6);
        assert_eq!(options(&["--max-hold", "3s"]).unwrap().grace, Duration::from_millis(500));
        assert_eq!(options(&["--ttl", "3s", "--grace", "999ms"]).unwrap().grace, Duration::from_millis(999));
        assert_eq!(options(&["--min-hold", "1m"]).unwrap().ttl, Duration::from_secs(60));
        assert_eq!(options(&["--min-hold", "2s"]).unwrap().ttl, Duration::from_secs(30));
        for (args, hint) in [
            (&["--ttl", "3s", "--grace", "1s"][..], "--ttl (3s)"),
            (&["--max-hold", "2s", "--grace", "2s"], "--max-hold"),
        ] {
            let failure = options(args).unwrap_err();
            assert_eq!(failure.exit, Exit::BadInput);
            assert!(failure.text.contains(hint), "{}", failure.text);
        }
    }
}
