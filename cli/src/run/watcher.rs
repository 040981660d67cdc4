//! The watcher as the run sees it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use tokio::net::unix::pipe;

use crate::run::clock::Deadline;
use crate::run::hidden;

/// How long a watcher may take to start. It usually takes 2 ms, while the client connects.
const START_BOUND: Duration = Duration::from_secs(10);

/// A later deadline is sent if it differs by at least this. A smaller difference comes from reading the clock twice.
const NOISE: Duration = Duration::from_millis(5);

/// A process that ends the command when this one is killed or stopped, until it is dropped. See
/// [`watcher_process`](super::watcher_process).
#[derive(Debug)]
pub(crate) struct Watcher {
    process: Child,
    orders: OwnedFd,
    /// Closes when the watcher exits.
    stdout: pipe::Receiver,
    group: Option<Pid>,
    deadline: Option<Deadline>,
    /// Child processes of the run that do not belong to the command.
    inherited: Vec<Pid>,
}

impl Watcher {
    /// Starts the process, which is not ready yet.
    pub(crate) fn start(inherited: Vec<Pid>) -> io::Result<Self> {
        let mut program = hidden::own_program()?;
        program.arg0("lockwatch").arg(hidden::WATCHER).current_dir("/");
        program.args(inherited.iter().map(|id| id.as_raw_nonzero().to_string()));
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = program.spawn()?;
        let (Some(orders), Some(stdout)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(io::Error::other("the watcher has no pipes"));
        };
        let orders = OwnedFd::from(orders);
        // A stopped watcher must not block the run.
        rustix::io::ioctl_fionbio(&orders, true)?;
        let stdout = pipe::Receiver::from_owned_fd(stdout.into())?;
        Ok(Self { process, orders, stdout, group: None, deadline: None, inherited })
    }

    /// Waits until the watcher has blocked all signals and has its own session.
    pub(crate) async fn ready(&mut self) -> io::Result<()> {
        match tokio::time::timeout(START_BOUND, self.read()).await {
            Ok(Ok(1..)) => Ok(()),
            Ok(Ok(0)) => Err(io::Error::other("it ended before it was ready")),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::Error::other("it was not ready in time")),
        }
    }

    /// Returns when the watcher has exited. Cancel safe.
    pub(crate) async fn ended(&self) {
        while let Ok(1..) = self.read().await {}
    }

    /// Whether it is stopped: then it would not notice the end of this process.
    pub(crate) fn is_stopped(&self) -> bool {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.id()), options);
        status.is_ok_and(|status| status.is_some_and(|status| status.stopped()))
    }

    async fn read(&self) -> io::Result<usize> {
        loop {
            self.stdout.readable().await?;
            match self.stdout.try_read(&mut [0; 8]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    }

    /// Its process id.
    pub(crate) fn id(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// The child processes of this one that do not belong to the command.
    pub(crate) fn inherited(&self) -> &[Pid] {
        &self.inherited
    }

    /// Makes it kill the command, and all that the command started, when this process dies.
    pub(crate) fn set_group(&mut self, group: Pid) -> io::Result<()> {
        self.group = Some(group);
        self.order(&format!("group {}\n", group.as_raw_nonzero()))
    }

    /// Makes it kill them after `left`, unless it gets a later deadline.
    pub(crate) fn set_deadline(&mut self, left: Duration) -> io::Result<()> {
        let deadline = Deadline::after(left);
        if self.deadline.is_some_and(|sent| deadline.left().saturating_sub(sent.left()) < NOISE) {
            return Ok(());
        }
        self.deadline = Some(deadline);
        self.order(&format!("deadline {deadline}\n"))
    }

    /// Starts another watcher in its place, with the same group and without a deadline.
    pub(crate) async fn replace(&mut self) -> io::Result<()> {
        let mut other = Self::start(self.inherited.clone())?;
        other.ready().await?;
        if let Some(group) = self.group {
            other.set_group(group)?;
        }
        *self = other;
        Ok(())
    }

    fn order(&self, line: &str) -> io::Result<()> {
        // A pipe takes a short line whole or not at all.
        Ok(rustix::io::write(&self.orders, line.as_bytes()).map(|_| ())?)
    }
}

impl Drop for Watcher {
    /// Kills the watcher before its pipe closes, which would make it kill the group, and reaps it, because the first
    /// process of a container may reap nothing.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
