//! 100,000 held leases: how much memory each uses, and how much processor time their renewals use in the process and in
//! the server.

use std::time::{Duration, Instant};

use anyhow::Result;
use leasehold_core::memory::{MemoryBackend, MemoryStore};
use leasehold_core::{LockClient, LockGuard};
use leasehold_test_servers::RedisSettings;
use redis::aio::MultiplexedConnection;

use crate::peers;
use crate::report::{Figure, Goal, Unit};
use crate::usage;

const LEASES: usize = 100_000;
pub(crate) const TTL: Duration = Duration::from_secs(30);

/// How many acquires run at a time.
const AT_ONCE: usize = 64;

/// Three renewals of each lease.
const WATCHED: Duration = TTL;
const RENEWALS: u32 = 3;

/// The least that such a renewal needs: 100 records are read by one command, and each is written by one command.
const BARE: &str = "redis.call('MGET', unpack(KEYS)) \
     for i = 1, #KEYS do redis.call('SETRANGE', KEYS[i], '4', '\\0\\0\\0\\0\\0\\0\\0\\0') end";
const BATCH: usize = 100;

pub(crate) async fn memory() -> Result<Vec<Figure>> {
    const WORKLOAD: &str = "held-memory";
    let client = LockClient::new(MemoryBackend::new(&MemoryStore::default()));
    // The first acquires include what the process creates only once.
    drop(acquire(&client, "warm-up", AT_ONCE).await?);

    let before = usage::resident()?;
    let guards = acquire(&client, "held", LEASES).await?;
    let bytes = (usage::resident()? - before) as f64 / LEASES as f64;

    let renewed = client.stats().renewed;
    let before = usage::processor()?;
    tokio::time::sleep(WATCHED).await;
    let used = usage::processor()? - before;
    check(&client, &guards, renewed)?;
    Ok(vec![
        Figure::new(WORKLOAD, "memory of a lease, store included", bytes, Unit::Bytes, Goal::AtMost(1024.0)),
        Figure::new(WORKLOAD, "processor for renewal, store included", percent(used), Unit::Percent, Goal::AtMost(5.0)),
    ])
}

pub(crate) async fn redis() -> Result<Vec<Figure>> {
    const WORKLOAD: &str = "held-redis";
    let server = RedisSettings::new().start()?;
    let mut side = peers::connect(&server.url()).await?;
    let before = usage::server_processor(&mut side).await?;
    tokio::time::sleep(WATCHED / 3).await;
    let idle = (usage::server_processor(&mut side).await? - before) * 3;

    let client = peers::client(&server.url(), leasehold_core::KeeperRuntime::OwnThread).await?;
    let begin = Instant::now();
    let guards = acquire(&client, "held", LEASES).await?;
    let acquiring = begin.elapsed();
    let renewed = client.stats().renewed;
    let before = (usage::server_processor(&mut side).await?, usage::processor()?);
    tokio::time::sleep(WATCHED).await;
    let server_used = usage::server_processor(&mut side).await? - before.0;
    let client_used = usage::processor()? - before.1;
    check(&client, &guards, renewed)?;
    let server_percent = percent(server_used.saturating_sub(idle));
    drop(guards);
    // It cannot release all of them within its bound. The records stay in either case, and `bare` uses them.
    let _ = client.shutdown().await;
    let floor = percent(bare(&mut side, acquiring).await?.saturating_sub(idle / RENEWALS) * RENEWALS);
    Ok(vec![
        Figure::new(WORKLOAD, "server's processor for renewal", server_percent, Unit::Percent, Goal::AtMost(2.0)),
        Figure::plain(
            WORKLOAD,
            "server's processor for renewal, against MGET and SETRANGE at the same pace",
            server_percent / floor,
            Unit::Ratio,
        ),
        Figure::plain(WORKLOAD, "client's processor for renewal", percent(client_used), Unit::Percent),
    ])
}

/// The server's processor time for one renewal of all records by bare commands. The commands are spread over `pace`, as
/// the renewals are: leases that were acquired within that time are renewed within it. A command to an idle server
/// costs more than one that follows another.
async fn bare(side: &mut MultiplexedConnection, pace: Duration) -> Result<Duration> {
    let before = usage::server_processor(side).await?;
    let (begin, batches) = (Instant::now(), LEASES / BATCH);
    for batch in 0..batches {
        let due = pace.mul_f64(batch as f64 / batches as f64);
        tokio::time::sleep(due.saturating_sub(begin.elapsed())).await;
        let mut call = redis::cmd("EVAL");
        call.arg(BARE).arg(BATCH);
        for lease in batch * BATCH..(batch + 1) * BATCH {
            call.arg(format!("leasehold:{{held%2F{lease}}}"));
        }
        call.exec_async(side).await?;
    }
    tokio::time::sleep((WATCHED / RENEWALS).saturating_sub(begin.elapsed())).await;
    Ok(usage::server_processor(side).await? - before)
}

fn percent(used: Duration) -> f64 {
    100.0 * used.as_secs_f64() / WATCHED.as_secs_f64()
}

/// Acquires this many leases, which are renewed every third of [`TTL`].
pub(crate) async fn acquire(client: &LockClient, prefix: &'static str, count: usize) -> Result<Vec<LockGuard>> {
    let mut tasks = Vec::new();
    for task in 0..AT_ONCE {
        let client = client.clone();
        tasks.push(tokio::spawn(async move {
            let mut guards = Vec::with_capacity(count / AT_ONCE + 1);
            for lease in (task..count).step_by(AT_ONCE) {
                guards.push(client.lock(format!("{prefix}/{lease}")).ttl(TTL).acquire().await?);
            }
            anyhow::Ok(guards)
        }));
    }
    let mut guards = Vec::with_capacity(count);
    for task in tasks {
        guards.extend(task.await??);
    }
    Ok(guards)
}

/// Checks that every lease was renewed about three times and is still held, so the right thing was measured.
fn check(client: &LockClient, guards: &[LockGuard], renewed_before: u64) -> Result<()> {
    let renewed = client.stats().renewed - renewed_before;
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    let expected = 3 * LEASES as u64;
    anyhow::ensure!(lost == 0, "{lost} leases were lost");
    anyhow::ensure!(renewed.abs_diff(expected) < expected / 10, "{renewed} renewals were made, not about {expected}");
    Ok(())
}
