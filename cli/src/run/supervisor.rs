//! Supervises the command while it runs: deadlines, signals and its exit.

use std::time::{Duration, Instant};

use leasehold::backend::{Clock as _, Stamp, SystemClock, TtlScope};
use leasehold::defaults::DEFAULT_MARGIN_PERCENT;
use leasehold::{Error, ErrorKind, LockClient, LockGuard, LossReason};
use rustix::process::{Pid, Signal, getpid, kill_current_process_group};

use crate::args::OnLost;
use crate::exit::{Exit, Failure, with_causes};
use crate::output::{LiveLine, Output};
use crate::report::{format_duration_roughly, printable};
use crate::run::command_group::{CommandGroup, Outcome, StateChange};
use crate::run::descendants::{self, Family};
use crate::run::options::RunOptions;
use crate::run::signals::{Signals, stop_own_group};
use crate::run::terminal::Terminal;
use crate::run::termination::{Action, Termination, TimeLeft};
use crate::run::watcher::Watcher;

/// The signals that Ctrl-C and Ctrl-\ send.
const INTERRUPTS: [Signal; 2] = [Signal::INT, Signal::QUIT];

/// How often to check the rest of the shortest hold: timers stop while the machine is suspended.
const HOLD_INTERVAL: Duration = Duration::from_millis(500);

/// How often to check whether a process group that got TERM is empty.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long an orphan that has ended may stay a zombie: finding it takes a search through all processes.
const REAP_INTERVAL: Duration = Duration::from_secs(1);

/// How long a killed command may take to exit. It runs no more code; only the kernel may still be cleaning up.
const GONE_BOUND: Duration = Duration::from_secs(10);

/// How long to wait for CONT after a stop. The kernel delivers it before this process runs again, so it has arrived by
/// then.
const CONTINUED_BOUND: Duration = Duration::from_millis(20);

/// How long a failed release is retried before the run exits without it.
const RELEASE_BOUND: Duration = Duration::from_secs(5);

/// The lease of a run, and the ends of the shortest and the longest hold if they are set.
pub(crate) struct HeldLease {
    guard: LockGuard,
    clock: SystemClock,
    min_hold: Option<Stamp>,
    max_hold: Option<Stamp>,
    margin: Duration,
}

impl HeldLease {
    pub(crate) fn new(guard: LockGuard, options: &RunOptions) -> Self {
        let clock = SystemClock::new();
        let [min_hold, max_hold] = [options.min_hold, options.max_hold].map(|hold| Some(clock.now().plus(hold?)));
        let margin = options.ttl * u32::from(DEFAULT_MARGIN_PERCENT) / 100;
        Self { guard, clock, min_hold, max_hold, margin }
    }

    /// The time that is left for the command.
    pub(crate) fn left(&self) -> TimeLeft {
        let hold = self.max_hold.map(|end| end.since(self.clock.now()));
        TimeLeft { validity: self.guard.validity(), hold }
    }

    /// Whether `--max-hold` is what ends this lease. The last renewal requests no more than the rest of the longest
    /// hold, so the validity ends before the longest hold does, by the margin.
    fn ends_by_max_hold(&self, left: TimeLeft) -> bool {
        left.hold.is_some_and(|hold| hold <= left.validity + self.margin)
    }
}

/// The state of a run whose command has started.
pub(crate) struct Supervisor {
    pub(crate) lease: HeldLease,
    pub(crate) termination: Termination,
    pub(crate) command: CommandGroup,
    /// Child processes of this one that do not belong to the command.
    pub(crate) inherited: Vec<Pid>,
    pub(crate) watcher: Option<Watcher>,
    pub(crate) terminal: Option<Terminal>,
    pub(crate) signals: Signals,
    pub(crate) client: LockClient,
    pub(crate) options: RunOptions,
    pub(crate) output: Output,
    /// The last INT or QUIT that this process received and forwarded to the command.
    pub(crate) interrupt: Option<Signal>,
    /// Why the command got TERM or KILL.
    pub(crate) cause: Option<Failure>,
    /// When to reap orphans.
    pub(crate) reap_at: Option<Instant>,
}

