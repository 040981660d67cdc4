//! Waits for the lock and shows progress.

use std::time::{Duration, Instant};

use leasehold::{Error, ErrorKind, LockClient, LockGuard};
use rustix::process::Signal;

use crate::args::Run;
use crate::exit::{Exit, Failure, with_causes};
use crate::output::{LiveLine, Output};
use crate::report::{LockReport, format_duration_roughly, printable};
use crate::run::options::RunOptions;
use crate::run::signals::Signals;

/// No progress is shown before this.
const PROGRESS_DELAY: Duration = Duration::from_secs(1);

/// How often the progress line is updated.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Why a run ends before its command starts.
pub(crate) enum NotStarted {
    Failed(Failure),
    /// Another client holds the lock, and the user wants no message about that.
    Skipped(Exit),
    /// By a signal.
    Interrupted(Signal),
}

impl From<Failure> for NotStarted {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Acquires the lock.
pub(crate) async fn acquire(
    client: &LockClient,
    args: &Run,
    options: &RunOptions,
    signals: &mut Signals,
    output: Output,
) -> Result<LockGuard, NotStarted> {
    let signal = tokio::select! {
        biased;
        signal = signals.next_termination() => signal,
        guard = wait(client, args, options) => return guard,
        never = show_progress(client, args, output) => match never {},
    };
    // The acquire was dropped. The client withdraws its claim in the background.
    tokio::select! {
        _ = client.shutdown() => {}
        // The user does not want to wait.
        _ = signals.next_termination() => {}
    }
    Err(NotStarted::Interrupted(signal))
}

async fn wait(client: &LockClient, args: &Run, options: &RunOptions) -> Result<LockGuard, NotStarted> {
    let mut lock = client.lock(&args.name).ttl(options.ttl).wait(args.wait);
    if let Some(max_hold) = args.max_hold {
        lock = lock.max_hold(max_hold);
    }
    if let Some(min_hold) = args.min_hold {
        lock = lock.min_hold(min_hold);
    }
    let failure = |error| failure(error, args, options);
    if args.no_wait {
        return match lock.try_acquire().await.map_err(failure)? {
            Some(guard) => Ok(guard),
            None => Err(conflict(client, args, "holds the lock or waits for it, and --no-wait was given").await),
        };
    }
    match lock.acquire().await {
        Err(error) if error.kind() == ErrorKind::Timeout => {
            Err(conflict(client, args, &format!("held the lock for the whole wait of {}", format_wait(args.wait)))
                .await)
        }
        other => Ok(other.map_err(failure)?),
    }
}

/// The client names a ttl that is out of bounds, which the user may not have set.
fn failure(error: Error, args: &Run, options: &RunOptions) -> Failure {
    let mut failure = Failure::from(error);
    if failure.exit == Exit::BadInput && options.ttl > args.ttl {
        let ttl = humantime::format_duration(options.ttl);
        failure.text += &format!(" (--min-hold raises the ttl to {ttl})");
    }
    failure
}

async fn conflict(client: &LockClient, args: &Run, how: &str) -> NotStarted {
    let exit = args.conflict_exit_code.map_or(Exit::Held, Exit::HeldAs);
    if args.is_conflict_silent() {
        return NotStarted::Skipped(exit);
    }
    let now = match client.inspect(&args.name).await {
        Ok(seen) => LockReport::new(client, &args.name, seen).to_text(),
        Err(_) => format!("{}: the store does not say who holds it", printable(&args.name)),
    };
    Failure::new(exit, format!("another client {how}; nothing was run (now {now})")).into()
}

/// Shows progress on the terminal until it is dropped.
async fn show_progress(client: &LockClient, args: &Run, output: Output) -> std::convert::Infallible {
    if !output.is_interactive() {
        return std::future::pending().await;
    }
    let (begin, mut line) = (Instant::now(), LiveLine::default());
    let mut place = PlaceBound::default();
    tokio::time::sleep(PROGRESS_DELAY).await;
    loop {
        let now = match client.inspect(&args.name).await {
            Ok(seen) => {
                let seen = LockReport::new(client, &args.name, seen);
                progress(&seen, place.update(seen.token(), seen.waiters.unwrap_or(0)))
            }
            Err(error) => format!("the store does not reply: {}", reason(&error)),
        };
        line.show(&format!(
            "waiting {} of {}: {now}",
            format_duration_roughly(begin.elapsed()),
            format_wait(args.wait)
        ));
        tokio::time::sleep(PROGRESS_INTERVAL).await;
    }
}

/// Why the store does not reply, shortened for a narrow terminal.
fn reason(error: &Error) -> String {
    let text = with_causes(error);
    let tried = error.lock().zip(error.backend());
    let tried = tried.map(|(lock, backend)| format!("cannot inspect lock {:?} on {backend}: ", lock.as_str()));
    printable(tried.and_then(|tried| text.strip_prefix(&tried)).unwrap_or(&text))
}

/// Who holds the lock, the most important facts first: a narrow terminal shows only the first ones.
fn progress(seen: &LockReport, place: Option<u64>) -> String {
    let Some(lease) = seen.holders.first() else {
        // The store is read-only at the moment, or is in quarantine after a restart.
        return format!("`{}` is free, but the store does not grant it yet", printable(&seen.name));
    };
    let queue = match (place, seen.waiters.unwrap_or(0)) {
        (Some(1), 1) => ", next in the queue".to_owned(),
        (Some(1), waiters) => format!(", next of {waiters} in the queue"),
        (Some(place), waiters) => format!(", place {place} of {waiters} at most"),
        (None, _) => String::new(),
    };
    let (left, who) = (lease.ttl_left(), lease.who());
    match lease.label.as_deref().filter(|label| !label.is_empty()) {
        Some(label) => format!("held by {}, {left} left{queue}; {who}", shortened(&printable(label))),
        None => format!("{left} left{queue}; held by {who}"),
    }
}

/// A label that leaves room for the rest.
fn shortened(label: &str) -> String {
    const WIDTH: usize = 20;
    match label.chars().count() <= WIDTH {
        true => label.to_owned(),
        false => label.chars().take(WIDTH - 1).chain(['…']).collect(),
    }
}

/// An upper bound for the place of this run in the queue. The store shows how many clients wait, including later ones.
/// The queue is first come, first served, so each new holder was in front.
#[derive(Debug, Default)]
struct PlaceBound {
    token: Option<u64>,
    at_most: Option<u64>,
}

impl PlaceBound {
    /// Updates the bound. Returns `None` until the store has counted a waiter.
    fn update(&mut self, token: Option<u64>, waiters: u64) -> Option<u64> {
        let at_most = match self.at_most {
            Some(before) if token.is_some() && self.token.is_some() && token != self.token => before - 1,
            Some(before) => before,
            None => u64::MAX,
        };
        self.token = token.or(self.token);
        self.at_most = (waiters > 0).then(|| at_most.clamp(1, waiters));
        self.at_most
    }
}

fn format_wait(wait: Duration) -> String {
    if wait >= crate::args::LONGEST { "forever".to_owned() } else { humantime::format_duration(wait).to_string() }
}

#[cfg(test)]
mod tests {
    use leasehold::{FencingToken, HolderInfo, LeaseInfo, LockInfo};

