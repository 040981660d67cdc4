//! The command, in its own process group.

use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::exit::Exit;
use crate::run::hidden;

/// A change in the state of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateChange {
    /// It was stopped by a signal.
    Stopped(Signal),
    /// It has exited.
    Ended(Outcome),
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It exited with this code.
    Code(u8),
    /// A signal ended it.
    Signal(i32),
}

impl Outcome {
    /// The exit of the run, if the lease was not lost.
    pub(crate) fn exit(self) -> Exit {
        match self {
            Self::Code(code) => Exit::Command(code),
            Self::Signal(signal) => Exit::from_signal(signal),
        }
    }
}

/// The command in its own process group. The group exists before the command runs: a copy of this program, the
/// launcher, waits in it for the start message, so that the watcher knows the group before the command can do anything.
#[derive(Debug)]
pub(crate) struct CommandGroup {
    child: Child,
    group: Pid,
    start_socket: Option<UnixStream>,
}

impl CommandGroup {
    /// Creates the group. The command runs after [`start`](Self::start). If this process dies before that, the command
    /// never runs.
    pub(crate) fn prepare(command: &[OsString], env: &[(&str, String)]) -> io::Result<Self> {
        let (start_socket, stdin) = UnixStream::pair()?;
        let mut process = hidden::own_program()?;
        process.arg(hidden::LAUNCHER).args(command).envs(env.iter().map(|(name, value)| (name, value)));
        let child = process.stdin(Stdio::from(OwnedFd::from(stdin))).process_group(0).spawn()?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let group = group.ok_or_else(|| io::Error::other("the process has no usable id"))?;
        Ok(Self { child, group, start_socket: Some(start_socket) })
    }

    /// The process group. Its id is also the process id of the command.
    pub(crate) fn group(&self) -> Pid {
        self.group
    }

    /// Starts the command. The start message carries its standard input.
    pub(crate) fn start(&mut self) -> io::Result<()> {
        let Some(start_socket) = &self.start_socket else { return Ok(()) };
        let stdin = io::stdin();
        let fds = [stdin.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        sendmsg(start_socket, &[IoSlice::new(b"!")], &mut control, SendFlags::empty())?;
        self.start_socket = None;
        Ok(())
    }

    /// What has changed since the last call. Returns the exit at each call until the command is [reaped](Self::reap).
    pub(crate) fn poll(&self) -> io::Result<Option<StateChange>> {
        // With NOWAIT the command stays a zombie, so no other process gets the group's id. One call asks for stops and
        // exits: after the exit, a call that asks for stops alone fails with ECHILD.
        let either = WaitIdOptions::EXITED | WaitIdOptions::STOPPED;
        let Some(status) = waitid(WaitId::Pid(self.group), either | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT)?
        else {
            return Ok(None);
        };
        if let Some(signal) = status.stopping_signal() {
            // Takes the stop, so that it is returned once. There is no stop left if the command has just been continued
            // or has exited.
            let _ = waitid(WaitId::Pid(self.group), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
            return Ok(Signal::from_named_raw(signal).map(StateChange::Stopped));
        }
        let signal = status.terminating_signal().map(Outcome::Signal);
        let code = status.exit_status().map(|code| Outcome::Code(u8::try_from(code & 0xff).unwrap_or(u8::MAX)));
        Ok(signal.or(code).map(StateChange::Ended))
    }

    /// Sends a signal to the group. An empty group is not an error.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.group, signal);
    }

    /// Reaps the command after [`poll`](Self::poll) has returned its exit.
    pub(crate) fn reap(&mut self) {
        let _ = self.child.wait();
    }
}

impl Drop for CommandGroup {
    /// Reaps a launcher that was never told to start the command.
    fn drop(&mut self) {
        if self.start_socket.is_some() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
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
