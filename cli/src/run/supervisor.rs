//! While the command runs: its deadlines, its signals, its end.

use std::time::{Duration, Instant};

use leasehold::backend::{Clock as _, Stamp, SystemClock};
use leasehold::defaults::DEFAULT_MARGIN_PERCENT;
use leasehold::{ErrorKind, LockClient, LockGuard, LossReason};
use rustix::process::{Signal, kill_current_process_group};

use crate::args::OnLost;
use crate::exit::{Exit, Failure, with_causes};
use crate::output::Output;
use crate::report::{format_duration_roughly, printable};
use crate::run::command_group::{CommandGroup, Outcome, StateChange};
use crate::run::options::RunOptions;
use crate::run::signals::{Signals, stop_own_group};
use crate::run::terminal::Terminal;
use crate::run::termination::{Action, Termination, TimeLeft};
use crate::run::watcher::Watcher;

/// What Ctrl-C and Ctrl-\ send.
const INTERRUPTS: [Signal; 2] = [Signal::INT, Signal::QUIT];

/// How often to look whether a group that was asked to end is empty.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long a command that was killed may take to be gone: it is over, but for what the system still does for it.
const GONE_BOUND: Duration = Duration::from_secs(10);

/// How long to wait for the CONT of who was stopped. It has come by then: the system sends it before it lets us run.
const CONTINUED_BOUND: Duration = Duration::from_millis(20);

/// How long a release that has failed is tried again before the run ends all the same.
const RELEASE_BOUND: Duration = Duration::from_secs(5);

/// The lease of a run, with its own end where there is one.
pub(crate) struct HeldLease {
    guard: LockGuard,
    clock: SystemClock,
    max_hold: Option<Stamp>,
    margin: Duration,
}

impl HeldLease {
    pub(crate) fn new(guard: LockGuard, options: &RunOptions) -> Self {
        let clock = SystemClock::new();
        let max_hold = options.max_hold.map(|max| clock.now().plus(max));
        let margin = options.ttl * u32::from(DEFAULT_MARGIN_PERCENT) / 100;
        Self { guard, clock, max_hold, margin }
    }

    /// What is left to the command.
    pub(crate) fn left(&self) -> TimeLeft {
        let hold = self.max_hold.map(|end| end.since(self.clock.now()));
        TimeLeft { validity: self.guard.validity(), hold }
    }

    /// Whether it is the longest hold that ends a lease which is still held. The last renewal asks for no more than what is left
    /// of that hold, so the validity ends sooner than it, by the margin.
    fn ends_by_max_hold(&self, left: TimeLeft) -> bool {
        left.hold.is_some_and(|hold| hold <= left.validity + self.margin)
    }
}

/// What a run consists of once its command has begun.
pub(crate) struct Supervisor {
    pub(crate) lease: HeldLease,
    pub(crate) termination: Termination,
    pub(crate) command: CommandGroup,
    pub(crate) watcher: Option<Watcher>,
    pub(crate) terminal: Option<Terminal>,
    pub(crate) signals: Signals,
    pub(crate) client: LockClient,
    pub(crate) options: RunOptions,
    pub(crate) output: Output,
    /// The last of INT and QUIT that came to this process, and went on to the command.
    pub(crate) interrupt: Option<Signal>,
    /// Why the command was asked or made to end.
    pub(crate) cause: Option<Failure>,
}

impl Supervisor {
    /// Until the command has ended and the lock is released.
    pub(crate) async fn run_to_end(mut self) -> Result<Exit, Failure> {
        let outcome = self.wait_for_end().await;
        let mut had_terminal = false;
        if let Some(terminal) = &mut self.terminal {
            had_terminal = terminal.take_foreground();
            if !matches!(outcome, Ok(Outcome::Code(_))) {
                terminal.restore_modes();
            }
        }
        let outcome = outcome?;
        let Self { lease, client, mut signals, options, output, interrupt, cause, .. } = self;
        let lost = release(lease.guard, &client, &options, &mut signals, output).await;
        match (cause, lost) {
            (Some(failure), _) => Err(failure),
            (None, Some(failure)) if options.on_lost == OnLost::Kill => Err(failure),
            _ => Ok(exit(outcome, had_terminal, interrupt)),
        }
    }