impl Supervisor {
    /// Runs until the command has exited and the lock is released.
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
        let Self { lease, termination, client, mut signals, options, output, interrupt, cause, .. } = self;
        let lost = release(lease, &client, &options, &mut signals, output).await;
        descendants::reap_all();
        match (cause, lost) {
            (Some(failure), _) => return Err(failure),
            (None, Some(failure)) if options.on_lost == OnLost::Kill => return Err(failure),
            (None, Some(failure)) if !termination.has_warned() => output.warn(failure.exit.kind(), &failure.text),
            (None, _) => {}
        }
        Ok(exit(outcome, had_terminal, interrupt))
    }

    async fn wait_for_end(&mut self) -> Result<Outcome, Failure> {
        let mut killed = None;
        loop {
            // The deadline comes first, also after a pause: other events must not delay it.
            let left = self.lease.left();
            if let Some(action) = self.termination.next_action(left) {
                self.apply(action, left).await;
                killed = self.termination.was_killed().then(Instant::now);
            }
            self.maintain_watcher(left.until_end()).await;
            if self.reap_at.is_some_and(|at| at <= Instant::now()) {
                self.reap_at = None;
                self.family().reap_orphans();
            }
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
                // A stopped process handles TERM only after CONT.
                self.command.signal(Signal::CONT);
                let grace = humantime::format_duration(self.options.grace);
                self.output
                    .warn_in_background(exit.kind(), format!("{why}; the command got TERM, KILL follows in {grace}"));
                self.cause = Some(Failure::new(exit, format!("{why}; the command was ended")));
            }
            Action::Kill => {
                self.family().kill();
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

    /// Replaces a watcher that has exited or is stopped. The watcher kills the command at the end of the lease if this
    /// process is stopped or gets no processor time; a stopped watcher would not. The kernel reports its stop with
    /// SIGCHLD, like its exit.
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
        // The watcher exits by itself after the lease has ended.
        if left.is_zero() && self.options.on_lost == OnLost::Kill {
            self.watcher = None;
            return;
        }
        // Starting the new watcher must not delay this process beyond the end of the lease.
        let bound = if self.options.on_lost == OnLost::Kill { left / 2 } else { Duration::MAX };
        let replaced = tokio::time::timeout(bound, watcher.replace()).await;
        if let Err(error) = replaced.unwrap_or_else(|late| Err(late.into())) {
            self.watcher = None;
            let text = format!(
                "the watcher ended and cannot be replaced ({error}): if leasehold gets KILL, the command continues"
            );
            self.output.warn_in_background("fault", text);
        }
    }

    fn on_signal(&mut self, signal: Signal) {
        match signal {
            Signal::CHILD => _ = self.reap_at.get_or_insert_with(|| Instant::now() + REAP_INTERVAL),
            Signal::CONT => self.resume(),
            other => {
                if INTERRUPTS.contains(&other) {
                    self.interrupt = Some(other);
                }
                self.command.signal(other);
            }
        }
    }

    /// Stops this process after the command was stopped, so that the shell gets the terminal back.
    async fn on_stop(&mut self, signal: Signal) {
        let Some(terminal) = &mut self.terminal else { return };
        let wants_terminal = signal == Signal::TTIN || signal == Signal::TTOU;
        if wants_terminal && terminal.request_foreground(self.command.group()) {
            self.command.signal(Signal::CONT);
            return;
        }
        terminal.take_foreground();
        stop_own_group();
        // The kernel does not stop an orphaned process group, because no shell could continue it. Then Ctrl-Z has no
        // effect, as on a command without `leasehold`. A command that got STOP stays stopped.
        if self.signals.is_continued_within(CONTINUED_BOUND).await || signal == Signal::TSTP {
            self.resume();
        }
    }

    fn resume(&mut self) {
        // If the lease has ended during the stop, the command is killed and not continued first.
        if self.options.on_lost == OnLost::Kill && self.lease.left().until_end().is_zero() {
            return;
        }
        if let Some(terminal) = &mut self.terminal {
            terminal.give_foreground(self.command.group());
        }
        self.command.signal(Signal::CONT);
    }

    /// Every process that the command has started.
    fn family(&self) -> Family {
        let except = self.inherited.iter().copied().chain(self.watcher.as_ref().map(Watcher::id)).collect();
        Family { group: self.command.group(), roots: vec![getpid()], except }
    }

    /// Handles the exit of the command. After TERM, the processes that it leaves have until the end of the lease to
    /// exit.
    async fn finish(&mut self) {
        if self.termination.has_started() {
            self.command.reap();
            let mut told = Vec::new();
            while !self.termination.was_killed() && !self.family().is_gone() {
                // A shell that ends on TERM leaves what it started in another process group, as `timeout` is.
                self.family().term_orphans(&mut told);
                let left = self.lease.left();
                if let Some(action) = self.termination.next_action(left) {
                    self.apply(action, left).await;
                }
                tokio::time::sleep(POLL_INTERVAL.min(self.termination.sleep_time(left))).await;
            }
        }
        // The kernel gives the group's id to no other process until the command is reaped, so no other process can be
        // killed.
        self.watcher = None;
        self.command.reap();
    }
}

/// The exit of a run whose lease was not lost. If Ctrl-C ended the command, this process and its process group get the
/// signal too, as they would if the command shared their group: a shell ends a script at Ctrl-C only if the shell
/// itself got the signal and sees that the command died of it.
fn exit(outcome: Outcome, had_terminal: bool, interrupt: Option<Signal>) -> Exit {
    let by = INTERRUPTS.iter().copied().find(|signal| outcome == Outcome::Signal(signal.as_raw()));
    match by {
        Some(signal) if had_terminal => {
            // It fails only if no process is left in the group.
            let _ = kill_current_process_group(signal);
            Exit::Signal(signal.as_raw())
        }
        Some(signal) if interrupt == Some(signal) => Exit::Signal(signal.as_raw()),
        _ => outcome.exit(),
    }
}

