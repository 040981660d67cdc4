//! Compares Leasehold with its goals and with other lock libraries: `cargo xtask bench`.
//!
//! Every figure is a ratio, or a distance from a promised time, and comes from one run. Contenders run in alternating
//! rounds, so that a noisy machine disturbs all of them equally, and a run reports the median of its rounds. A report
//! shows the median of several runs, and the lowest and the highest.

mod cluster;
mod commands;
mod contended;
mod embedded;
mod etcd;
mod handoff;
mod held;
mod mysql;
mod peers;
mod placement;
mod quorum;
mod recorded;
mod report;
mod rounds;
mod startup;
mod takeover;
mod uncontended;
mod usage;
mod zk;

use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};

use crate::report::{Figure, Report};
use crate::uncontended::State;

/// Measures Leasehold against its goals and beside others.
#[derive(Parser)]
struct Args {
    /// The workloads; all of them when none is named.
    #[arg(value_enum)]
    workloads: Vec<Workload>,
    /// How often each workload is run.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Runs one workload in this process, and prints its figures as JSON.
    #[arg(long, hide = true, value_name = "WORKLOAD")]
    only: Option<Workload>,
    /// Runs one peer of the uncontended workloads alone, for a profiler: its number (0 is Leasehold, 5 is Leasehold on a
    /// quorum of five servers), tasks, seconds.
    #[arg(long, hide = true, num_args = 3, value_names = ["PEER", "TASKS", "SECONDS"])]
    alone: Option<Vec<usize>>,
    /// Holds a lock until it is killed: URL, name and ttl in ms.
    #[arg(long, hide = true, num_args = 3, value_names = ["URL", "NAME", "TTL"])]
    hold: Option<Vec<String>>,
    /// Waits for the locks of `sqlite` in this file until it is killed.
    #[arg(long, hide = true, value_name = "FILE")]
    wait_for: Option<String>,
    /// Takes turns at the lock of `sqlite` in this file, one for each line that it reads.
    #[arg(long, hide = true, value_name = "FILE")]
    take_turns: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Workload {
    /// Acquire and release, 1, 16 and 256 tasks, each with a lock of its own; client and server share one CPU.
    UncontendedPinned,
    /// The same with the client on one CPU and the server on another.
    UncontendedSplit,
    /// The same with a path of 2 ms each way between client and server.
    UncontendedPath,
    /// 2, 10, 100 and 1,000 clients that hand one lock on.
    Handoff,
    /// 100,000 held leases on the memory store.
    HeldMemory,
    /// 100,000 held leases on Redis.
    HeldRedis,
    /// Locks on etcd: pairs, handoffs, 10,000 held leases, takeovers.
    Etcd,
    /// Locks on MariaDB: pairs, 10,000 held leases, 100 waiters, handoffs.
    Mysql,
    /// Locks on a Redis Cluster of three primaries: pairs, beside pairs on one server; 100,000 held leases.
    Cluster,
    /// Locks on a quorum of five Redis servers: pairs, beside pairs on one server; one of the five paused or down.
    Quorum,
    /// A holder that is killed, and one that loses its lease.
    Takeover,
    /// The command's start, beside `flock`.
    Startup,
    /// Locks in a SQLite file: a pair, idle waiters, a handoff between processes.
    Sqlite,
    /// Locks on ZooKeeper: pairs, handoffs, 10,000 held leases, takeovers.
    Zk,
}

impl Workload {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = if let Some(workload) = args.only {
        only(workload)
    } else if let Some(alone) = &args.alone {
        self::alone(alone)
    } else if let Some(hold) = &args.hold {
        takeover::hold(hold)
    } else if let Some(path) = &args.wait_for {
        runtime().and_then(|runtime| runtime.block_on(embedded::wait_for(path)))
    } else if let Some(path) = &args.take_turns {
        runtime().and_then(|runtime| runtime.block_on(embedded::take_turns(path)))
    } else {
        all(&args)
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a workload in its own process, so that no run inherits the memory and the threads of another.
fn all(args: &Args) -> Result<()> {
    let workloads = if args.workloads.is_empty() { Workload::value_variants() } else { &args.workloads };
    let mut report = Report::default();
    for (run, workload) in (1..=args.runs).flat_map(|run| workloads.iter().map(move |workload| (run, workload))) {
        eprintln!("run {run} of {}: {} …", args.runs, workload.name());
        let output = Command::new(std::env::current_exe()?)
            .args(["--only", &workload.name()])
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()?;
        if !output.status.success() {
            bail!("{} failed: {}", workload.name(), output.status);
        }
        let figures: Vec<Figure> =
            serde_json::from_slice(&output.stdout).context("cannot read a workload's figures")?;
        report.add(figures);
    }
    println!("{}", if args.json { serde_json::to_string_pretty(&report)? } else { report.table() });
    Ok(())
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

fn alone(args: &[usize]) -> Result<()> {
    let [peer, tasks, seconds] = *args else { bail!("peer, tasks and seconds are wanted") };
    let period = Duration::from_secs(seconds as u64);
    match peer {
        quorum::PEER => runtime()?.block_on(quorum::alone(peer, tasks, period)),
        peer => runtime()?.block_on(uncontended::alone(peer, tasks, period)),
    }
}

fn only(workload: Workload) -> Result<()> {
    let figures = match workload {
        Workload::UncontendedPinned => uncontended::run(&workload.name(), State::Pinned),
        Workload::UncontendedSplit => uncontended::run(&workload.name(), State::Split),
        Workload::UncontendedPath => uncontended::run(&workload.name(), State::Path),
        Workload::Handoff => runtime()?.block_on(handoff::run()),
        Workload::HeldMemory => runtime()?.block_on(held::memory()),
        Workload::HeldRedis => runtime()?.block_on(held::redis()),
        Workload::Etcd => runtime()?.block_on(etcd::run()),
        Workload::Mysql => runtime()?.block_on(mysql::run()),
        Workload::Cluster => runtime()?.block_on(cluster::run()),
        Workload::Quorum => runtime()?.block_on(quorum::run()),
        Workload::Takeover => runtime()?.block_on(takeover::run()),
        Workload::Startup => startup::run(),
        Workload::Sqlite => runtime()?.block_on(embedded::run()),
        Workload::Zk => runtime()?.block_on(zk::run()),
    }?;
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}
