//! While the command runs: its deadlines, its signals, its end.

use std::time::{Duration, Instant};

use leasehold::{Clock as _, ErrorKind, LockGuard, Stamp, SystemClock};
use rustix::process::Signal;

use crate::args::OnLost;
use crate::exit::{Exit, Failure, with_causes};
use crate::output::Output;
use crate::report::shown;
use crate::run::ending::{Ending, Step};
use crate::run::job::{Change, Job, Outcome};
use crate::run::signals::{Signals, stop_own_group};
use crate::run::terminal::Terminal;
use crate::run::terms::Terms;
use crate::run::watcher::Watcher;

/// How often to look whether a group that was asked to end is empty.
const LOOK: Duration = Duration::from_millis(20);

/// How long a command that was killed may take to be gone: it is over, but for what the system still does for it.
const GONE_BOUND: Duration = Duration::from_secs(10);

/// How long to wait for the CONT of who was stopped. It has come by then: the system sends it before it lets us run.
const CONTINUED_BOUND: Duration = Duration::from_millis(20);

/// The lease of a run, with its own end where there is one.
pub(crate) struct Lease {
    guard: LockGuard,
    clock: SystemClock,
    max_hold: Option<Stamp>,
}

impl Lease {
    pub(crate) fn new(guard: LockGuard, terms: &Terms) -> Self {
        let clock = SystemClock::new();
        let max_hold = terms.max_hold.map(|max| clock.now().plus(max));
        Self { guard, clock, max_hold }
    }

    /// How long the command may still run, unless the lease is renewed.
    pub(crate) fn left(&self) -> Duration {
        let max_hold = self.max_hold.map_or(Duration::MAX, |end| end.since(self.clock.now()));
        self.guard.validity().min(max_hold)
    }

    /// Whether it is the longest hold that ends it.
    fn ends_by_max_hold(&self) -> bool {
        self.max_hold.is_some_and(|end| end.since(self.clock.now()) <= self.guard.validity())
    }
}

/// What a run consists of once its command has begun.
pub(crate) struct Hold {
    pub(crate) lease: Lease,
    pub(crate) ending: Ending,
    pub(crate) job: Job,
    pub(crate) watcher: Option<Watcher>,
    pub(crate) terminal: Option<Terminal>,
    pub(crate) signals: Signals,
    pub(crate) terms: Terms,
    pub(crate) output: Output,
    /// Why the command was asked or made to end.
    pub(crate) cause: Option<Failure>,
}

impl Hold {
    /// Until the command has ended and the lock is released.
    pub(crate) async fn see_through(mut self) -> Result<Exit, Failure> {
        let outcome = self.until_the_end().await;
        if let Some(terminal) = &mut self.terminal {
            terminal.take_back();
            if !matches!(outcome, Ok(Outcome::Code(_))) {
                terminal.restore_modes();
            }
        }
        let outcome = outcome?;
        let lost = let_go(self.lease.guard, self.output).await;
        match (self.cause, lost) {
            (Some(failure), _) => Err(failure),
            (None, Some(failure)) if self.terms.on_lost == OnLost::Kill => Err(failure),
            _ => Ok(outcome.exit()),
        }
    }

    async fn until_the_end(&mut self) -> Result<Outcome, Failure> {
        let mut killed = None;
        loop {
            // Before anything else, also after a pause: whatever came meanwhile is no reason to be later.
            let left = self.lease.left();
            if let Some(step) = self.ending.step(left) {
                self.take(step).await;
                killed = self.ending.was_killed().then(Instant::now);
            }
            self.tell_watcher(left).await;
            match self.job.look().map_err(|error| Failure::fault("cannot see how the command goes", error))? {
                Some(Change::Ended(outcome)) => {
                    self.finish().await;
                    return Ok(outcome);
                }
                Some(Change::Stopped(signal)) => {
                    self.on_stop(signal).await;
                    continue;
                }
                None => {}
            }
            if killed.is_some_and(|killed| killed.elapsed() > GONE_BOUND) {
                return Err(Failure::new(Exit::Lost, "the lease was lost; the command got KILL and does not end"));
            }
            tokio::select! {
                biased;
                _ = self.lease.guard.lost(), if killed.is_none() && self.lease.guard.is_held() => {}
                signal = self.signals.next() => self.on_signal(signal),
                () = ended(self.watcher.as_ref()) => self.on_watcher_ended().await,
                () = tokio::time::sleep(self.ending.look_in(left)) => {}
            }
        }
    }

