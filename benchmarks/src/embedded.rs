//! Locks in a SQLite file, between processes.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leasehold_conformance::harness::{ChildProcess, machine_now, micros};
use leasehold_core::LockClient;
use leasehold_sqlite::rusqlite::{Connection, params};
use leasehold_sqlite::{Settings, SqliteBackend};

use crate::report::{Figure, Goal, Unit};
use crate::rounds::{self, Round, median};
use crate::usage;

const WORKLOAD: &str = "sqlite";
const ROUNDS: usize = 11;
const PERIOD: Duration = Duration::from_millis(400);

const PROCESSES: usize = 10;
const WAITERS: usize = 10;
/// More than ten polls of each waiter.
const WATCHED: Duration = Duration::from_secs(15);

const HANDOFFS: usize = 300;
/// This long after it has started an acquire, the other process certainly waits.
const SETTLED: Duration = Duration::from_millis(10);

pub(crate) async fn run() -> Result<Vec<Figure>> {
    let mut figures = pairs().await?;
    figures.extend(idle().await?);
    figures.extend(handoffs().await?);
    Ok(figures)
}

async fn client(path: &str) -> Result<LockClient> {
    Ok(LockClient::builder(SqliteBackend::connect_with(path, Settings::default()).await?)
        .wait(Duration::MAX)
        .build()?)
}

/// A folder, and the path of a file in it.
fn file() -> Result<(tempfile::TempDir, String)> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("locks.db").to_str().context("the folder has a strange name")?.to_owned();
    Ok((folder, path))
}

/// Two writes by plain statements on their own connection: the least that an acquire and a release need. The settings
/// are those of lock-sqlite, and another thread makes checkpoints as often as lock-sqlite does.
struct Raw {
    connection: Connection,
    writes: u32,
    checkpoint: SyncSender<()>,
}

impl Raw {
    /// A checkpoint is due after this many writes.
    const CHECKPOINT_EVERY: u32 = 1024;

    fn open(path: &str) -> Result<Self> {
        let connection = Connection::open(path)?;
        connection.execute_batch(
            "PRAGMA page_size = 1024; PRAGMA journal_mode = wal; PRAGMA synchronous = normal; \
             PRAGMA wal_autocheckpoint = 0; \
             CREATE TABLE lock (name TEXT PRIMARY KEY, owner INTEGER, fence INTEGER) WITHOUT ROWID",
        )?;
        let (checkpoint, due) = sync_channel::<()>(1);
        let other = Connection::open(path)?;
        // The loop ends when the sender is dropped.
        std::thread::spawn(move || {
            while due.recv().is_ok() {
                // A checkpoint that is not possible now is made the next time.
                let _ = other.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
            }
        });
        Ok(Self { connection, writes: 0, checkpoint })
    }

    fn pair(&mut self, owner: i64) -> Result<()> {
        const TAKE: &str = "INSERT INTO lock VALUES ('bench', ?1, 1) \
            ON CONFLICT (name) DO UPDATE SET owner = ?1, fence = fence + 1 WHERE owner = 0";
        let taken = self.connection.prepare_cached(TAKE)?.execute(params![owner])?;
        let left = self
            .connection
            .prepare_cached("UPDATE lock SET owner = 0 WHERE name = 'bench' AND owner = ?1")?
            .execute(params![owner])?;
        ensure!((taken, left) == (1, 1), "the raw lock was not free");
        self.writes += 2;
        if self.writes >= Self::CHECKPOINT_EVERY {
            self.writes = 0;
            // A full channel means that a checkpoint is due already.
            let _ = self.checkpoint.try_send(());
        }
        Ok(())
    }
}