    async fn wait_for_end(&mut self) -> Result<Outcome, Failure> {
        let mut killed = None;
        loop {
            // Before anything else, also after a pause: whatever came meanwhile is no reason to be later.
            let left = self.lease.left();
            if let Some(action) = self.termination.next_action(left) {
                self.apply(action, left).await;
                killed = self.termination.was_killed().then(Instant::now);
            }
            self.maintain_watcher(left.until_end()).await;
            match self.command.poll().map_err(|error| Failure::fault("cannot read the state of the command", error))? {
                Some(StateChange::Ended(outcome)) => {
                    self.finish().await;
                    return Ok(outcome);
                }
                Some(StateChange::Stopped(signal)) => {
                    self.on_stop(signal).await;
                    continue;
                }
                None => {}
            }
            if killed.is_some_and(|killed| killed.elapsed() > GONE_BOUND) {
                return Err(Failure::new(Exit::Lost, "the lease was lost; the command got KILL but does not end"));
            }
            tokio::select! {
                biased;
                _ = self.lease.guard.lost(), if killed.is_none() && self.lease.guard.is_held() => {}
                signal = self.signals.next() => self.on_signal(signal),
                () = ended(self.watcher.as_ref()) => self.on_watcher_ended().await,
                () = tokio::time::sleep(self.termination.sleep_time(left)) => {}
            }
        }
    }

    async fn apply(&mut self, action: Action, left: TimeLeft) {
        let loss = match self.lease.guard.is_held() {
            true => None,
            false => Some(self.lease.guard.lost().await),
        };
        let max_hold = match loss {
            Some(loss) => loss.reason == LossReason::MaxHold || left.hold.is_some_and(|hold| hold.is_zero()),
            None => self.lease.ends_by_max_hold(left),
        };
        let name = printable(self.lease.guard.name().as_str());
        let why = match loss {
            _ if max_hold => format!("lock `{name}` has reached --max-hold"),
            Some(loss) => format!("lock `{name}` is lost: {loss}"),
            None => format!("the store no longer confirms lock `{name}`"),
        };
        let exit = if max_hold { Exit::MaxHold } else { Exit::Lost };
        match action {
            Action::Term => {
                self.command.signal(Signal::TERM);
                // Who is stopped hears of TERM only when he goes on.
                self.command.signal(Signal::CONT);
                let grace = humantime::format_duration(self.options.grace);
                self.output
                    .warn_in_background(exit.kind(), format!("{why}; the command got TERM, KILL follows in {grace}"));
                self.cause = Some(Failure::new(exit, format!("{why}; the command was ended")));
            }
            Action::Kill => {
                self.command.signal(Signal::KILL);
                self.cause = Some(Failure::new(exit, format!("{why}; the command got KILL")));
            }
            Action::Warn => {
                self.output.warn_in_background(
                    exit.kind(),
                    format!("{why}; the command continues, and another client may get the lock"),
                );
            }
        }
    }

    /// The watcher kills at the end of the lease what this process, stopped or starved, cannot. One that was stopped itself would
    /// not: the system tells of it as of the end of a child.
    async fn maintain_watcher(&mut self, left: Duration) {
        let Some(watcher) = &mut self.watcher else { return };
        let is_timed = self.options.on_lost == OnLost::Kill && !left.is_zero();
        if watcher.is_stopped() || is_timed && watcher.set_deadline(left).is_err() {
            self.on_watcher_ended().await;
        }
    }

    async fn on_watcher_ended(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        let left = self.lease.left().until_end();
        // It ends by itself when the lease did.
        if left.is_zero() && self.options.on_lost == OnLost::Kill {
            self.watcher = None;
            return;
        }
        // The new one must not take so long that the end of the lease is missed.
        let bound = if self.options.on_lost == OnLost::Kill { left / 2 } else { Duration::MAX };
        let replaced = tokio::time::timeout(bound, watcher.replace()).await;
        if let Err(error) = replaced.unwrap_or_else(|late| Err(late.into())) {
            // One that was stopped would take the end of its pipe for an order when it goes on.
            watcher.kill();
            self.watcher = None;
            let text = format!(
                "the watcher ended and cannot be replaced ({error}): if leasehold gets KILL, the command continues"
            );
            self.output.warn_in_background("fault", text);
        }
    }

    fn on_signal(&mut self, signal: Signal) {
        match signal {
            Signal::CHILD => {}
            Signal::CONT => self.resume(),
            other => {
                if INTERRUPTS.contains(&other) {
                    self.interrupt = Some(other);
                }
                self.command.signal(other);
            }
        }
    }

