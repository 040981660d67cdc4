//! Writes results to standard output and messages to standard error.

use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

use crate::exit::{Exit, Failure};

/// Closes when the last warning has been written on its thread.
static BACKGROUND_WARNING: Mutex<Option<Receiver<()>>> = Mutex::new(None);

/// How long the final message waits for that.
const BACKGROUND_BOUND: Duration = Duration::from_secs(1);

/// How output is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
}

/// A message on standard error, with `--json`.
#[derive(Serialize)]
struct Message<'a> {
    /// `error` ends the command, `warning` and `info` do not.
    level: &'static str,
    /// For errors, the [kind](Exit::kind) of the exit.
    kind: &'static str,
    message: &'a str,
    /// The exit code, for errors.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<u8>,
}

impl Output {
    pub(crate) const fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether results are for scripts.
    pub(crate) const fn json(self) -> bool {
        self.json
    }

    /// Whether standard error is a terminal, so that progress is shown.
    pub(crate) fn is_interactive(self) -> bool {
        !self.json && std::io::stderr().is_terminal()
    }

    /// Writes a result as one line of JSON, or as text.
    ///
    /// # Errors
    /// It cannot be written, as on a full disk.
    pub(crate) fn result<T: Serialize>(self, result: &T, to_text: impl FnOnce() -> String) -> Result<Reader, Failure> {
        let text = if self.json { json(result) } else { to_text() };
        write_out(&format!("{}\n", text.trim_end_matches('\n')))
    }

    /// Writes why the command ends, as the last line.
    pub(crate) fn failure(self, failure: &Failure) {
        let warning = BACKGROUND_WARNING.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(warning) = warning {
            // Continues when the warning is written, and also if that takes too long.
            let _ = warning.recv_timeout(BACKGROUND_BOUND);
        }
        write_err(&self.error_line(failure));
    }

    /// Writes a warning on another thread: a paused terminal (Ctrl-S) or a full pipe must not delay a deadline.
    pub(crate) fn warn_in_background(self, kind: &'static str, text: impl Into<String>) {
        let line = self.warning_line(kind, &text.into());
        let (writing, written) = channel();
        let write = move || {
            write_err(&line);
            drop(writing);
        };
        // If no thread can be started, the warning is dropped, which is better than a missed deadline.
        let _ = std::thread::Builder::new().name("message".into()).spawn(write);
        *BACKGROUND_WARNING.lock().unwrap_or_else(PoisonError::into_inner) = Some(written);
    }

    /// Writes an informational message.
    pub(crate) fn info(self, kind: &'static str, text: &str) {
        let message = Message { level: "info", kind, message: text, exit_code: None };
        write_err(&if self.json { json(&message) } else { format!("leasehold: {text}") });
    }

    /// Writes a warning.
    pub(crate) fn warn(self, kind: &'static str, text: &str) {
        write_err(&self.warning_line(kind, text));
    }

    fn error_line(self, Failure { exit, text }: &Failure) -> String {
        let message = Message { level: "error", kind: exit.kind(), message: text, exit_code: Some(exit.code()) };
        if self.json { json(&message) } else { format!("leasehold: {text}") }
    }

    fn warning_line(self, kind: &'static str, text: &str) -> String {
        let message = Message { level: "warning", kind, message: text, exit_code: None };
        if self.json { json(&message) } else { format!("leasehold: warning: {text}") }
    }
}

/// Serializes a type of this crate, which cannot fail.
fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| format!("{{\"level\":\"error\",\"message\":\"{error}\"}}"))
}

/// The reader of standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// It has received the text.
    Present,
    /// It has closed the pipe, as `head` does after its last line. That is not an error.
    Gone,
}

/// Writes to standard output.
///
/// # Errors
/// It cannot be written, as on a full disk.
pub(crate) fn write_out(text: &str) -> Result<Reader, Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(Reader::Present),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(Failure::fault("cannot write to standard output", error)),
    }
}

/// Resolves when the reader of standard output has closed the pipe. A command that writes rarely would otherwise notice
/// only at its next write. Never resolves if standard output is a file.
///
/// # Cancel safety
/// Reads and writes nothing.
pub(crate) async fn reader_gone() {
    #[cfg(unix)]
    {
        use rustix::event::{PollFd, PollFlags, poll};
        // Requests no event: errors are always reported, and a pipe without a reader reports one.
        let watch = || loop {
            match poll(&mut [PollFd::new(&std::io::stdout(), PollFlags::empty())], None) {
                Err(rustix::io::Errno::INTR) => {}
                other => return other.is_ok(),
            }
        };
        if tokio::task::spawn_blocking(watch).await.unwrap_or(false) {
            return;
        }
    }
    std::future::pending().await
}

fn write_err(text: &str) {
    // One write, so that lines of several processes do not mix.
    let _ = std::io::stderr().lock().write_all(format!("{text}\n").as_bytes());
}

/// A progress line, which each update overwrites.
#[derive(Debug, Default)]
pub(crate) struct LiveLine {
    shown: bool,
}

impl LiveLine {
    /// Replaces the text of the line.
    pub(crate) fn show(&mut self, text: &str) {
        self.shown = true;
        // A line that wraps could not be removed.
        let text: String = text.chars().take(width().saturating_sub(1)).collect();
        let _ = std::io::stderr().lock().write_all(format!("\r\x1b[K{text}").as_bytes());
    }

    /// Removes the line.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = std::io::stderr().lock().write_all(b"\r\x1b[K");
        }
    }
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        self.clear();
    }
}

fn width() -> usize {
    #[cfg(unix)]
    if let Ok(size) = rustix::termios::tcgetwinsize(std::io::stderr())
        && size.ws_col > 0
    {
        return size.ws_col.into();
    }
    80
}

/// Reports a failure and returns its exit.
pub(crate) fn report_failure(output: Output, result: Result<Exit, Failure>) -> Exit {
    result.unwrap_or_else(|failure| {
        output.failure(&failure);
        failure.exit
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_of_text_or_one_json_object() {
        let failure = Failure::new(Exit::Held, "held by \"web\"");
        assert_eq!(Output::new(false).error_line(&failure), "leasehold: held by \"web\"");
        assert_eq!(
            Output::new(true).error_line(&failure),
            r#"{"level":"error","kind":"held","message":"held by \"web\"","exit_code":120}"#
        );
        assert_eq!(Output::new(true).warning_line("lost", "x"), r#"{"level":"warning","kind":"lost","message":"x"}"#);
    }
}
