//! The signals that a run handles.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use nix::sys::signal::SigSet;
use rustix::process::{Pid, Resource, Rlimit, Signal, getpid, getrlimit, kill_current_process_group, setrlimit};
use tokio::signal::unix::{self, SignalKind};

/// The signals that are forwarded to the command. TSTP is handled only while a command runs.
const FORWARDED: &[Signal] =
    &[Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::WINCH, Signal::CONT];

/// Receives signals.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    ignored: u64,
}

impl Signals {
    /// Installs the handlers. A signal that this process was started to ignore (`nohup`, a background job of a script)
    /// stays ignored, and the command inherits that.
    pub(crate) fn listen() -> io::Result<Self> {
        let mut signals = Self { streams: Vec::new(), ignored: ignored() };
        signals.add(Signal::CHILD)?;
        for &signal in FORWARDED {
            signals.add(signal)?;
        }
        Ok(signals)
    }

    /// Handles TSTP too. Before this call TSTP stops this process.
    pub(crate) fn listen_for_stop(&mut self) -> io::Result<()> {
        self.add(Signal::TSTP)
    }

    fn add(&mut self, signal: Signal) -> io::Result<()> {
        let number = signal.as_raw();
        if signal == Signal::CHILD || self.ignored & (1 << (number - 1)) == 0 {
            self.streams.push((signal, unix::signal(SignalKind::from_raw(number))?));
        }
        Ok(())
    }

    /// The next signal. Cancel safe.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            for (signal, stream) in &mut self.streams {
                if let Poll::Ready(Some(())) = stream.poll_recv(cx) {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next signal that asks this process to end. Others are dropped.
    pub(crate) async fn next_termination(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT].contains(&signal) {
                return signal;
            }
        }
    }

    /// Whether CONT arrives within `bound`.
    pub(crate) async fn is_continued_within(&mut self, bound: Duration) -> bool {
        let Some((_, stream)) = self.streams.iter_mut().find(|(signal, _)| *signal == Signal::CONT) else {
            return false;
        };
        matches!(tokio::time::timeout(bound, stream.recv()).await, Ok(Some(())))
    }
}

/// The signals that this process was started to ignore, signal n as bit n − 1. Only Linux shows them without unsafe
/// code.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Lets this thread write to the terminal and change its foreground process group from the background. Otherwise
/// SIGTTOU could stop it while it ends a command.
pub(crate) fn block_ttou() -> io::Result<()> {
    Ok(ttou().thread_block()?)
}

/// Undoes [`block_ttou`], for the command.
pub(crate) fn unblock_ttou() -> io::Result<()> {
    Ok(ttou().thread_unblock()?)
}

/// Stops the process group of this process, as a shell expects of a job. Returns after CONT, or at once if the group is
/// orphaned: then the kernel ignores the signal.
///
/// It sends TTOU, because this process handles TSTP itself.
pub(crate) fn stop_own_group() {
    // These calls fail only for a signal that the system does not have.
    let _ = unblock_ttou();
    let _ = kill_current_process_group(Signal::TTOU);
    let _ = block_ttou();
}

fn ttou() -> SigSet {
    let mut set = SigSet::empty();
    set.add(nix::sys::signal::Signal::SIGTTOU);
    set
}

/// Ends this process by a signal that it handles, with the signal's default action. Returns if that is impossible.
pub(crate) fn exit_by_signal(signal: i32) {
    // The kernel ignores it for the first process of a container.
    if getpid() == Pid::INIT {
        return;
    }
    // A core dump of this process would replace the useful one of the command.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: getrlimit(Resource::Core).maximum });
    let _ = signal_hook::low_level::emulate_default_handler(signal);
}

/// Blocks every signal that can be blocked.
pub(crate) fn block_all() -> io::Result<()> {
    Ok(SigSet::all().thread_block()?)
}