async fn pairs() -> Result<Vec<Figure>> {
    let ((_own_folder, own), (_raw_folder, other)) = (file()?, file()?);
    let client = client(&own).await?;
    let connection = Arc::new(Mutex::new(Raw::open(&other)?));
    let leasehold = || {
        let client = client.clone();
        rounds::run(1, PERIOD, move |_| {
            let lock = client.lock("bench");
            async move { Ok(lock.acquire().await?.release().await?) }
        })
    };
    let bare = || {
        let connection = connection.clone();
        rounds::run(1, PERIOD, move |_| {
            let connection = connection.clone();
            async move { connection.lock().unwrap_or_else(PoisonError::into_inner).pair(7) }
        })
    };
    leasehold().await?;
    bare().await?;
    let mut rounds: Vec<(Round, Round)> = Vec::new();
    for number in 0..ROUNDS {
        rounds.push(if number % 2 == 0 {
            let own = leasehold().await?;
            (own, bare().await?)
        } else {
            let other = bare().await?;
            (leasehold().await?, other)
        });
    }
    let ratio = median(rounds.iter().map(|(own, other)| own.per_second / other.per_second));
    let scale = median(rounds.iter().map(|(own, _)| own.per_second));
    let what = "pairs/s with 1 task, against two raw writes with the same settings";
    Ok(vec![
        Figure::new(WORKLOAD, what, ratio, Unit::Ratio, Goal::AtLeast(0.75)),
        Figure::plain(WORKLOAD, "pairs with 1 task, here", scale, Unit::PerSecond),
    ])
}

/// Another process of this program, and its pipes.
struct Other {
    process: ChildProcess,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = ChildProcess::spawn(&mut command)?;
        let (input, output, _) = process.take_pipes();
        let input = input.context("a process without input")?;
        Ok(Self { process, input, output: BufReader::new(output.context("a process without output")?) })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

async fn idle() -> Result<Vec<Figure>> {
    let (_folder, path) = file()?;
    let client = client(&path).await?;
    let mut guards = Vec::new();
    for lock in 0..WAITERS {
        guards.push(client.lock(format!("idle/{lock}")).acquire().await?);
    }
    let mut others = Vec::new();
    for _ in 0..PROCESSES {
        others.push(Other::start(&["--wait-for", &path])?);
    }
    // By then, the processes have finished their start-up.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let used = |others: &[Other]| -> Result<Duration> {
        others.iter().map(|other| usage::processor_of(&other.process.id().to_string())).sum()
    };
    let before = used(&others)?;
    tokio::time::sleep(WATCHED).await;
    let used = used(&others)? - before;
    ensure!(guards.iter().all(leasehold_core::LockGuard::is_held), "a lease was lost, so not all of them waited");
    let percent = 100.0 * used.as_secs_f64() / WATCHED.as_secs_f64();
    let what = "processor of 100 idle waiters in 10 processes";
    Ok(vec![Figure::new(WORKLOAD, what, percent, Unit::Percent, Goal::AtMost(2.0))])
}

/// Waits for all locks of the workload until this process is killed.
pub(crate) async fn wait_for(path: &str) -> Result<()> {
    let client = client(path).await?;
    let mut tasks = Vec::new();
    for lock in 0..WAITERS {
        let lock = client.lock(format!("idle/{lock}"));
        tasks.push(tokio::spawn(async move { lock.acquire().await }));
    }
    for task in tasks {
        drop(task.await??);
    }
    anyhow::bail!("a lock was granted that this process was to wait for")
}

async fn handoffs() -> Result<Vec<Figure>> {
    let (_folder, path) = file()?;
    let lock = client(&path).await?.lock("handoff");
    let mut other = Other::start(&["--take-turns", &path])?;
    let mut took = Vec::new();
    for _ in 0..HANDOFFS {
        let guard = lock.acquire().await?;
        writeln!(other.input, "wait")?;
        ensure!(other.line()? == "waiting", "the other process does not wait");
        tokio::time::sleep(SETTLED).await;
        let released = micros(machine_now());
        guard.release().await?;
        let held: u64 = other.line()?.parse()?;
        took.push(held.saturating_sub(released) as f64 / 1000.0);
    }
    took.sort_by(f64::total_cmp);
    let (p50, p99) = (took[HANDOFFS / 2], took[HANDOFFS * 99 / 100]);
    Ok(vec![
        Figure::new(WORKLOAD, "handoff between two processes (p50)", p50, Unit::Milliseconds, Goal::AtMost(5.0)),
        Figure::plain(WORKLOAD, "handoff between two processes (p99)", p99, Unit::Milliseconds),
    ])
}

/// Acquires the lock once for each line that it reads, prints when it got the lock, and releases it.
pub(crate) async fn take_turns(path: &str) -> Result<()> {
    let lock = client(path).await?.lock("handoff");
    for line in std::io::stdin().lock().lines() {
        line?;
        println!("waiting");
        std::io::stdout().flush()?;
        let guard = lock.acquire().await?;
        let held = micros(machine_now());
        guard.release().await?;
        println!("{held}");
        std::io::stdout().flush()?;
    }
    Ok(())
}
