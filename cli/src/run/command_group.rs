//! The command that runs under the lock, as a process group of its own.

use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, test_kill_process_group, waitid};

use crate::exit::Exit;
use crate::run::hidden;

/// What became of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateChange {
    /// It was stopped by a signal.
    Stopped(Signal),
    /// It has ended.
    Ended(Outcome),
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// By itself, with this code.
    Code(u8),
    /// By a signal.
    Signal(i32),
}

impl Outcome {
    /// What the run ends with, when nothing else went wrong.
    pub(crate) fn exit(self) -> Exit {
        match self {
            Self::Code(code) => Exit::Command(code),
            Self::Signal(signal) => Exit::from_signal(signal),
        }
    }
}

/// A command in a process group of its own. It is there before it runs: a copy of this program waits in its place for the word
/// to begin, so that the watcher knows the group before anything in it can happen.
#[derive(Debug)]
pub(crate) struct CommandGroup {
    child: Child,
    group: Pid,
    start_socket: Option<UnixStream>,
}

impl CommandGroup {
    /// Makes the group. The command does not run until [`start`](Self::start); when this process ends before, it never does.
    pub(crate) fn prepare(command: &[OsString], env: &[(&str, String)]) -> io::Result<Self> {
        let (start_socket, stdin) = UnixStream::pair()?;
        let mut process = hidden::own_program()?;
        process.arg(hidden::LAUNCHER).args(command).envs(env.iter().map(|(name, value)| (name, value)));
        let child = process.stdin(Stdio::from(OwnedFd::from(stdin))).process_group(0).spawn()?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let group = group.ok_or_else(|| io::Error::other("the process has no usable id"))?;
        Ok(Self { child, group, start_socket: Some(start_socket) })
    }

    /// Its process group, whose number is also the process id of the command.
    pub(crate) fn group(&self) -> Pid {
        self.group
    }

    /// Lets the command run: it gets the standard input, which is also the word to begin.
    pub(crate) fn start(&mut self) -> io::Result<()> {
        let Some(start_socket) = self.start_socket.take() else { return Ok(()) };
        let stdin = io::stdin();
        let fds = [stdin.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        sendmsg(&start_socket, &[IoSlice::new(b"!")], &mut control, SendFlags::empty())?;
        Ok(())
    }

    /// What has become of it since the last look. The end is told again at each look, until it is [reaped](Self::reap).
    pub(crate) fn poll(&self) -> io::Result<Option<StateChange>> {
        // NOWAIT: as long as the end was not taken, the number of the group is nobody else's. One question for both: who has ended
        // is no child any more for a question about stops alone.
        let either = WaitIdOptions::EXITED | WaitIdOptions::STOPPED;
        let Some(status) = waitid(WaitId::Pid(self.group), either | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT)?
        else {
            return Ok(None);
        };
        if let Some(signal) = status.stopping_signal() {
            // A stop is taken, so that it is told once. Who goes on or ends in this moment has none to take.
            let _ = waitid(WaitId::Pid(self.group), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
            return Ok(Signal::from_named_raw(signal).map(StateChange::Stopped));
        }
        let signal = status.terminating_signal().map(Outcome::Signal);
        let code = status.exit_status().map(|code| Outcome::Code(u8::try_from(code & 0xff).unwrap_or(u8::MAX)));
        Ok(signal.or(code).map(StateChange::Ended))
    }

    /// Sends a signal to the whole group. One that is gone needs none.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.group, signal);
    }

    /// Takes the end of the command, after [`poll`](Self::poll) has shown it.
    pub(crate) fn reap(&mut self) {
        let _ = self.child.wait();
    }

    /// Whether nobody who runs is left in the group. Only after [`reap`](Self::reap).
    pub(crate) fn is_empty(&self) -> bool {
        test_kill_process_group(self.group).is_err() || only_zombies(self.group)
    }
}

/// Whether everybody of a group has ended, and only waits for a parent that does not look: in a container there may be nobody
/// who looks after the children of others. Where the system does not tell, they count as running.
fn only_zombies(group: Pid) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else { return false };
    let (mut seen, group) = (false, group.as_raw_nonzero().to_string());
    for process in processes.flatten() {
        let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        // After the name, which may hold anything: state, parent, group.
        let mut fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ');
        let (state, of) = (fields.next(), fields.nth(1));
        if of == Some(&group) {
            seen = true;
            if !matches!(state, Some("Z" | "X")) {
                return false;
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_end_is_reported_whenever_it_comes() {
        for _ in 0..100 {
            let child = Command::new("true").process_group(0).spawn().unwrap();
            let group = Pid::from_child(&child);
            let mut command = CommandGroup { child, group, start_socket: None };
            let change = loop {
                if let Some(change) = command.poll().unwrap() {
                    break change;
                }
            };
            assert_eq!(change, StateChange::Ended(Outcome::Code(0)));
            assert_eq!(command.poll().unwrap(), Some(change), "it is told until it is taken");
            command.reap();
        }
    }
}
