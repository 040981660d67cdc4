//! The arguments.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::exit::TABLE;

/// Holds a lock while a command runs, on one machine or on many.
///
/// The lock renews itself while the command runs. When it is lost the command is ended before anybody else can get it.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, after_long_help = TABLE, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every subcommand takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    /// Where the locks are kept. `sqlite://` is a file of yours on this machine; `redis://HOST` a Redis.
    ///
    /// A password here can be read by everybody on this machine (`ps`): put the URL into LEASEHOLD_STORE.
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "LEASEHOLD_STORE",
        hide_env_values = true,
        default_value = "sqlite://"
    )]
    pub(crate) store: String,

    /// Print JSON, for scripts: results on standard output, messages on standard error, one object a line.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// What `status` and `ls` of others show beside host and process. At most 128 bytes.
    #[arg(long, global = true, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) label: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Hold a lock while a command runs.
    ///
    /// The command stands after `--`, as in `leasehold run nightly -- ./report.sh --all`. It finds the fencing token in
    /// LEASEHOLD_FENCING_TOKEN, the lock in LEASEHOLD_NAME and the store's URL in LEASEHOLD_STORE.
    #[command(after_long_help = TABLE)]
    Run(Run),
    /// Show who holds a lock.
    Status(Status),
    /// List locks.
    Ls(Ls),
    /// Show who holds a lock, live, until it is interrupted.
    Watch(Watch),
    /// End the lease of whoever holds a lock, on your word.
    ///
    /// The token is raised; the old holder learns of it with its next renewal and may still be writing until then.
    Break(Break),
    /// Print the SQL that makes the tables of a SQL store.
    Schema,
    /// Print the least permissions that the store's user needs.
    ///
    /// For Redis the rules of a user: `redis-cli ACL SETUSER locks on '>PASSWORD' $(leasehold acl)`.
    Acl {
        /// With what `ls` and `doctor` need besides.
        #[arg(long)]
        operator: bool,
    },
    /// Look whether the store is fit for locks, and say how to mend what is not.
    Doctor,
    /// Print the completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a folder.
    Man {
        /// The folder; it is made when it is missing.
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

/// What `run` takes.
#[derive(Args, Debug)]
pub(crate) struct Run {
    /// The lock: any name of 1 to 1024 bytes.
    pub(crate) name: String,

    /// How long the lease lasts unless it is renewed, and so how long a dead holder blocks the others.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub(crate) ttl: Duration,

    /// How long to wait for the lock, reaching the store included: a duration, a number of seconds, or `forever`.
    #[arg(long, short, value_name = "DURATION", value_parser = wait, default_value = "60s")]
    pub(crate) wait: Duration,

    /// Do not wait: end with 120 at once when another has the lock or waits for it.
    #[arg(long, short, conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// The longest hold: TERM to the command `--grace` before, KILL by its end.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) max_hold: Option<Duration>,

    /// The shortest hold: when the command ends earlier, the lock stays taken until then. For jobs of a few
    /// milliseconds that must not run again on a host whose clock is behind.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) min_hold: Option<Duration>,

    /// What to do when the lease is about to be lost.
    #[arg(long, value_enum, default_value_t = OnLost::Kill)]
    pub(crate) on_lost: OnLost,

    /// How long before the end of the lease the command gets TERM; at the end it gets KILL. Less than a third of the ttl.
    /// [default: a sixth of the ttl, or of --max-hold where that is shorter]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) grace: Option<Duration>,

    /// What to end with, instead of 120, when another has the lock: 0 to 255.
    #[arg(long, short = 'E', value_name = "CODE")]
    pub(crate) conflict_exit_code: Option<u8>,

    /// Run this text with `/bin/sh -c`, instead of a command after `--`.
    #[arg(long = "command", short = 'c', value_name = "TEXT", conflicts_with = "command")]
    pub(crate) shell_text: Option<OsString>,

    /// The command and its arguments, after `--`.
    #[arg(last = true, required_unless_present = "shell_text", value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

impl Run {
    /// The command and its arguments.
    pub(crate) fn words(&self) -> Vec<OsString> {
        match &self.shell_text {
            Some(text) => vec!["/bin/sh".into(), "-c".into(), text.clone()],
            None => self.command.clone(),
        }
    }
}

/// What to do when the lease is about to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// End the command and its whole process group, by the end of the lease.
    Kill,
    /// Say so on standard error, and let the command go on.
    Warn,
}

/// What `status` takes.
#[derive(Args, Debug)]
pub(crate) struct Status {
    /// The lock.
    pub(crate) name: String,
    /// End with 1 when the lock is free.
    #[arg(long)]
    pub(crate) exit_code: bool,
}

/// What `ls` takes.
#[derive(Args, Debug)]
pub(crate) struct Ls {
    /// Only names that begin so.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Locks that are free, too, as far as the store has a record of them.
    #[arg(long, short)]
    pub(crate) all: bool,
    /// At most so many.
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    pub(crate) limit: usize,
}

/// What `watch` takes.
#[derive(Args, Debug)]
pub(crate) struct Watch {
    /// The lock.
    pub(crate) name: String,
    /// How often to look.
    #[arg(long, value_name = "DURATION", value_parser = interval, default_value = "500ms")]
    pub(crate) every: Duration,
}

/// What `break` takes.
#[derive(Args, Debug)]
pub(crate) struct Break {
    /// The lock.
    pub(crate) name: String,
    /// Do not ask.
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// The longest duration, and what `forever` stands for: ten years.
pub(crate) const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Reads `250ms`, `30s`, `1h 30m`.
fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text)
        .map_err(|_| "a duration is a number and a unit, like 250ms, 30s, 10m or 1h".to_owned())?;
    match duration {
        zero if zero.is_zero() => Err("a duration is longer than zero".to_owned()),
        long if long > LONGEST => Err("a duration is at most ten years".to_owned()),
        other => Ok(other),
    }
}

