//! The signals that a run listens to.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use nix::sys::signal::SigSet;
use rustix::process::{Pid, Resource, Rlimit, Signal, getpid, getrlimit, kill_current_process_group, setrlimit};
use tokio::signal::unix::{self, SignalKind};

/// What is handed on to the command. TSTP comes only while a command runs.
const FORWARDED: &[Signal] =
    &[Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::WINCH, Signal::CONT];

/// The signals that have come and were not asked for yet.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    ignored: u64,
}

impl Signals {
    /// Listens from now on. A signal that this process was started to ignore (`nohup`, a background job of a script)
    /// stays ignored: the command inherits that.
    pub(crate) fn listen() -> io::Result<Self> {
        let mut signals = Self { streams: Vec::new(), ignored: ignored() };
        signals.add(Signal::CHILD)?;
        for &signal in FORWARDED {
            signals.add(signal)?;
        }
        Ok(signals)
    }

    /// Listens to TSTP too, which stops this process until then.
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

    /// Whether CONT comes within a time.
    pub(crate) async fn is_continued_within(&mut self, bound: Duration) -> bool {
        let Some((_, stream)) = self.streams.iter_mut().find(|(signal, _)| *signal == Signal::CONT) else {
            return false;
        };
        matches!(tokio::time::timeout(bound, stream.recv()).await, Ok(Some(())))
    }
}

/// Which signals this process was started to ignore, signal n as bit n − 1. Only Linux tells without unsafe code.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// From now on this thread may write to the terminal and move its foreground also from the background: without this
/// SIGTTOU would stop it in the middle of ending a command.
pub(crate) fn block_ttou() -> io::Result<()> {
    Ok(ttou().thread_block()?)
}

/// Undoes [`block_ttou`], for the command.
pub(crate) fn unblock_ttou() -> io::Result<()> {
    Ok(ttou().thread_unblock()?)
}

/// Stops the whole process group of this process, as its shell expects when a job is stopped. Comes back when it was continued,
/// or at once where the system sees nobody who could continue it: then the signal has no effect.
///
/// TTOU and not TSTP, which this process listens to and which would come back to it.
pub(crate) fn stop_own_group() {
    // Each can fail only if the system has no such signal.
    let _ = unblock_ttou();
    let _ = kill_current_process_group(Signal::TTOU);
    let _ = block_ttou();
}

fn ttou() -> SigSet {
    let mut set = SigSet::empty();
    set.add(nix::sys::signal::Signal::SIGTTOU);
    set
}

/// Ends this process by a signal that it has listened to, as if it had not. Comes back where that is not possible.
pub(crate) fn exit_by_signal(signal: i32) {
    // The first process of a container is ended by no signal.
    if getpid() == Pid::INIT {
        return;
    }
    // The core of this process is of no use to whoever wants that of the command.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: getrlimit(Resource::Core).maximum });
    let _ = signal_hook::low_level::emulate_default_handler(signal);
}

/// Blocks everything that can be blocked, for good.
pub(crate) fn block_all() -> io::Result<()> {
    Ok(SigSet::all().thread_block()?)
}
