//! Holds a lock by URL, prints what happens to it, and takes commands. The process cases of the suite use it. It is
//! also for manual experiments with killed and paused holders.

mod store;

use std::fs;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use leasehold::{Error, ErrorKind, LockGuard};
use leasehold_conformance::harness::{HolderEvent, HolderLine, machine_now, micros};
use store::Store;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

#[derive(Debug, Parser)]
#[command(name = "lock-holder", version, about = ABOUT, long_about = None, after_help = HELP)]
#[command(args_override_self = true)]
struct Options {
    /// Where the locks are.
    #[arg(long, default_value = "redis://127.0.0.1:6379")]
    url: String,

    /// The lock.
    #[arg(long, default_value = "demo")]
    name: String,

    /// How long the lease lasts unless it is renewed (500ms, 30s, 10m).
    #[arg(long, value_parser = duration, default_value = "30s")]
    ttl: Duration,

    /// How long to wait for the lock.
    #[arg(long, value_parser = duration, default_value = "60s")]
    wait: Duration,

    /// Release after this long; without it, hold until a command or a loss.
    #[arg(long, value_parser = duration)]
    hold: Option<Duration>,

    /// Acquire the lock this many times, one after the other.
    #[arg(long, value_name = "N", default_value_t = 1)]
    count: u64,

    /// Raise the number in this file in each turn: read, work, write, release.
    #[arg(long, value_name = "FILE")]
    counter: Option<PathBuf>,

    /// How long the work takes between reading the counter and writing it.
    #[arg(long, value_parser = duration, default_value = "1ms")]
    work: Duration,

    /// Wait for commands after the last turn, or a loss, instead of exiting.
    #[arg(long)]
    stay: bool,
}

const ABOUT: &str = "\
Hold a lock and print what happens to it.

Every event is one line of JSON on standard output, with the time in microseconds on
a clock that all processes of this machine share, the process id, and the fencing
token of the lease. Errors go there too, as \"failed\" with their kind.";

const HELP: &str = "\
COMMANDS, one a line on standard input:
  check     print whether the lock is held, by the guard
  release   release it, and wait for the server's reply
  drop      drop the guard: the release continues in the background
  write TEXT  append the token and TEXT to a list in Redis, or to the table `written` in MySQL, \
without a check of the guard (also after a loss, with
            --stay): the store itself refuses it when the lease is not current
  leak      leak the guard and wait for commands: the lease is renewed for as long as this process lives
  acquire   take the lock once more (after the last turn, with --stay)
  panic     panic with the guard in hand
  exit      exit at once, without a release: the lease ends by its ttl
At the end of standard input nothing happens: a lock holder in the background continues.

A COUNTER that several processes raise is short of a step when two held the lock at once:
  for i in 1 2 3; do lock-holder --count 100 --counter n.txt < /dev/null & done; wait; cat n.txt

EXIT CODES: 0 all turns done; 1 an error; 2 bad arguments; 3 the lease was lost; 101 a panic

TRY IT, with a redis-server on its usual port and two terminals:
  lock-holder --ttl 5s --stay     in both: the second one waits
Pause:
  Ctrl-Z in the first       it is paused; after 5 s the second one holds, with a higher token
  write second              in the second: Redis takes it
  fg, write first           in the first: it prints that the lease is lost, and Redis refuses the late write
  redis-cli LRANGE 'leasehold:{demo}:f:written' 0 -1
Kill:
  kill -9 PID               of the holder (its lines have the pid): the other one holds when the 5 s are over";

/// How a turn ended.
enum Turn {
    /// Done: the lock is free, or will be.
    Over,
    /// Lost. The guard is kept for commands that come later.
    Lost(LockGuard),
    /// The guard is leaked. This process continues.
    Leaked,
    /// The process exits at once.
    Exit,
}

/// The exit code of a lost lease.
const EXIT_LOST: u8 = 3;

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let code = run(&options).await;
    report(HolderEvent::Exit { code });
    // Exits without joining threads: the input may never end, and a drop here would release the lock.
    std::process::exit(code.into())
}

async fn run(options: &Options) -> u8 {
    let store = match Store::connect(&options.url).await {
        Ok(store) => store,
        Err(error) => return failed("connect", &error),
    };
    let mut commands = commands();
    let mut code = 0;
    let mut turns = options.count;
    let mut lost = None;
    let mut stay = options.stay;
    loop {
        if turns > 0 {
            turns -= 1;
            match turn(options, &store, &mut commands).await {
                Ok(Turn::Over) => {}
                Ok(Turn::Lost(guard)) => {
                    code = EXIT_LOST;
                    lost = Some(guard);
                }
                Ok(Turn::Leaked) => stay = true,
                Ok(Turn::Exit) => return code,
                Err(error) => code = failed("acquire", &error),
            }
            if code == 0 && turns > 0 {
                continue;
            }
            if !stay {
                break;
            }
        }
        match commands.recv().await.as_deref() {
            Some("check") => check(lost.as_ref()),
            Some("acquire") => (turns, code, lost) = (1, 0, None),
            Some("exit") | None => return code,
            Some(other) => match (other.strip_prefix("write "), &lost) {
                (Some(text), Some(guard)) => write(&store, guard, text).await,
                _ => not_now(other),
            },
        }
    }
    // The shutdown releases dropped guards and claims in doubt before the exit.
    match store.client.shutdown().await {
        Ok(()) => code,
        Err(error) => failed("shut down", &error),
    }
}

