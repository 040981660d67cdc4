//! The command line arguments.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::error::ErrorKind as ClapErrorKind;
use clap::{Arg, ArgAction, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};

use crate::exit::TABLE;

/// Holds a lock while a command runs, on one machine or on many.
///
/// `leasehold run` renews the lease of the lock while the command runs. If the lease is about to be lost, it by default
/// ends the command before another client can get the lock.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, after_help = MORE, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Printed below the help of the command.
const MORE: &str = "See `leasehold help COMMAND` or the man page of a command for details.";

/// The options of every subcommand that uses a store.
#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    #[arg(long, value_name = "URL", help = store_help(), long_help = long_store_help())]
    pub(crate) store: Option<String>,

    /// Print JSON, for scripts
    ///
    /// Results go to standard output and messages to standard error, one object per line.
    #[arg(long)]
    pub(crate) json: bool,

    /// Print the resolved URL of the store
    ///
    /// It goes to standard error, without a password. For `sqlite://` it contains the path of the file.
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

const ABOUT_STORE: &str = "`sqlite://` is a file in your state folder, so each user has a different one: give cron \
    jobs and services a path. Every user of this machine can read a password on the command line (`ps`): put a URL \
    with a password into LEASEHOLD_STORE instead. An empty LEASEHOLD_STORE counts as unset.";

/// A URL, the store behind it, and variants of the URL with what they change.
type Store = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const STORES: &[Store] = &[
    ("sqlite:///PATH", "a file on this machine", &[]),
    (
        "redis://HOST",
        "a Redis server",
        &[("rediss://HOST", "with TLS"), ("redis+unix:///PATH", "through a Unix socket")],
    ),
    (
        "redis+sentinel://HOST,HOST,HOST/NAME",
        "the primary that Redis Sentinels name",
        &[("rediss+sentinel://HOST,HOST,HOST/NAME", "with TLS")],
    ),
    ("redis+cluster://HOST,HOST,HOST", "a Redis Cluster", &[("rediss+cluster://HOST,HOST,HOST", "with TLS")]),
    (
        "redis+quorum://HOST,HOST,HOST",
        "a majority of 3 to 15 independent Redis servers",
        &[("rediss+quorum://HOST,HOST,HOST", "with TLS")],
    ),
    ("mysql://USER@HOST/DATABASE", "a MySQL or MariaDB server", &[]),
    ("etcd://HOST,HOST", "an etcd cluster", &[("etcds://HOST,HOST", "with TLS")]),
    ("zk://HOST,HOST", "ZooKeeper servers", &[("zks://HOST,HOST", "with TLS")]),
];

/// Whether this build has the store of a URL: `etcd` is in no default, and a URL of it would be refused.
fn is_built_in(url: &str) -> bool {
    let scheme = url.split(':').next();
    leasehold::SCHEMES.iter().any(|(known, _, is_on)| *is_on && Some(*known) == scheme)
}

/// Names the stores of this build.
fn store_help() -> String {
    let urls: Vec<_> = STORES.iter().filter(|(url, ..)| is_built_in(url)).map(|(url, ..)| format!("`{url}`")).collect();
    let default = if is_built_in("sqlite://") { " [default: sqlite://]" } else { "" };
    format!("URL of the store: {} [env: LEASEHOLD_STORE]{default}", urls.join(", "))
}

/// The same with all URLs of each store.
fn long_store_help() -> String {
    let mut text = format!("{}\n", store_help());
    for (url, what, variants) in STORES.iter().filter(|(url, ..)| is_built_in(url)) {
        text += &format!("\n`{url}`: {what}");
        for (url, how) in variants.iter().filter(|(url, _)| is_built_in(url)) {
            text += &format!("; `{url}`: {how}");
        }
        text += ".";
    }
    format!("{text}\n\n{ABOUT_STORE}")
}