/// Releases the lock. A release without a reply does not make the run fail, because the command has already exited: the
/// client retries it for a bounded time. If the lease was lost before, or may have been, another client may have held
/// the lock while the command ran. Then this returns the reason.
async fn release(
    lease: HeldLease,
    client: &LockClient,
    options: &RunOptions,
    signals: &mut Signals,
    output: Output,
) -> Option<Failure> {
    let HeldLease { guard, clock, min_hold, .. } = lease;
    let (name, begun) = (printable(guard.name().as_str()), Instant::now());
    let Err(error) = guard.release().await else {
        if let (Some(end), TtlScope::Session | TtlScope::Connection) = (min_hold, client.capabilities().ttl_scope) {
            let left = || format_duration_roughly(end.since(clock.now()) + Duration::from_secs(1));
            tokio::select! {
                () = outlast(end, &clock, client, options, &name, output) => {}
                () = leave(signals, &name, left, client, options, output) => {}
            }
        }
        return None;
    };
    if error.kind() == ErrorKind::Lost {
        let text = format!("lock `{name}` was lost before leasehold saw the command end");
        return Some(Failure::new(Exit::Lost, text));
    }
    let released = tokio::select! {
        released = tokio::time::timeout(RELEASE_BOUND, ended_by_client(client)) => released.ok(),
        // The user does not want to wait.
        _ = signals.next_termination() => None,
    };
    match released {
        Some(Ok(())) => None,
        Some(Err(_)) => {
            let text = format!(
                "lock `{name}` may have been lost before leasehold saw the command end: the store no longer has the \
                 lease, and did not confirm its release"
            );
            Some(Failure::new(Exit::Lost, text))
        }
        None => {
            // No renewal was sent after the release began.
            not_released(&name, &error, options.ttl.saturating_sub(begun.elapsed()), output);
            None
        }
    }
}

/// Resolves when the client, which repeats its releases in the background, has ended all leases.
///
/// # Errors
/// `Lost`: a release found no lease.
async fn ended_by_client(client: &LockClient) -> Result<(), Error> {
    loop {
        match client.shutdown().await {
            Ok(()) => return Ok(()),
            Err(lost) if lost.kind() == ErrorKind::Lost => return Err(lost),
            Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
}

fn not_released(name: &str, error: &Error, left: Duration, output: Output) {
    let (left, error_text) = (format_duration_roughly(left + Duration::from_secs(1)), with_causes(error));
    let text = format!(
        "lock `{name}` could not be released ({error_text}): it stays held until its lease ends, \
         in {left} at the latest"
    );
    output.warn(Exit::from(error.kind()).kind(), &text);
}

/// Waits until the end of the shortest hold, because a lease that ends with its process would end too early. The client
/// renews the lease meanwhile.
async fn outlast(
    end: Stamp,
    clock: &SystemClock,
    client: &LockClient,
    options: &RunOptions,
    name: &str,
    output: Output,
) {
    let mut line = LiveLine::default();
    loop {
        let left = end.since(clock.now());
        if left.is_zero() {
            break;
        }
        if output.is_interactive() {
            line.show(&format!("lock `{name}` stays held for {}, as --min-hold says", format_duration_roughly(left)));
        }
        tokio::time::sleep(left.min(HOLD_INTERVAL)).await;
    }
    // The client has begun to release the lock.
    if tokio::time::timeout(RELEASE_BOUND, ended_by_client(client)).await.is_err() {
        not_released(name, &Error::no_reply(), options.ttl, output);
    }
}

/// Resolves when signals have ended the wait for the shortest hold. Without this process, a lease of a session lasts
/// for its ttl, so after the first signal this only prints when the lock will be released.
async fn leave(
    signals: &mut Signals,
    name: &str,
    left: impl Fn() -> String,
    client: &LockClient,
    options: &RunOptions,
    output: Output,
) {
    let (mut signal, capabilities) = (signals.next_termination().await, client.capabilities());
    let kind = |signal: Signal| Exit::Signal(signal.as_raw()).kind();
    if capabilities.ttl_scope == TtlScope::Connection {
        return output
            .warn(kind(signal), &format!("lock `{name}` is released {} before the end of --min-hold", left()));
    }
    let lease = format_duration_roughly(options.ttl + capabilities.takeover_slack);
    output.warn(
        kind(signal),
        &format!(
            "lock `{name}` is released in {}, as --min-hold says; another signal leaves it held until its lease \
             ends, for up to {lease}",
            left()
        ),
    );
    signal = signals.next_termination().await;
    output.warn(kind(signal), &format!("lock `{name}` stays held until its lease ends, for up to {lease}"));
}

async fn ended(watcher: Option<&Watcher>) {
    match watcher {
        Some(watcher) => watcher.ended().await,
        None => std::future::pending().await,
    }
}
