//! What is written where: results to standard output, messages to standard error.

use std::io::{IsTerminal as _, Write as _};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

use crate::exit::{Exit, Failure};

/// The last warning that is written aside. It ends when the warning is written.
static ASIDE: Mutex<Option<Receiver<()>>> = Mutex::new(None);

/// How long the last words wait for it.
const ASIDE_BOUND: Duration = Duration::from_secs(1);

/// How to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
}

/// A message on standard error, with `--json`.
#[derive(Serialize)]
struct Message<'a> {
    /// `error` ends the command, `warning` does not.
    level: &'static str,
    /// A word of [`Exit`] for errors.
    kind: &'static str,
    message: &'a str,
    /// What the command ends with, for errors.
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

    /// Whether somebody looks on: messages that are only for the moment are worth writing.
    pub(crate) fn somebody_looks_on(self) -> bool {
        !self.json && std::io::stderr().is_terminal()
    }

    /// Writes a result as one line of JSON, or in words.
    pub(crate) fn result<T: Serialize>(self, result: &T, in_words: impl FnOnce() -> String) {
        if self.json {
            write_out(&json(result));
        } else {
            write_out(in_words().trim_end_matches('\n'));
        }
    }

    /// Says why the command ends, as the last line.
    pub(crate) fn failure(self, failure: &Failure) {
        let aside = ASIDE.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(aside) = aside {
            // Its end, or nothing in time: either way it is our turn.
            let _ = aside.recv_timeout(ASIDE_BOUND);
        }
        write_err(&self.error_line(failure));
    }

    /// Warns, without holding anything up: a terminal that stands still (Ctrl-S) or a full pipe must not delay a deadline.
    pub(crate) fn warn_aside(self, kind: &'static str, text: impl Into<String>) {
        let line = self.warning_line(kind, &text.into());
        let (writing, written) = channel();
        let write = move || {
            write_err(&line);
            drop(writing);
        };
        // Without a thread nobody is warned, which is better than to be late.
        let _ = std::thread::Builder::new().name("message".into()).spawn(write);
        *ASIDE.lock().unwrap_or_else(PoisonError::into_inner) = Some(written);
    }

    /// Warns.
    pub(crate) fn warn(self, kind: &'static str, text: &str) {
        write_err(&self.warning_line(kind, text));
    }

    fn error_line(self, Failure { exit, text }: &Failure) -> String {
        let message = Message { level: "error", kind: exit.word(), message: text, exit_code: Some(exit.code()) };
        if self.json { json(&message) } else { format!("leasehold: {text}") }
    }

    fn warning_line(self, kind: &'static str, text: &str) -> String {
        let message = Message { level: "warning", kind, message: text, exit_code: None };
        if self.json { json(&message) } else { format!("leasehold: warning: {text}") }
    }
}

/// What can be serialized by this command always can.
fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| format!("{{\"level\":\"error\",\"message\":\"{error}\"}}"))
}

/// A reader that went away (`| head`) is no fault of ours.
fn write_out(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

fn write_err(text: &str) {
    // One write, so that lines of several processes do not mix.
    let _ = std::io::stderr().lock().write_all(format!("{text}\n").as_bytes());
}

/// The one line on a terminal that is written over and over while something lasts.
#[derive(Debug, Default)]
pub(crate) struct StatusLine {
    shown: bool,
}

impl StatusLine {
    /// Shows a text in place of the last one.
    pub(crate) fn show(&mut self, text: &str) {
        self.shown = true;
        // What wraps around could not be removed again.
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

impl Drop for StatusLine {
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

/// A failure's exit, after it was told.
pub(crate) fn told(output: Output, result: Result<Exit, Failure>) -> Exit {
    result.unwrap_or_else(|failure| {
        output.failure(&failure);
        failure.exit
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line_for_people_and_one_object_for_scripts() {
        let failure = Failure::new(Exit::Held, "held by \"web\"");
        assert_eq!(Output::new(false).error_line(&failure), "leasehold: held by \"web\"");
        assert_eq!(
            Output::new(true).error_line(&failure),
            r#"{"level":"error","kind":"held","message":"held by \"web\"","exit_code":120}"#
        );
        assert_eq!(Output::new(true).warning_line("lost", "x"), r#"{"level":"warning","kind":"lost","message":"x"}"#);
    }
}