/// The name of the lock as an option. [`parse`] moves it to the field of the argument.
#[derive(Args, Clone, Debug)]
pub(crate) struct Named {
    /// Name of the lock, also one that begins with `-`: for scripts, as in `--name="$name"`
    #[arg(long = "name", value_name = "NAME", allow_hyphen_values = true, conflicts_with = "name")]
    named: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Hold a lock while a command runs
    ///
    /// The command follows `--`, as in `leasehold run nightly -- ./report.sh --all`. It gets the fencing token in
    /// LEASEHOLD_FENCING_TOKEN, the name of the lock in LEASEHOLD_NAME and the resolved URL of the store in
    /// LEASEHOLD_STORE. A script with the name in a variable uses `leasehold run --name="$name" -- ./report.sh`, which
    /// takes every name.
    #[command(
        after_long_help = TABLE,
        override_usage = "leasehold run [OPTIONS] <NAME> -- <CMD>...\n\
            \x20      leasehold run [OPTIONS] --name=<NAME> -- <CMD>..."
    )]
    Run(Run),
    /// Show who holds a lock
    ///
    /// This command only reads the store. A Redis user needs no more than the rules of `leasehold acl redis
    /// --read-only`. On SQLite, permission to read the file is enough.
    #[command(override_usage = "leasehold status [OPTIONS] <NAME>\n       leasehold status [OPTIONS] --name=<NAME>")]
    Status(Status),
    /// List locks
    ///
    /// This command only reads the store. On Redis it scans the names of all keys, so the user needs the permissions of
    /// `leasehold acl redis --operator`. A quorum of Redis servers offers no list.
    Ls(Ls),
    /// Show who holds a lock, and each change
    ///
    /// This command prints a line for each change. On a terminal it also shows the time left. It ends when it is
    /// interrupted, or when the program that reads its output ends. It only reads the store.
    #[command(override_usage = "leasehold watch [OPTIONS] <NAME>\n       leasehold watch [OPTIONS] --name=<NAME>")]
    Watch(Watch),
    /// End the lease of the holder of a lock
    ///
    /// This command asks for confirmation first. It raises the fencing token. The old holder learns of it with its next
    /// renewal, or at once on etcd and ZooKeeper. It may still be writing until then.
    #[command(override_usage = "leasehold break [OPTIONS] <NAME>\n       leasehold break [OPTIONS] --name=<NAME>")]
    Break(Break),
    /// Print the SQL that creates the tables of a SQL store
    #[cfg(any(feature = "mysql", feature = "sqlite"))]
    Schema {
        /// Kind of store
        store: SqlStore,
    },
    /// Print the functions for a store whose users may not run scripts
    ///
    /// `leasehold functions redis | redis-cli -x FUNCTION LOAD` loads them. A store with `scripts=functions` in its URL
    /// uses them. Load those of a new version before you use it.
    #[cfg(feature = "redis")]
    Functions {
        /// Kind of store
        store: FunctionStore,
    },
    /// Print the least permissions that a user of the store needs
    #[command(subcommand)]
    #[cfg(any(feature = "etcd", feature = "mysql", feature = "redis", feature = "sqlite", feature = "zk"))]
    Acl(Acl),
    /// Check whether the store is fit for locks
    ///
    /// This command connects, measures the round trip, acquires and releases a lock, and reads the version, settings
    /// and clock of the store. It prints a hint with each warning (`??`) and each error (`!!`), and exits with 1 if
    /// there is an error.
    Doctor(Common),
    /// Print the completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages to a folder
    Man {
        /// Folder; it is created if it is missing
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

impl Command {
    /// The name of the lock: the argument and the option.
    fn name(&mut self) -> Option<(&mut String, &mut Named)> {
        match self {
            Self::Run(Run { name, named, .. })
            | Self::Status(Status { name, named, .. })
            | Self::Watch(Watch { name, named, .. })
            | Self::Break(Break { name, named, .. }) => Some((name, named)),
            _ => None,
        }
    }

    /// Whether to print JSON.
    pub(crate) fn json(&self) -> bool {
        match self {
            Self::Run(Run { common, .. })
            | Self::Status(Status { common, .. })
            | Self::Ls(Ls { common, .. })
            | Self::Watch(Watch { common, .. })
            | Self::Break(Break { common, .. })
            | Self::Doctor(common) => common.json,
            _ => false,
        }
    }
}

/// The stores with functions.
#[cfg(feature = "redis")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FunctionStore {
    /// Redis 7.0 or later.
    Redis,
}

/// The SQL stores.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SqlStore {
    /// A MySQL or MariaDB database.
    #[cfg(feature = "mysql")]
    Mysql,
    /// A SQLite file.
    #[cfg(feature = "sqlite")]
    Sqlite,
}