    /// The command was stopped: this process stops as well, so that its shell gets the terminal.
    async fn on_stop(&mut self, signal: Signal) {
        let Some(terminal) = &mut self.terminal else { return };
        let wants_terminal = signal == Signal::TTIN || signal == Signal::TTOU;
        if wants_terminal && terminal.request_foreground(self.command.group()) {
            self.command.signal(Signal::CONT);
            return;
        }
        terminal.take_foreground();
        stop_own_group();
        // Where nobody could continue us we were not stopped. Then Ctrl-Z does nothing, as it does to a command that runs there by
        // itself; whoever was stopped on purpose stays so.
        if self.signals.is_continued_within(CONTINUED_BOUND).await || signal == Signal::TSTP {
            self.resume();
        }
    }

    fn resume(&mut self) {
        // Who was stopped for too long has lost the lock: the command must not run for a moment before it is ended.
        if self.options.on_lost == OnLost::Kill && self.lease.left().until_end().is_zero() {
            return;
        }
        if let Some(terminal) = &mut self.terminal {
            terminal.give_foreground(self.command.group());
        }
        self.command.signal(Signal::CONT);
    }

    /// The command has ended. Where it was asked to, the rest of its group may finish as well, until the lease ends.
    async fn finish(&mut self) {
        if self.termination.has_started() {
            self.command.reap();
            while !self.termination.was_killed() && !self.command.is_empty() {
                let left = self.lease.left();
                if let Some(action) = self.termination.next_action(left) {
                    self.apply(action, left).await;
                }
                tokio::time::sleep(POLL_INTERVAL.min(self.termination.sleep_time(left))).await;
            }
        }
        // While the end is not taken, nobody else can get the group's number and be killed for us.
        if let Some(watcher) = &mut self.watcher {
            watcher.dismiss();
        }
        self.command.reap();
    }
}

/// What the run ends with when nothing went wrong with the lock. A command that Ctrl-C has ended takes the run along, and whoever
/// the terminal would have told beside the command if that had no process group of its own: a shell that runs a script ends
/// by Ctrl-C only when it got the signal itself and sees its command end by it.
fn exit(outcome: Outcome, had_terminal: bool, interrupt: Option<Signal>) -> Exit {
    let by = INTERRUPTS.iter().copied().find(|signal| outcome == Outcome::Signal(signal.as_raw()));
    match by {
        Some(signal) if had_terminal => {
            // Our own group takes it or there is nobody to tell.
            let _ = kill_current_process_group(signal);
            Exit::Signal(signal.as_raw())
        }
        Some(signal) if interrupt == Some(signal) => Exit::Signal(signal.as_raw()),
        _ => outcome.exit(),
    }
}

/// Releases the lock. A release without an answer is no fault of the command, which has ended: it is tried again for a bounded time.
/// But when the lease was lost before, another may have held the lock while the command ran.
async fn release(
    guard: LockGuard,
    client: &LockClient,
    options: &RunOptions,
    signals: &mut Signals,
    output: Output,
) -> Option<Failure> {
    let (name, begun) = (printable(guard.name().as_str()), Instant::now());
    let error = guard.release().await.err()?;
    if error.kind() == ErrorKind::Lost {
        let text = format!("lock `{name}` was lost before leasehold saw the command end");
        return Some(Failure::new(Exit::Lost, text));
    }
    // The client tries again in the background, and a shutdown ends when it has an answer.
    let again = async {
        while client.shutdown().await.is_err() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    let released = tokio::select! {
        released = tokio::time::timeout(RELEASE_BOUND, again) => released.is_ok(),
        // Somebody is in a hurry.
        _ = signals.next_termination() => false,
    };
    if !released {
        // No renewal was sent after the release began.
        let left = format_duration_roughly(options.ttl.saturating_sub(begun.elapsed()) + Duration::from_secs(1));
        let text = format!(
            "lock `{name}` could not be released ({}): it stays held until its lease ends, in {left} at the latest",
            with_causes(&error)
        );
        output.warn(Exit::from(error.kind()).kind(), &text);
    }
    None
}

async fn ended(watcher: Option<&Watcher>) {
    match watcher {
        Some(watcher) => watcher.ended().await,
        None => std::future::pending().await,
    }
}