    async fn take(&mut self, step: Step) {
        let max_hold = self.lease.ends_by_max_hold();
        let loss = match self.lease.guard.is_held() {
            true => None,
            false => Some(self.lease.guard.lost().await),
        };
        let name = shown(self.lease.guard.name().as_str());
        let why = match loss {
            _ if max_hold => format!("the longest hold of lock `{name}` is reached"),
            Some(loss) => format!("lock `{name}` is lost: {loss}"),
            None => format!("the store does not confirm lock `{name}` any more"),
        };
        let exit = if max_hold { Exit::MaxHold } else { Exit::Lost };
        match step {
            Step::Ask => {
                self.job.signal(Signal::TERM);
                // Who is stopped hears of TERM only when he goes on.
                self.job.signal(Signal::CONT);
                let grace = humantime::format_duration(self.terms.grace);
                self.output.warn_aside(exit.word(), format!("{why}; the command got TERM, KILL follows in {grace}"));
                self.cause = Some(Failure::new(exit, format!("{why}; the command was ended")));
            }
            Step::Kill => {
                self.job.signal(Signal::KILL);
                self.cause = Some(Failure::new(exit, format!("{why}; the command got KILL")));
            }
            Step::Warn => {
                self.output.warn_aside(exit.word(), format!("{why}; the command goes on, another may run it too"));
            }
        }
    }

    /// The watcher kills at the end of the lease what this process, stopped or starved, cannot.
    async fn tell_watcher(&mut self, left: Duration) {
        if self.terms.on_lost == OnLost::Warn || left.is_zero() {
            return;
        }
        if let Some(watcher) = &mut self.watcher
            && watcher.until(left).is_err()
        {
            self.on_watcher_ended().await;
        }
    }

    async fn on_watcher_ended(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        // It ends by itself when the lease did.
        if self.lease.left().is_zero() && self.terms.on_lost == OnLost::Kill {
            self.watcher = None;
        } else if let Err(error) = watcher.replace().await {
            self.watcher = None;
            let text = format!(
                "the watcher is gone and there is no other ({error}): with KILL to leasehold the command would go on"
            );
            self.output.warn_aside("fault", text);
        }
    }

    fn on_signal(&mut self, signal: Signal) {
        match signal {
            Signal::CHILD => {}
            Signal::CONT => self.resume(),
            other => self.job.signal(other),
        }
    }

    /// The command was stopped: this process stops as well, so that its shell gets the terminal.
    async fn on_stop(&mut self, signal: Signal) {
        let Some(terminal) = &mut self.terminal else { return };
        let wants_terminal = signal == Signal::TTIN || signal == Signal::TTOU;
        if wants_terminal && terminal.give(self.job.group()) {
            self.job.signal(Signal::CONT);
            return;
        }
        terminal.take_back();
        stop_own_group();
        // Where nobody could continue us we were not stopped. Then Ctrl-Z does nothing, as it does to a command that runs there by
        // itself; whoever was stopped on purpose stays so.
        if self.signals.is_continued_within(CONTINUED_BOUND).await || signal == Signal::TSTP {
            self.resume();
        }
    }

    fn resume(&mut self) {
        // Who was stopped for too long has lost the lock: the command must not run for a moment before it is ended.
        if self.terms.on_lost == OnLost::Kill && self.lease.left().is_zero() {
            return;
        }
        if let Some(terminal) = &mut self.terminal {
            terminal.share(self.job.group());
        }
        self.job.signal(Signal::CONT);
    }

    /// The command has ended. Where it was asked to, the rest of its group may finish as well, until the lease ends.
    async fn finish(&mut self) {
        if self.ending.has_begun() {
            self.job.reap();
            while !self.ending.was_killed() && !self.job.is_empty() {
                let left = self.lease.left();
                if let Some(step) = self.ending.step(left) {
                    self.take(step).await;
                }
                tokio::time::sleep(LOOK.min(self.ending.look_in(left))).await;
            }
        }
        // While the end is not taken, nobody else can get the group's number and be killed for us.
        if let Some(watcher) = &mut self.watcher {
            watcher.done();
        }
        self.job.reap();
    }
}

/// Releases the lock. A release without an answer is no fault of the command, which has ended. But when the lease was lost
/// before, another may have held the lock while the command ran.
async fn let_go(guard: LockGuard, output: Output) -> Option<Failure> {
    let name = shown(guard.name().as_str());
    let error = guard.release().await.err()?;
    if error.kind() == ErrorKind::Lost {
        let text = format!("lock `{name}` was lost before the end of the command was seen");
        return Some(Failure::new(Exit::Lost, text));
    }
    let text = format!("the release has no answer, so the lock ends by its ttl at the latest: {}", with_causes(&error));
    output.warn(Exit::from(error.kind()).word(), &text);
    None
}

async fn ended(watcher: Option<&Watcher>) {
    match watcher {
        Some(watcher) => watcher.ended().await,
        None => std::future::pending().await,
    }
}