/// The stores that have permissions.
#[cfg(any(feature = "etcd", feature = "mysql", feature = "redis", feature = "sqlite", feature = "zk"))]
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub(crate) enum Acl {
    /// Print the commands that create a role of etcd
    ///
    /// `leasehold acl etcd | sh` creates it, and `etcdctl user grant-role USER leasehold` gives it to a user.
    #[cfg(feature = "etcd")]
    Etcd {
        /// Only the permissions of `status`, `ls` and `watch`
        #[arg(long)]
        read_only: bool,
        /// The path in the URL of the store
        #[arg(long, value_name = "PREFIX", default_value = "leasehold")]
        prefix: String,
        /// Name of the role
        #[arg(long, value_name = "NAME", default_value = "leasehold")]
        role: String,
    },
    /// Print the grant of a MySQL or MariaDB user
    ///
    /// The table of locks must exist: `leasehold schema mysql | mysql DATABASE` creates it.
    #[cfg(feature = "mysql")]
    Mysql {
        /// Only the permissions of `status`, `ls` and `watch`
        #[arg(long)]
        read_only: bool,
        /// The database in the URL of the store
        #[arg(long, value_name = "NAME")]
        database: String,
        /// The account, in the syntax of SQL
        #[arg(long, value_name = "ACCOUNT", default_value = "'leasehold'@'%'")]
        user: String,
    },
    /// Print the rules of a Redis user
    ///
    /// The rules have the form that `ACL SETUSER` takes: `redis-cli ACL SETUSER locks on '>PASSWORD' $(leasehold acl
    /// redis)`.
    #[cfg(feature = "redis")]
    Redis {
        /// Include the permissions of `ls` and `doctor`
        #[arg(long, conflicts_with = "read_only")]
        operator: bool,
        /// Only the permissions of `status` and `watch`
        #[arg(long)]
        read_only: bool,
        /// For a store with `scripts=functions` in its URL
        #[arg(long)]
        functions: bool,
        /// The `prefix` in the URL of the store
        #[arg(long, value_name = "TEXT", default_value_t = leasehold::redis::Settings::default().prefix)]
        prefix: String,
    },
    /// Print commands that restrict a SQLite file to one user or to a group
    #[cfg(feature = "sqlite")]
    Sqlite,
    /// Print the commands that set the permissions of a ZooKeeper user
    ///
    /// `zkCli.sh` runs them, with the password in the place of PASSWORD. The nodes that the user creates belong to this
    /// user alone.
    #[cfg(feature = "zk")]
    Zk {
        /// The path in the URL of the store
        #[arg(long, value_name = "PATH", default_value = "leasehold")]
        root: String,
        /// Name of the user
        #[arg(long, value_name = "NAME", default_value = "leasehold")]
        user: String,
    },
}

/// The arguments of `run`.
#[derive(Args, Debug)]
pub(crate) struct Run {
    /// Name of the lock, 1 to 1024 bytes
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) named: Named,

    /// How long the lease lasts unless it is renewed, and so how long others wait after a crash
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub(crate) ttl: Duration,

    /// How long to wait for the lock, including to reach the store: a duration, a number of seconds, or `forever`
    #[arg(long, short, value_name = "DURATION", value_parser = wait, default_value = "60s")]
    pub(crate) wait: Duration,

    /// Do not wait: exit with 120 at once if another client holds the lock or waits for it
    #[arg(long, short, conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// Longest hold: the command gets TERM `--grace` before its end, and KILL by its end
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) max_hold: Option<Duration>,

    /// Shortest hold: if the command ends earlier, the lock stays held until then
    ///
    /// Use it for short jobs that must not run again on a host whose clock is behind. On etcd, ZooKeeper and MySQL with
    /// `strategy=for-update`, leasehold stays until then. With `strategy=for-update`, a signal ends that wait and the
    /// hold. On the others, a second signal ends the wait, and the lock stays held until its lease ends.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) min_hold: Option<Duration>,

    /// What to do when the lease is about to be lost
    #[arg(long, value_enum, default_value_t = OnLost::Kill)]
    pub(crate) on_lost: OnLost,

    /// How long before the end of the lease the command gets TERM [default: a sixth of the ttl]
    ///
    /// By the end of the lease the command gets KILL. The grace must be shorter than a third of the ttl. If --max-hold
    /// is shorter than the ttl, the default is a sixth of --max-hold.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) grace: Option<Duration>,

    /// Exit code, instead of 120, if another client holds the lock: 0 to 255
    #[arg(long, short = 'E', value_name = "CODE")]
    pub(crate) conflict_exit_code: Option<u8>,

    /// Print no message if another client holds the lock: the exit code says it. `-E 0` implies it
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// Run this text with `/bin/sh -c`, instead of a command after `--`
    #[arg(long = "command", short = 'c', value_name = "TEXT", conflicts_with = "command")]
    pub(crate) shell_text: Option<OsString>,

    /// Text that `status` and `ls` show beside host and process, at most 128 bytes
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) label: String,

    #[command(flatten)]
    pub(crate) common: Common,

    /// Command and its arguments, after `--`
    #[arg(last = true, required_unless_present = "shell_text", value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