    use super::*;

    #[test]
    fn a_narrow_terminal_shows_the_label_the_time_left_and_the_queue() {
        let token = FencingToken::new(1_795_377_773_201_498);
        let holder = HolderInfo::of_this_process("a report of each night").unwrap();
        let lease = LeaseInfo::new(token, Duration::from_secs(86_399), Some(holder));
        let seen = LockReport::of("x".repeat(100), LockInfo::new(Some(token), vec![lease], Some(1000)));
        let line = format!("waiting 59m 59s of 1h: {}", progress(&seen, Some(1000)));
        let begin: String = line.chars().take(79).collect();
        let most = ": held by a report of each ni…, 86399.0 s left, place 1000";
        assert!(begin.contains(most), "{begin}");
        let error = Error::new(ErrorKind::Unavailable, "cannot connect").with_source(std::io::Error::other("refused"));
        let name = leasehold::LockName::new("x\ny").unwrap();
        assert_eq!(reason(&error.during("inspect", &name, "redis")), "cannot connect: refused");
        let holder = HolderInfo::of_this_process("nightly").unwrap();
        let lease = LeaseInfo::of_unknown_age(token, Duration::from_secs(29), Some(holder.clone()));
        let seen = LockReport::of("x", LockInfo::new(Some(token), vec![lease], Some(12)));
        let line = format!("waiting 59s of 1m: {}", progress(&seen, Some(3)));
        assert!(line.starts_with("waiting 59s of 1m: held by nightly, at most 29.0 s left, place 3 of 12 at most; "));
        assert!(line.ends_with(", nightly)"), "{line}");
        let free = LockReport::of("x", LockInfo::new(None, Vec::new(), None));
        assert_eq!(progress(&free, None), "`x` is free, but the store does not grant it yet");
    }

    #[test]
    fn a_place_only_gets_better() {
        let mut place = PlaceBound::default();
        assert_eq!(place.update(Some(10), 0), None);
        assert_eq!(place.update(Some(10), 4), Some(4));
        assert_eq!(place.update(Some(10), 6), Some(4), "who comes later stands behind");
        assert_eq!(place.update(Some(11), 6), Some(3), "a new holder was in front");
        assert_eq!(place.update(None, 6), Some(3));
        assert_eq!(place.update(Some(12), 6), Some(2));
        assert_eq!(place.update(Some(12), 1), Some(1), "some gave up");
        assert_eq!(place.update(Some(13), 5), Some(1));
    }
}
