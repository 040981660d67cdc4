//! The watcher: kills the command when the run cannot.
//!
//! A run that gets KILL cannot clean up, and a run that is stopped cannot end its command. So `run` starts a copy of
//! this program in its own session. The copy reads orders from a pipe whose other end only the run has:
//!
//! - `group 1234`: kill the process group 1234, and all that its first process started, when the pipe closes;
//! - `deadline 987654321`: kill them also when the clock since boot passes that many nanoseconds.
//!
//! The run kills the watcher when the command has ended.
//!
//! The watcher reads what the run has written even if the run is dead by then. The run sends the group before the
//! command starts, so the command never runs without a watcher.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, getpid, getppid, setsid};

use crate::exit::Exit;
use crate::run::clock::Deadline;
use crate::run::descendants::Family;
use crate::run::signals::block_all;

/// The longest sleep before a deadline: timers stop while the machine is suspended, the clock does not.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);

/// Runs until it has killed the command. The arguments are child processes of the run that do not belong to the
/// command.
pub(crate) fn watcher_process(arguments: &[OsString]) -> ExitCode {
    let inherited = arguments.iter().filter_map(|id| Pid::from_raw(id.to_str()?.parse().ok()?)).collect();
    // The run is alive, because it waits until this process is ready.
    let orders = Orders { run: getppid(), inherited, ..Orders::default() };
    match begin().and_then(|()| follow(orders)) {
        Ok(()) => Exit::Success.into(),
        Err(_) => Exit::Fault.into(),
    }
}

/// Leaves the terminal, blocks all signals, then reports to the run that it is ready.
fn begin() -> io::Result<()> {
    block_all()?;
    setsid()?;
    // Another name than the run's: `killall -9 leasehold` must not hit both.
    #[cfg(target_os = "linux")]
    rustix::thread::set_name(c"lockwatch")?;
    io::stdout().write_all(b"!")?;
    io::stdout().flush()
}

fn follow(mut orders: Orders) -> io::Result<()> {
    let stdin = io::stdin();
    loop {
        if orders.is_overdue() {
            orders.kill();
            return Ok(());
        }
        let sleep = orders.sleep().and_then(|sleep| Timespec::try_from(sleep).ok());
        match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], sleep.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => {
                orders.kill();
                return Err(error.into());
            }
        }
        let mut bytes = [0; 512];
        match rustix::io::read(&stdin, &mut bytes) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(read @ 1..) => orders.read(&bytes[..read]),
            // The run has ended, or is about to.
            Ok(0) | Err(_) => {
                orders.outlive_run();
                orders.kill();
                return Ok(());
            }
        }
    }
}

/// The orders that have arrived so far.
#[derive(Debug, Default)]
struct Orders {
    unread: Vec<u8>,
    group: Option<Pid>,
    deadline: Option<Deadline>,
    run: Option<Pid>,
    inherited: Vec<Pid>,
}

impl Orders {
    fn read(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
        while let Some(end) = self.unread.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.unread.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]);
            match line.split_once(' ') {
                Some(("group", group)) => self.group = group.parse().ok().and_then(Pid::from_raw),
                Some(("deadline", deadline)) => self.deadline = deadline.parse().ok(),
                _ => {}
            }
        }
    }

    fn is_overdue(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline.left().is_zero())
    }

    fn sleep(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.left().min(LONGEST_SLEEP))
    }

    /// Waits until the run is not the parent any more, which is soon after it has closed its files. Until then, the
    /// kernel may find the group of the command stopped, and send it HUP and CONT. That would end the first process
    /// during the search for its descendants, which then would not be found.
    fn outlive_run(&self) {
        let until = Deadline::after(LONGEST_SLEEP);
        while getppid() == self.run && !until.left().is_zero() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn kill(&self) {
        let Some(group) = self.group else { return };
        // A dead run is not the parent any more, and another process may have its id.
        let run = self.run.filter(|_| getppid() == self.run);
        let except = self.inherited.iter().copied().chain([getpid()]).collect();
        Family { group, roots: [group].into_iter().chain(run).collect(), except }.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_arrive_in_pieces_and_the_last_deadline_counts() {
        let mut orders = Orders::default();
        assert_eq!(orders.sleep(), None);
        orders.read(b"group 12");
        assert_eq!(orders.group, None);
        orders.read(b"34\ndeadline 1\n");
        assert_eq!(orders.group, Pid::from_raw(1234));
        assert!(orders.is_overdue());
        let later = Deadline::after(Duration::from_secs(60));
        orders.read(format!("deadline {later}\n").as_bytes());
        assert!(!orders.is_overdue());
        assert_eq!(orders.sleep(), Some(LONGEST_SLEEP));
    }
}