impl Run {
    /// Whether a conflict is no news: cron mails everything that a job prints.
    pub(crate) fn is_conflict_silent(&self) -> bool {
        self.quiet || self.conflict_exit_code == Some(0)
    }

    /// The command and its arguments, whichever way they were given.
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
    /// End the command and every process that it started by the end of the lease.
    Kill,
    /// Print a warning to standard error and let the command continue.
    Warn,
}

/// The arguments of `status`.
#[derive(Args, Debug)]
pub(crate) struct Status {
    /// Name of the lock
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) named: Named,
    /// Exit with 1 if the lock is free
    #[arg(long)]
    pub(crate) exit_code: bool,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// The arguments of `ls`.
#[derive(Args, Debug)]
pub(crate) struct Ls {
    /// List only names that begin with this text
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// List free locks too, if the store has a record of them
    #[arg(long, short)]
    pub(crate) all: bool,
    /// List at most this many locks
    #[arg(long, value_name = "NUMBER", value_parser = listed(), default_value_t = 1000)]
    pub(crate) limit: usize,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// The arguments of `watch`.
#[derive(Args, Debug)]
pub(crate) struct Watch {
    /// Name of the lock
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) named: Named,
    /// How often to read the store
    #[arg(long, value_name = "DURATION", value_parser = interval, default_value = "500ms")]
    pub(crate) every: Duration,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// The arguments of `break`.
#[derive(Args, Debug)]
pub(crate) struct Break {
    /// Name of the lock
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) named: Named,
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// The command line, for parsing, completions and man pages.
///
/// `--help` of a subcommand prints the short texts. `leasehold help` and the man pages have the long ones.
pub(crate) fn command() -> clap::Command {
    Cli::command().mut_subcommands(with_short_help)
}

fn with_short_help(command: clap::Command) -> clap::Command {
    let help = Arg::new("help").short('h').long("help").action(ArgAction::HelpShort).help("Print help");
    command.disable_help_flag(true).arg(help).mut_subcommands(with_short_help)
}

/// Parses the arguments.
///
/// # Errors
/// The arguments are wrong, or ask for help or the version.
pub(crate) fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    let mut command = command();
    let parsed = command.try_get_matches_from_mut(arguments)?;
    let mut cli = Cli::from_arg_matches(&parsed).map_err(|error| error.format(&mut command))?;
    if let Some((name, Named { named })) = cli.command.name() {
        let has_option = named.is_some();
        *name = named.take().unwrap_or_else(|| std::mem::take(name));
        if name.is_empty() && (has_option || !take_name_from_words(&mut command, &mut cli.command)?) {
            let text = "the name of the lock, <NAME>, is missing or empty";
            return Err(command.error(ClapErrorKind::MissingRequiredArgument, text));
        }
    }
    Ok(cli)
}

/// Takes the name from `run -- -NAME -- CMD`: clap takes everything after the first `--` as the command.
fn take_name_from_words(command: &mut clap::Command, parsed: &mut Command) -> Result<bool, clap::Error> {
    let Command::Run(run) = parsed else { return Ok(false) };
    match &run.command[..] {
        [name, dashes, _, ..] if name.to_string_lossy().starts_with('-') && dashes == "--" => {
            let not_text = |_| command.error(ClapErrorKind::InvalidUtf8, "the name of the lock is not valid UTF-8");
            run.name = name.clone().into_string().map_err(not_text)?;
            run.command.drain(..2);
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// The longest duration, and the meaning of `forever`: ten years.
pub(crate) const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Parses `250ms`, `30s`, `1h 30m`.
fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text)
        .map_err(|_| "expected a number with a unit, such as 250ms, 30s, 10m or 1h".to_owned())?;
    match duration {
        zero if zero.is_zero() => Err("the duration must be longer than zero".to_owned()),
        long if long > LONGEST => Err("the duration must be at most ten years".to_owned()),
        other => Ok(other),
    }
}

/// The range of `--limit`.
fn listed() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=leasehold::admin::Listing::MAX as u64)
}