fn wait(text: &str) -> Result<Duration, String> {
    match text {
        "forever" => Ok(LONGEST),
        "0" | "0s" => Err("not to wait is --no-wait".to_owned()),
        // As flock(1) takes it.
        other => match other.parse().map(Duration::try_from_secs_f64) {
            Ok(Ok(seconds)) if !seconds.is_zero() && seconds <= LONGEST => Ok(seconds),
            _ => duration(other),
        },
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        short if short < Duration::from_millis(50) => Err("to look more often than every 50ms is no use".to_owned()),
        other => Ok(other),
    }
}

/// A wrong argument in one line.
pub(crate) fn in_one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let mut line: Vec<_> = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    // "did you mean", which comes after an empty line.
    line.extend(text.lines().find_map(|line| line.trim().strip_prefix("tip: ").map(|_| line.trim())));
    let line = line.join(" ").replace(" tip: ", "; ");
    let line = line.strip_prefix("error: ").unwrap_or(&line);
    let after = text.contains("leasehold run ") && error.kind() == clap::error::ErrorKind::UnknownArgument;
    let hint = if after { "; the command of `run` stands after `--`" } else { "" };
    format!("{line}{hint} (see `leasehold --help`)")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(args: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(["leasehold"].iter().chain(args))
    }

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn everything_after_the_dashes_is_the_commands_own() {
        let cli = parse(&["run", "a b", "--ttl", "1m 30s", "-w", "forever", "--", "echo", "--ttl", "x"]).unwrap();
        let Command::Run(run) = cli.command else { panic!("{cli:?}") };
        assert_eq!((&*run.name, run.ttl, run.wait), ("a b", Duration::from_secs(90), LONGEST));
        assert_eq!(run.words(), ["echo", "--ttl", "x"]);
    }

    #[test]
    fn what_flock_takes_is_taken() {
        let run = |args: &[&str]| match parse(&[&["run", "x"], args].concat()).unwrap().command {
            Command::Run(run) => run,
            other => panic!("{other:?}"),
        };
        let it = run(&["-w", "5", "-E", "0", "-c", "echo a | cat"]);
        assert_eq!((it.wait, it.conflict_exit_code), (Duration::from_secs(5), Some(0)));
        assert_eq!(it.words(), ["/bin/sh", "-c", "echo a | cat"]);
        let it = run(&["-w", "0.25", "--conflict-exit-code", "255", "--command", "true"]);
        assert_eq!((it.wait, it.conflict_exit_code), (Duration::from_millis(250), Some(255)));
        for wrong in ["-1", "0", "0.0", "NaN", "inf", "1e300", ""] {
            assert!(parse(&["run", "x", "-w", wrong, "-c", "true"]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn wrong_input_is_told_in_one_line() {
        for (args, hint) in [
            (&["run", "x"][..], "CMD"),
            (&["run", "x", "--"], "CMD"),
            (&["run", "x", "echo"], "'echo' found; the command of `run` stands after `--`"),
            (&["run", "--", "echo"], "<NAME>"),
            (&["run", "x", "--ttl", "5", "--", "echo"], "30s"),
            (&["run", "x", "--ttl", "-5s", "--", "echo"], "-5"),
            (&["run", "x", "--ttl", "0s", "--", "echo"], "longer than zero"),
            (&["run", "x", "--wait", "0s", "--", "echo"], "--no-wait"),
            (&["run", "x", "--wait", "99999y", "--", "echo"], "ten years"),
            (&["run", "x", "--no-wait", "--wait", "1s", "--", "echo"], "cannot be used with"),
            (&["run", "x", "--on-lost", "panic", "--", "echo"], "kill"),
            (&["watch", "x", "--every", "1ms"], "50ms"),
            (&["frob"], "'frob'"),
            (&["staus", "x"], "'status'"),
        ] {
            let error = parse(args).unwrap_err();
            let text = in_one_line(&error);
            assert!(text.contains(hint) && !text.contains('\n'), "{args:?}: {text}");
            assert_eq!(error.exit_code(), 2);
        }
    }
}
