//! A process that holds a lock: its events and its commands.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::ChildProcess;

/// An event of a `lock-holder`, one line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderLine {
    /// The time on the machine's clock, [`machine_now`], which all processes of the machine share.
    pub at_us: u64,
    /// The process id.
    pub pid: u32,
    /// What happened.
    #[serde(flatten)]
    pub event: HolderEvent,
}

/// What happened to a `lock-holder`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum HolderEvent {
    /// It starts to acquire the lock.
    Waiting {
        /// The lock.
        name: String,
    },
    /// It holds the lock.
    Acquired {
        /// The fencing token.
        token: u64,
        /// How long the lease is valid without a renewal.
        validity_ms: u64,
    },
    /// It checked its guard (command `check`).
    Checked {
        /// Whether the lock is held.
        held: bool,
        /// How long it stays valid without another renewal.
        validity_ms: u64,
    },
    /// It has raised the counter in the file while it held the lock.
    Counted {
        /// The new value.
        number: u64,
        /// When it last checked its guard, on the machine's clock: just before it wrote the value.
        checked_us: u64,
    },
    /// The store has accepted its write under the lease.
    Wrote {
        /// The fencing token.
        token: u64,
        /// What it wrote.
        text: String,
        /// The key of the list that contains it, as `token text`.
        key: String,
    },
    /// It was notified that the lease is lost, or detected that when it released.
    Lost {
        /// The fencing token.
        token: u64,
        /// The reason.
        reason: String,
    },
    /// It has released the lock, and the server has confirmed it.
    Released {
        /// The fencing token.
        token: u64,
        /// When release was called, on the machine's clock.
        called_us: u64,
    },
    /// It has dropped its guard: the release continues in the background.
    Dropped {
        /// The fencing token.
        token: u64,
        /// When the guard was dropped, on the machine's clock.
        called_us: u64,
    },
    /// It has leaked its guard: the keeper renews the lease while the process lives, and nothing releases it.
    Leaked {
        /// The fencing token.
        token: u64,
    },
    /// An operation failed.
    Failed {
        /// The operation: `connect`, `acquire`, `release`, `write`, `count`, `command`, …
        doing: String,
        /// The kind of the error.
        kind: String,
        /// Its text, with its causes.
        text: String,
    },
    /// The process ends.
    Exit {
        /// Its exit code.
        code: u8,
    },
}

impl HolderLine {
    /// The line of an event of this process that happens now.
    pub fn now(event: HolderEvent) -> Self {
        Self { at_us: micros(machine_now()), pid: std::process::id(), event }
    }
}

impl fmt::Display for HolderLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

/// A clock that all processes of a machine share and that never goes back.
///
/// # Panics
/// On a system without one.
pub fn machine_now() -> Duration {
    leasehold_core::backend::kit::time_since_boot().expect("this system has a clock since boot")
}

/// A time of [`machine_now`] in microseconds, as in the lines.
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A `lock-holder` in its own process. It is killed when this is dropped.
#[derive(Debug)]
pub struct LockHolder {
    process: ChildProcess,
    commands: ChildStdin,
    lines: Receiver<HolderLine>,
    seen: Vec<HolderLine>,
}

impl LockHolder {
    /// Starts the `lock-holder` at `program` with these arguments. It shares the standard error of this process.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start<A: AsRef<str>>(program: &str, arguments: &[A]) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments.iter().map(AsRef::as_ref)).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = ChildProcess::spawn(&mut command)?;
        let (Some(commands), Some(output), _) = process.take_pipes() else {
            return Err(io::Error::other("a lock holder's standard input and output are pipes"));
        };
        let (sender, lines) = channel();
        // The thread ends with the process, which then closes its end of the pipe.
        std::thread::Builder::new().name("lock-holder".into()).spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                match serde_json::from_str(&line) {
                    Ok(line) => {
                        if sender.send(line).is_err() {
                            return;
                        }
                    }
                    Err(error) => eprintln!("cannot read what a lock holder wrote ({error}): {line}"),
                }
            }
        })?;
        Ok(Self { process, commands, lines, seen: Vec::new() })
    }

    /// Sends it a command: `release`, `check`, …
    ///
    /// # Errors
    /// If it has ended.
    pub fn send(&mut self, command: &str) -> io::Result<()> {
        self.commands.write_all(format!("{command}\n").as_bytes())?;
        self.commands.flush()
    }

    /// Waits for the next line for which `select` returns a value, at most for `bound`. Lines before it are skipped.
    ///
    /// # Errors
    /// If there is no such line in time, or the process has ended. The error contains the other lines.
    pub fn next<T>(&mut self, bound: Duration, select: impl Fn(&HolderLine) -> Option<T>) -> io::Result<T> {
        let until = Instant::now() + bound;
        let first = self.seen.len();
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let found = select(&line);
                    self.seen.push(line);
                    if let Some(found) = found {
                        return Ok(found);
                    }
                }
                Err(why) => {
                    let why = match why {
                        RecvTimeoutError::Timeout => format!("not within {bound:?}"),
                        RecvTimeoutError::Disconnected => "the process has ended".to_owned(),
                    };
                    let events: Vec<String> = self.seen[first..].iter().map(ToString::to_string).collect();
                    let text = format!(
                        "lock holder {} did not report the event: {why}; its events are {events:#?}",
                        self.process.id()
                    );
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
            }
        }
    }

    /// Waits until it holds the lock. Returns the time of the grant on the machine's clock, and the fencing token.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn acquired(&mut self, bound: Duration) -> io::Result<(u64, u64)> {
        self.next(bound, |line| match line.event {
            HolderEvent::Acquired { token, .. } => Some((line.at_us, token)),
            _ => None,
        })
    }

    /// Waits until it is notified of the loss. Returns the time of that on the machine's clock, and the reason.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn lost(&mut self, bound: Duration) -> io::Result<(u64, String)> {
        self.next(bound, |line| match &line.event {
            HolderEvent::Lost { reason, .. } => Some((line.at_us, reason.clone())),
            _ => None,
        })
    }

    /// Waits until it has ended, at most for `bound`, and reads its last lines.
    ///
    /// # Errors
    /// If it has not ended by then.
    pub fn wait(&mut self, bound: Duration) -> io::Result<ExitStatus> {
        let exit = match self.process.wait(bound) {
            Ok(exit) => exit,
            Err(error) => {
                self.seen.extend(self.lines.try_iter());
                let last: Vec<String> = self.seen.iter().rev().take(3).map(ToString::to_string).collect();
                return Err(io::Error::new(error.kind(), format!("{error}\nthe last that it events: {last:#?}")));
            }
        };
        self.seen.extend(self.lines.iter());
        Ok(exit)
    }

    /// Its events that were read so far, in order.
    pub fn events(&self) -> &[HolderLine] {
        &self.seen
    }

    /// The process, to kill, pause and resume it.
    pub fn process(&mut self) -> &mut ChildProcess {
        &mut self.process
    }
}