fn wait(text: &str) -> Result<Duration, String> {
    match text {
        "forever" => Ok(LONGEST),
        "0" | "0s" => Err("use --no-wait to try only once".to_owned()),
        // flock(1) takes a number of seconds.
        other => match other.parse().map(Duration::try_from_secs_f64) {
            Ok(Ok(seconds)) if !seconds.is_zero() && seconds <= LONGEST => Ok(seconds),
            _ => duration(other),
        },
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        short if short < Duration::from_millis(50) => Err("the interval must be at least 50ms".to_owned()),
        other => Ok(other),
    }
}

/// The error of clap in one line. clap quotes arguments, and a URL that is given at the wrong place may have a
/// password.
pub(crate) fn to_one_line(error: &clap::Error, arguments: &[OsString]) -> String {
    let mut text = error.to_string();
    for argument in arguments.iter().map(|argument| argument.to_string_lossy()) {
        let value = argument.split_once('=').filter(|_| argument.starts_with('-')).map(|(_, value)| value);
        for part in
            [value, Some(&argument)].into_iter().flatten().filter(|part| part.contains("://") || part.contains('@'))
        {
            text = text.replace(part, "***");
        }
    }
    let mut line: Vec<_> = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    // clap prints "tip: a similar … exists" after an empty line.
    line.extend(text.lines().find_map(|line| line.trim().strip_prefix("tip: ").map(|_| line.trim())));
    let line = line.join(" ").replace(" tip: ", "; ");
    let line = line.strip_prefix("error: ").unwrap_or(&line);
    let after = text.contains("leasehold run ") && error.kind() == ClapErrorKind::UnknownArgument;
    let hint = if after { "; put the command of `run` after `--`" } else { "" };
    format!("{line}{hint} (see `leasehold --help`)")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Cli, clap::Error> {
        super::parse(&["leasehold"].iter().chain(args).map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn the_arguments_are_consistent() {
        command().debug_assert();
    }

    #[test]
    fn the_help_offers_the_stores_of_this_build() {
        let mut command = command();
        let status = command.find_subcommand_mut("status").unwrap();
        let (short, long) = (status.render_help().to_string(), status.render_long_help().to_string());
        for (scheme, _, is_on) in leasehold::SCHEMES.iter().filter(|(scheme, ..)| *scheme != "memory") {
            assert_eq!(long.contains(&format!("`{scheme}://")), *is_on, "{scheme}: {long}");
        }
        // The short help leaves out the variants: one that a store has with TLS, for example.
        for (url, _, variants) in STORES {
            assert_eq!(short.contains(&format!("`{url}`")), is_built_in(url), "{url}: {short}");
            assert!(!variants.iter().any(|(url, _)| short.contains(&format!("`{url}`"))), "{short}");
        }
    }

    #[test]
    fn arguments_after_the_dashes_belong_to_the_command() {
        let cli = parse(&["run", "a b", "--ttl", "1m 30s", "-w", "forever", "--", "echo", "--ttl", "x"]).unwrap();
        let Command::Run(run) = cli.command else { panic!("{cli:?}") };
        assert_eq!((&*run.name, run.ttl, run.wait), ("a b", Duration::from_secs(90), LONGEST));
        assert_eq!(run.words(), ["echo", "--ttl", "x"]);
    }

    #[test]
    fn options_of_flock_are_accepted() {
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
    fn a_name_may_begin_with_a_dash() {
        for (args, name, words) in [
            (&["run", "--", "-x", "--", "echo", "--", "y"][..], "-x", &["echo", "--", "y"][..]),
            (&["run", "--ttl", "9s", "--", "--", "--", "echo"], "--", &["echo"]),
            (&["run", "x", "--", "-p", "--", "echo"], "x", &["-p", "--", "echo"]),
        ] {
            let Command::Run(run) = parse(args).unwrap().command else { panic!("{args:?}") };
            assert_eq!(
                (&*run.name, &run.command[..]),
                (name, &words.iter().map(OsString::from).collect::<Vec<_>>()[..])
            );
        }
        let Command::Status(status) = parse(&["status", "--", "-x"]).unwrap().command else { panic!("no status") };
        assert_eq!(status.name, "-x");
        // `--name=NAME` takes every name.
        for name in ["x", "-x", "--", "--help", "-h", "--ttl", "--name=y", "a\nb", "-", " "] {
            let option = format!("--name={name}");
            for args in [&["run", &*option, "--", "echo", "--name=z"][..], &["run", "--name", name, "-c", "echo"]] {
                let Command::Run(run) = parse(args).unwrap().command else { panic!("{args:?}") };
                assert_eq!(
                    (&*run.name, &*run.words()[0] == "echo" || run.shell_text.is_some()),
                    (name, true),
                    "{args:?}"
                );
            }
            for subcommand in ["status", "watch", "break"] {
                let mut parsed = parse(&[subcommand, "--json", &option]).unwrap().command;
                assert_eq!(parsed.name().unwrap().0, name, "{subcommand}");
            }
        }
        for args in [
            &["run", "--name=", "--", "-x", "--", "echo"][..],
            &["run", "--name", "", "--", "echo"],
            &["status", "--name="],
            &["break"],
        ] {
            assert_eq!(parse(args).unwrap_err().kind(), ClapErrorKind::MissingRequiredArgument, "{args:?}");
        }
        assert_eq!(parse(&["status", "x", "--name=y"]).unwrap_err().kind(), ClapErrorKind::ArgumentConflict);
        // A name without a dash comes before the first `--`: here the name is missing.
        for args in [&["run", "--", "git", "--", "x"][..], &["run", "--", "-x", "--"], &["run", "--", "-x"]] {
            assert_eq!(parse(args).unwrap_err().kind(), ClapErrorKind::MissingRequiredArgument, "{args:?}");
        }
    }

    #[test]
    fn an_option_that_means_nothing_for_a_subcommand_is_refused() {
        for args in [
            &["completions", "bash", "--json"][..],
            &["completions", "bash", "--label", "x"],
            &["man", "pages", "--store", "sqlite://"],
            &["acl", "redis", "--json"],
            &["acl", "sqlite", "--operator"],
            &["schema", "sqlite", "--store", "sqlite://"],
            &["status", "x", "--label", "x"],
            &["ls", "--label", "x"],
            &["doctor", "--label", "x"],
        ] {
            assert_eq!(parse(args).unwrap_err().kind(), ClapErrorKind::UnknownArgument, "{args:?}");
        }
    }

    #[test]
    fn the_help_of_a_subcommand_is_short() {
        for name in
            ["run", "status", "ls", "watch", "break", "doctor", "acl", "schema", "functions", "completions", "man"]
        {
            let short = parse(&[name, "--help"]).unwrap_err().to_string();
            assert!(short.lines().count() <= 28, "{short}");
            assert_eq!(short, parse(&[name, "-h"]).unwrap_err().to_string());
            let long = parse(&["help", name]).unwrap_err().to_string();
            assert!(long.len() >= short.len(), "{long}");
        }
    }

    #[test]
    fn a_url_at_the_wrong_place_is_not_quoted() {
        for args in [
            &["status", "x", "mysql:u:hunter2@host"][..],
            &["status", "x", "redis://:hunter2\n@host"],
            &["status", "x", "--stor=redis://:hunter2@host"],
            &["run", "x", "--ttl=redis://:hunter2@host", "--", "true"],
            &["run", "x", "--wait", "redis://:hunter2@host", "--", "true"],
            &["redis://:hunter2@host"],
        ] {
            let arguments: Vec<_> = args.iter().map(OsString::from).collect();
            let text = to_one_line(&parse(args).unwrap_err(), &arguments);
            assert!(!text.contains("hunter2"), "{args:?}: {text}");
        }
    }

    #[test]
    fn wrong_input_is_reported_in_one_line() {
        for (args, hint) in [
            (&["run", "x"][..], "CMD"),
            (&["run", "x", "--"], "CMD"),
            (&["run", "x", "echo"], "'echo' found; put the command of `run` after `--`"),
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
            let text = to_one_line(&error, &[]);
            assert!(text.contains(hint) && !text.contains('\n'), "{args:?}: {text}");
            assert_eq!(error.exit_code(), 2);
        }
    }
}
