//! How long a waiter needs to take over from a killed holder, and how long a holder needs to notice that its lease is
//! lost.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leasehold_conformance::harness::{ChildProcess, LagMonitor};
use leasehold_core::{KeeperRuntime, LockClient};
use leasehold_test_servers::RedisSettings;

use crate::report::{Figure, Goal, Unit};
use crate::rounds::median;
use crate::{etcd, mysql, peers, zk};

const WORKLOAD: &str = "takeover";
const ROUNDS: usize = 15;
pub(crate) const TTL: Duration = Duration::from_secs(1);

pub(crate) async fn run() -> Result<Vec<Figure>> {
    let mut server = RedisSettings::new().start()?;
    let client = peers::client(&server.url(), KeeperRuntime::OwnThread).await?;
    let lag_monitor = LagMonitor::start();
    let killed = killed(&client, &server.url(), TTL, Ends::AtTheDeadline).await?;
    let (mut fixed, mut silent) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let guard = client.lock(format!("fixed/{round}")).ttl(TTL / 4).without_renewal().acquire().await?;
        let (start, validity) = (Instant::now(), guard.validity());
        guard.lost().await;
        fixed.push(Sample::new(Instant::now(), start + validity, &lag_monitor, start));
    }
    for round in 0..ROUNDS {
        let guard = client.lock(format!("silent/{round}")).ttl(TTL).acquire().await?;
        tokio::time::sleep(TTL.mul_f64(0.4)).await;
        // With the server paused no renewal has a reply, so this is the last validity.
        server.pause()?;
        tokio::time::sleep(TTL / 20).await;
        let (start, validity) = (Instant::now(), guard.validity());
        guard.lost().await;
        silent.push(Sample::new(Instant::now(), start + validity, &lag_monitor, start));
        server.resume()?;
        drop(guard);
        // The next round begins with a server that works.
        while client.lock("awake").try_acquire().await.is_err() {
            tokio::time::sleep(TTL / 10).await;
        }
    }

    let mut figures = Vec::new();
    for (what, samples, bound) in [
        ("a killed holder's waiter holds, after the deadline of its record", &killed, 50.0),
        ("the loss of a fixed lease is reported, after valid_until", &fixed, 5.0),
        ("the loss before a silent server is reported, after valid_until", &silent, 5.0),
    ] {
        figures.extend(self::figures(WORKLOAD, what, samples, bound));
    }
    Ok(figures)
}

pub(crate) fn figures(workload: &str, what: &str, samples: &[Sample], bound: f64) -> [Figure; 2] {
    let worst = samples.iter().map(|sample| sample.late - sample.lag).fold(f64::MIN, f64::max);
    let middle = median(samples.iter().map(|sample| sample.late));
    let worst_what = format!("{what} (worst, less the machine's lag)");
    [
        Figure::new(workload, worst_what, worst, Unit::Milliseconds, Goal::AtMost(bound)),
        Figure::plain(workload, format!("{what} (median)"), middle, Unit::Milliseconds),
    ]
}

/// When the lease of a killed holder ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// At the time in its record.
    AtTheDeadline,
    /// One ttl after the kill at the latest, because the last renewal was before the kill.
    WithinTheTtl,
    /// When the server notices that the connection is closed.
    WithTheProcess,
}

/// Kills holders for which another client waits, and measures how long after the end of the lease the waiter gets the
/// lock.
pub(crate) async fn killed(client: &LockClient, url: &str, ttl: Duration, ends: Ends) -> Result<Vec<Sample>> {
    let lag_monitor = LagMonitor::start();
    let mut samples = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("killed/{round}");
        let mut holder = holder(url, &name, ttl)?;
        let waiter = client.lock(&name).ttl(ttl);
        let waiter = tokio::spawn(async move { waiter.acquire().await.map(|guard| (guard, Instant::now())) });
        // The pause is long enough for the waiter to queue, and ends at a different time after the holder's last
        // renewal in each round.
        let pause = ttl / 3 + ttl.mul_f64(round as f64 / ROUNDS as f64 / 3.0);
        tokio::time::sleep(pause).await;
        let before = Instant::now();
        holder.kill()?;
        let due = match ends {
            Ends::WithTheProcess => before,
            Ends::WithinTheTtl => before + ttl,
            Ends::AtTheDeadline => {
                let kill = Instant::now();
                // No request renews the lease any more, so the time in the record is final.
                let lease = client
                    .inspect(&name)
                    .await?
                    .and_then(|seen| seen.holders.into_iter().next())
                    .context("the killed holder has no lease")?;
                kill + lease.ttl_left
            }
        };
        let (guard, held) = waiter.await??;
        samples.push(Sample::new(held, due, &lag_monitor, before));
        guard.release().await?;
    }
    Ok(samples)
}

/// How late something was, in milliseconds, and how late the machine woke its tasks meanwhile.
pub(crate) struct Sample {
    late: f64,
    lag: f64,
}

impl Sample {
    fn new(happened: Instant, due: Instant, lag_monitor: &LagMonitor, since: Instant) -> Self {
        let late = if happened >= due { (happened - due).as_secs_f64() } else { -(due - happened).as_secs_f64() };
        Self { late: 1000.0 * late, lag: 1000.0 * lag_monitor.lag_since(since).as_secs_f64() }
    }
}

/// A process that holds a lock.
fn holder(url: &str, name: &str, ttl: Duration) -> Result<ChildProcess> {
    let ttl = ttl.as_millis().to_string();
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--hold", url, name, &ttl]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = ChildProcess::spawn(&mut command)?;
    let (_, output, _) = process.take_pipes();
    let mut line = String::new();
    BufReader::new(output.context("the holder has no output")?).read_line(&mut line)?;
    ensure!(line.trim() == "held", "the holder does not hold: {line:?}");
    Ok(process)
}

/// Holds a lock until this process is killed: URL, name and ttl in ms.
pub(crate) fn hold(args: &[String]) -> Result<()> {
    let [url, name, ttl] = args else { anyhow::bail!("URL, name and ttl are wanted") };
    let ttl = Duration::from_millis(ttl.parse()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = match url.split_once(':').map(|(scheme, _)| scheme) {
            Some("mysql") => mysql::connect(url, KeeperRuntime::OwnThread).await?,
            Some("etcd") => etcd::client(url, KeeperRuntime::OwnThread).await?,
            Some("zk") => zk::client(url, KeeperRuntime::OwnThread).await?,
            _ => peers::client(url, KeeperRuntime::OwnThread).await?,
        };
        let guard = client.lock(name).ttl(ttl).acquire().await?;
        println!("held");
        std::io::stdout().flush()?;
        anyhow::bail!("the lease was lost: {:?}", guard.lost().await)
    })
}
