//! The exit codes of the command.

use std::process::ExitCode;

use leasehold::{Error, ErrorKind};

/// How the command ends. The codes are part of its interface and never change.
///
/// They are below 126, which shells use for a command that cannot be run, and above what most commands use themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Success.
    Success,
    /// `break` was not confirmed, `doctor` found an error, or the lock is free with `status --exit-code`.
    No,
    /// The input is invalid. Nothing was run and nothing was sent.
    BadInput,
    /// Another client held the lock during the whole wait.
    Held,
    /// The same, with the code of `--conflict-exit-code`.
    HeldAs(u8),
    /// The lease was lost, or about to be lost, while the command ran.
    Lost,
    /// The store could not be reached or did not reply.
    NoAnswer,
    /// The store refused: wrong user, missing permission, unsupported version, or no space.
    Refused,
    /// The longest hold was reached.
    MaxHold,
    /// An error of this command or of the operating system.
    Fault,
    /// The exit code of the command that was run.
    Command(u8),
    /// This process ends itself with the signal, so that its parent sees a signal and not an exit code.
    Signal(i32),
}

/// The table of codes, for `--help`, the man page and the README.
pub(crate) const TABLE: &str = "\
Exit codes of `leasehold run`:
  0-255    exit code of the command, passed through; 128+n if signal n ended it
  2        wrong input; nothing was run, and nothing was sent to the store
  120      another client held the lock for the whole wait; nothing was run
  121      the lease was lost, or about to be lost; the command was ended, if it still ran
  122      the store could not be reached or did not reply; nothing was run
  123      the store refused (user, permission, version, full); nothing was run
  124      --max-hold was reached and the command was ended
  125      leasehold itself failed
  126      the command cannot be executed
  127      the command was not found
  128+n    signal n came while waiting for the lock; nothing was run
If Ctrl-C or Ctrl-\\ ended the command, or a signal ended the wait, leasehold
ends by the same signal. A shell shows that as 128+n.
The other subcommands exit with 0 or with a code above. They exit with 1 if
`break` was not confirmed, `doctor` found an error, or `status --exit-code`
found the lock free.";

impl Exit {
    /// The exit code.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::No => 1,
            Self::BadInput => 2,
            Self::Held => 120,
            Self::HeldAs(code) => code,
            Self::Lost => 121,
            Self::NoAnswer => 122,
            Self::Refused => 123,
            Self::MaxHold => 124,
            Self::Fault => 125,
            Self::Command(code) => code,
            Self::Signal(signal) => from_signal(signal),
        }
    }

    /// The name in `--json`.
    pub(crate) const fn kind(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::No => "no",
            Self::BadInput => "bad_input",
            Self::Held | Self::HeldAs(_) => "held",
            Self::Lost => "lost",
            Self::NoAnswer => "no_answer",
            Self::Refused => "refused",
            Self::MaxHold => "max_hold",
            Self::Fault => "fault",
            Self::Command(_) | Self::Signal(_) => "command",
        }
    }

    /// The exit code of shells for a signal.
    pub(crate) fn from_signal(signal: i32) -> Self {
        Self::Command(from_signal(signal))
    }
}

fn from_signal(signal: i32) -> u8 {
    // The highest signal number is 64.
    128_u8.saturating_add(u8::try_from(signal).unwrap_or(u8::MAX))
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

impl From<ErrorKind> for Exit {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Timeout => Self::Held,
            ErrorKind::Lost => Self::Lost,
            ErrorKind::Unavailable | ErrorKind::Indeterminate => Self::NoAnswer,
            ErrorKind::InvalidInput => Self::BadInput,
            ErrorKind::Unsupported | ErrorKind::Capacity | ErrorKind::Auth => Self::Refused,
            _ => Self::Fault,
        }
    }
}

/// Why the command fails: an exit code and one line of text.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) text: String,
}

impl Failure {
    /// A failure with one line of text.
    pub(crate) fn new(exit: Exit, text: impl Into<String>) -> Self {
        Self { exit, text: text.into() }
    }

    /// Invalid input.
    pub(crate) fn input(text: impl Into<String>) -> Self {
        Self::new(Exit::BadInput, text)
    }

    /// An error of the operating system, and what was attempted.
    pub(crate) fn fault(tried: &str, error: impl std::fmt::Display) -> Self {
        Self::new(Exit::Fault, format!("{tried}: {error}"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.kind().into(), with_causes(&error))
    }
}

/// An error and its causes in one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_code() {
        for exit in [Exit::BadInput, Exit::Held, Exit::Lost, Exit::NoAnswer, Exit::Refused, Exit::MaxHold, Exit::Fault]
        {
            assert!(TABLE.contains(&format!("\n  {:<9}", exit.code())), "{exit:?}");
        }
        let readme = include_str!("../README.md");
        assert!(TABLE.lines().filter(|line| line.starts_with("  ")).all(|line| readme.contains(line)), "README.md");
    }

    #[test]
    fn causes_are_printed_once_and_in_one_line() {
        let cause = std::io::Error::other("connection\nrefused");
        let error = Error::new(ErrorKind::Unavailable, "cannot connect").with_source(cause);
        assert_eq!(with_causes(&error), "cannot connect: connection refused");
        assert_eq!(Failure::from(error).exit, Exit::NoAnswer);
    }

    #[test]
    fn a_signal_has_the_exit_code_that_shells_use() {
        assert_eq!(Exit::from_signal(15).code(), 143);
        assert_eq!(Exit::from_signal(127).code(), 255);
    }
}
