//! The watcher: ends the command when the run cannot do it any more.
//!
//! A run that is killed with −9 tells nobody, and a run that is stopped ends nothing. So a copy of this program stands beside it,
//! in a session of its own, and reads orders from a pipe whose other end only the run has:
//!
//! - `guard 1234`: kill the process group 1234 when the pipe ends;
//! - `until 987654321`: kill it also when the machine's clock since boot passes that many nanoseconds;
//! - `done`: leave it alone.
//!
//! What was written is read also when the writer is dead, so there is no moment at which the group runs unwatched: the run
//! gives the order before the command begins.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group, setsid};

use crate::exit::Exit;
use crate::run::clock::Deadline;
use crate::run::signals::block_all;

/// The longest sleep before a deadline: timers stand still while the machine is suspended, its clock does not.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);

/// Watches until it is told `done` or has killed.
pub(crate) fn watch() -> ExitCode {
    match begin().and_then(|()| obey()) {
        Ok(()) => Exit::Fine.into(),
        Err(_) => Exit::Fault.into(),
    }
}

/// Out of reach of the terminal and of polite signals, then tells the run that it is ready.
fn begin() -> io::Result<()> {
    block_all()?;
    setsid()?;
    // Another name than the run's: `killall -9 leasehold` must not hit both.
    #[cfg(target_os = "linux")]
    rustix::thread::set_name(c"lockwatch")?;
    io::stdout().write_all(b"!")?;
    io::stdout().flush()
}

fn obey() -> io::Result<()> {
    let stdin = io::stdin();
    let mut orders = Orders::default();
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
            Ok(read @ 1..) => {
                if orders.take(&bytes[..read]) == Word::Done {
                    return Ok(());
                }
            }
            // The run has ended without the word.
            Ok(0) | Err(_) => {
                orders.kill();
                return Ok(());
            }
        }
    }
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    GoOn,
    Done,
}

/// What was ordered so far.
#[derive(Debug, Default)]
struct Orders {
    unread: Vec<u8>,
    group: Option<Pid>,
    until: Option<Deadline>,
}

impl Orders {
    fn take(&mut self, bytes: &[u8]) -> Word {
        self.unread.extend_from_slice(bytes);
        while let Some(end) = self.unread.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.unread.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]);
            match line.split_once(' ') {
                Some(("guard", group)) => self.group = group.parse().ok().and_then(Pid::from_raw),
                Some(("until", deadline)) => self.until = deadline.parse().ok(),
                _ if line == "done" => return Word::Done,
                _ => {}
            }
        }
        Word::GoOn
    }

    fn is_overdue(&self) -> bool {
        self.until.is_some_and(|until| until.left().is_zero())
    }

    fn sleep(&self) -> Option<Duration> {
        self.until.map(|until| until.left().min(LONGEST_SLEEP))
    }

    fn kill(&self) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_come_in_pieces_and_the_last_deadline_counts() {
        let mut orders = Orders::default();
        assert_eq!(orders.sleep(), None);
        assert_eq!(orders.take(b"guard 12"), Word::GoOn);
        assert_eq!(orders.group, None);
        assert_eq!(orders.take(b"34\nuntil 1\n"), Word::GoOn);
        assert_eq!(orders.group, Pid::from_raw(1234));
        assert!(orders.is_overdue());
        let later = Deadline::after(Duration::from_secs(60));
        assert_eq!(orders.take(format!("until {later}\n").as_bytes()), Word::GoOn);
        assert!(!orders.is_overdue());
        assert_eq!(orders.sleep(), Some(LONGEST_SLEEP));
        assert_eq!(orders.take(b"done\nguard 1\n"), Word::Done);
    }
}