/// Acquires, and holds until the time is up, a command or a loss.
async fn turn(options: &Options, store: &Store, commands: &mut UnboundedReceiver<String>) -> Result<Turn, Error> {
    report(HolderEvent::Waiting { name: options.name.clone() });
    let lock = store.client.lock(&options.name).ttl(options.ttl).wait(options.wait);
    let acquiring = lock.acquire();
    tokio::pin!(acquiring);
    let guard = loop {
        tokio::select! {
            guard = &mut acquiring => break guard?,
            Some(command) = commands.recv() => match &*command {
                "check" => check(None),
                "exit" => return Ok(Turn::Exit),
                other => not_now(other),
            }
        }
    };
    let token = guard.fencing_token().get();
    report(HolderEvent::Acquired { token, validity_ms: millis(guard.validity()) });
    if let Some(file) = &options.counter {
        match count(file, options.work, &guard).await {
            Ok(Some((number, checked_us))) => report(HolderEvent::Counted { number, checked_us }),
            // The loss is reported below.
            Ok(None) => {}
            Err(error) => report_failure("count", "Io".to_owned(), error.to_string()),
        }
    }
    let end = options.hold.or(options.counter.is_some().then_some(Duration::ZERO));
    let hold = async {
        match end {
            Some(hold) => tokio::time::sleep(hold).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(hold);
    loop {
        let command = tokio::select! {
            biased;
            loss = guard.lost() => {
                report(HolderEvent::Lost { token, reason: format!("{:?}", loss.reason) });
                return Ok(Turn::Lost(guard));
            }
            Some(command) = commands.recv() => command,
            () = &mut hold => "release".to_owned(),
        };
        let called_us = micros(machine_now());
        match &*command {
            "check" => check(Some(&guard)),
            "release" => {
                match guard.release().await {
                    Ok(()) => report(HolderEvent::Released { token, called_us }),
                    Err(error) => {
                        failed("release", &error);
                    }
                }
                return Ok(Turn::Over);
            }
            "drop" => {
                drop(guard);
                report(HolderEvent::Dropped { token, called_us });
                return Ok(Turn::Over);
            }
            "leak" => {
                std::mem::forget(guard);
                report(HolderEvent::Leaked { token });
                return Ok(Turn::Leaked);
            }
            "panic" => panic!("panic with the lock held, as requested"),
            "exit" => {
                // A dropped guard might be released before the process has ended.
                std::mem::forget(guard);
                return Ok(Turn::Exit);
            }
            other => match other.strip_prefix("write ") {
                Some(text) => write(store, &guard, text).await,
                None => not_now(other),
            },
        }
    }
}

/// Reports the result of a write. It does not check the guard.
async fn write(store: &Store, guard: &LockGuard, text: &str) {
    match store.write(guard, text).await {
        Ok(key) => report(HolderEvent::Wrote { token: guard.fencing_token().get(), text: text.to_owned(), key }),
        Err(error) => {
            failed("write", &error);
        }
    }
}

/// Raises the number in the file, in steps that only the lock keeps together. Returns it and when the guard was
/// checked, or `None` if the lease was lost between the steps. A real program would send the token with the write.
async fn count(file: &Path, work: Duration, guard: &LockGuard) -> std::io::Result<Option<(u64, u64)>> {
    let number = match fs::read_to_string(file) {
        Ok(text) => text.trim().parse::<u64>().map_err(std::io::Error::other)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    tokio::time::sleep(work).await;
    let checked_us = micros(machine_now());
    if !guard.is_held() {
        return Ok(None);
    }
    fs::write(file, format!("{}\n", number + 1))?;
    Ok(Some((number + 1, checked_us)))
}

fn check(guard: Option<&LockGuard>) {
    report(HolderEvent::Checked {
        held: guard.is_some_and(LockGuard::is_held),
        validity_ms: guard.map_or(0, |guard| millis(guard.validity())),
    });
}

/// The lines of standard input, read by a thread: no runtime can stop a read of it.
fn commands() -> UnboundedReceiver<String> {
    let (sender, receiver) = unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let line = line.trim().to_owned();
            if !line.is_empty() && sender.send(line).is_err() {
                return;
            }
        }
        // Keeps the channel open, so that the end of the input has no effect.
        std::mem::forget(sender);
    });
    receiver
}

fn not_now(command: &str) {
    let text = format!("`{command}` is not a command, or cannot run now: see --help");
    report_failure("command", format!("{:?}", ErrorKind::InvalidInput), text);
}

fn failed(doing: &str, error: &Error) -> u8 {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    report_failure(doing, format!("{:?}", error.kind()), text);
    1
}

fn report_failure(doing: &str, kind: String, text: String) {
    report(HolderEvent::Failed { doing: doing.to_owned(), kind, text });
}

/// Flushes at once, so that a reader sees the line even if the process is killed next.
fn report(event: HolderEvent) {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{}", HolderLine::now(event)).and_then(|()| out.flush());
    if written.is_err() {
        // The reader has closed the pipe.
        std::process::exit(1);
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn duration(text: &str) -> Result<Duration, Error> {
    leasehold::backend::kit::parse_duration("this option", text)
}
