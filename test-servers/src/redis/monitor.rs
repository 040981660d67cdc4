//! The commands that clients send to a server.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use super::RedisServer;

/// How long a command may take from the server to the monitor.
const BOUND: Duration = Duration::from_secs(5);

/// Counts the commands that clients send (`MONITOR`), each once. Calls of scripts do not count, nor commands of the
/// harness. The statistics of the server do not distinguish scripts.
#[derive(Debug)]
pub struct Monitor {
    seen: Arc<AtomicU64>,
    marks: Receiver<u64>,
    next_mark: u64,
    stream: TcpStream,
}

impl Monitor {
    pub(super) fn start(server: &RedisServer, filter: fn(&str) -> bool) -> io::Result<Self> {
        let mut connection = server.side()?;
        connection.command(&["MONITOR"])?;
        let stream = connection.endless()?;
        let seen = Arc::<AtomicU64>::default();
        let (sender, marks) = channel();
        std::thread::Builder::new().name("monitor".into()).spawn({
            let seen = seen.clone();
            move || {
                while let Ok(line) = connection.line() {
                    // `+time [database address] "COMMAND" "argument" …`, with `lua` for the address of a script.
                    let Some((from, command)) = line.split_once("] ") else { continue };
                    if let Some(mark) = mark_of(command) {
                        if sender.send(mark).is_err() {
                            return;
                        }
                    } else if !from.ends_with(" lua") && filter(command) {
                        seen.fetch_add(1, Ordering::AcqRel);
                    }
                }
            }
        })?;
        Ok(Self { seen, marks, next_mark: 1, stream })
    }

    /// The number of commands that the server has processed since the monitor was started.
    ///
    /// # Errors
    /// If the server has ended, or does not reply within five seconds.
    pub fn count(&mut self, server: &RedisServer) -> io::Result<u64> {
        let mark = self.next_mark;
        self.next_mark += 1;
        server.command(&["ECHO", &format!("{MARK}{mark}")])?;
        loop {
            match self.marks.recv_timeout(BOUND) {
                Ok(seen) if seen == mark => break,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return Err(io::ErrorKind::TimedOut.into()),
                Err(RecvTimeoutError::Disconnected) => return Err(io::ErrorKind::ConnectionAborted.into()),
            }
        }
        Ok(self.seen.load(Ordering::Acquire))
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // The thread reads without a timeout, and ends with the connection.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

const MARK: &str = "conformance mark ";

fn mark_of(command: &str) -> Option<u64> {
    command.strip_prefix("\"ECHO\" \"")?.strip_prefix(MARK)?.strip_suffix('"')?.parse().ok()
}
