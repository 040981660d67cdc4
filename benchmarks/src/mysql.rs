//! Locks on a MariaDB server, both as rows and by `SELECT … FOR UPDATE`, compared with raw statements on their own
//! connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leasehold_core::{KeeperRuntime, LockClient, LockGuard};
use leasehold_mysql::sqlx::mysql::MySqlConnection;
use leasehold_mysql::sqlx::{self, Connection};
use leasehold_mysql::{MySqlBackend, SCHEMA, grants};
use leasehold_test_servers::{MySqlServer, MySqlSettings};
use tokio::sync::Mutex;

use crate::report::{Figure, Goal, Unit};
use crate::rounds::{self, Round, median};
use crate::takeover::{self, Ends};
use crate::{held, usage};

const WORKLOAD: &str = "mysql";
const ROUNDS: usize = 7;
const PERIOD: Duration = Duration::from_millis(500);
const TASKS: [usize; 3] = [1, 16, 64];

/// The number of connections of a client, and of the raw statements.
const CONNECTIONS: usize = 4;

const LEASES: usize = 10_000;
const WATCHED: Duration = Duration::from_secs(30);

const WAITERS: usize = 100;
const HANDOFFS: Duration = Duration::from_secs(3);

const USER: &str = "'bench'@'%'";
const PASSWORD: &str = "bench";

pub(crate) async fn run() -> Result<Vec<Figure>> {
    let server = MySqlSettings::new().option("innodb-buffer-pool-size=128M").option("max-connections=1000").start()?;
    server.query(&format!(
        "CREATE DATABASE locks; USE locks; {SCHEMA} \
         CREATE TABLE raw (name VARBINARY(255) PRIMARY KEY, owner BIGINT, fence BIGINT); \
         CREATE USER {USER} IDENTIFIED BY '{PASSWORD}'; {}; \
         GRANT SELECT, INSERT, UPDATE ON locks.raw TO {USER}; USE mysql",
        grants("locks", USER)
    ))?;
    let mut figures = pairs(&server).await?;
    figures.extend(held(&server).await?);
    figures.extend(waiters(&server).await?);
    figures.extend(row_handoffs(&server).await?);
    figures.extend(for_update_handoffs(&server).await?);
    figures.extend(takeovers(&server).await?);
    Ok(figures)
}

fn url(server: &MySqlServer) -> String {
    format!("mysql://bench:{PASSWORD}@{}/locks", server.addr())
}

fn client_url(server: &MySqlServer, more: &str) -> String {
    format!("{}?tls=off&connections={CONNECTIONS}{more}", url(server))
}

async fn client(server: &MySqlServer, keeper: KeeperRuntime, more: &str) -> Result<LockClient> {
    self::connect(&client_url(server, more), keeper).await
}

/// A client that waits for a lock for as long as necessary.
pub(crate) async fn connect(url: &str, keeper: KeeperRuntime) -> Result<LockClient> {
    Ok(LockClient::builder(MySqlBackend::connect(url).await?).keeper(keeper).wait(Duration::MAX).build()?)
}

/// Removes the strategy of the database. The next client sets it.
fn switch_strategy(server: &MySqlServer) -> Result<()> {
    server.query("DELETE FROM locks.leasehold_locks WHERE name = ''")?;
    Ok(())
}

async fn raw_connection(server: &MySqlServer) -> Result<MySqlConnection> {
    let options: sqlx::mysql::MySqlConnectOptions = url(server).parse()?;
    let options = sqlx::ConnectOptions::disable_statement_logging(options);
    Ok(MySqlConnection::connect_with(&options).await?)
}

/// Two updates by the primary key, each in its own transaction, on their own connections.
struct Raw(Vec<Mutex<MySqlConnection>>);

impl Raw {
    async fn open(server: &MySqlServer) -> Result<Self> {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(Mutex::new(raw_connection(server).await?));
        }
        Ok(Self(connections))
    }

    async fn pair(&self, task: usize) -> Result<()> {
        const TAKE: &str = "UPDATE raw SET owner = ?, fence = fence + 1 WHERE name = ? AND owner = 0";
        const GIVE: &str = "UPDATE raw SET owner = 0 WHERE name = ? AND owner = ?";
        let name = format!("bench/{task}");
        for statement in [sqlx::query(TAKE).bind(7_i64).bind(&name), sqlx::query(GIVE).bind(&name).bind(7_i64)] {
            let mut connection = self.0[task % CONNECTIONS].lock().await;
            let done = statement.execute(&mut *connection).await?;
            ensure!(done.rows_affected() == 1, "the raw lock was not free");
        }
        Ok(())
    }
}

async fn pairs(server: &MySqlServer) -> Result<Vec<Figure>> {
    let client = client(server, KeeperRuntime::OwnThread, "").await?;
    for task in 0..TASKS.into_iter().max().unwrap_or_default() {
        server.query(&format!("INSERT INTO locks.raw VALUES ('bench/{task}', 0, 0)"))?;
    }
    let raw = Arc::new(Raw::open(server).await?);
    let mut figures = Vec::new();
    for tasks in TASKS {
        let leasehold = || {
            let client = client.clone();
            rounds::run(tasks, PERIOD, move |task| {
                let lock = client.lock(format!("bench/{task}"));
                async move { Ok(lock.acquire().await?.release().await?) }
            })
        };
        let bare = || {
            let raw = raw.clone();
            rounds::run(tasks, PERIOD, move |task| {
                let raw = raw.clone();
                async move { raw.pair(task).await }
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
        let p99 = median(rounds.iter().map(|(own, other)| own.p99 / other.p99));
        let scale = median(rounds.iter().map(|(own, _)| own.per_second));
        let what = format!("pairs/s with {tasks} tasks, against two raw updates");
        figures.push(Figure::new(WORKLOAD, what, ratio, Unit::Ratio, Goal::AtLeast(0.85)));
        let what = format!("p99 of a pair with {tasks} tasks, against two raw updates");
        figures.push(Figure::plain(WORKLOAD, what, p99, Unit::Ratio));
        figures.push(Figure::plain(WORKLOAD, format!("pairs with {tasks} tasks, here"), scale, Unit::PerSecond));
    }
    Ok(figures)
}

fn server_processor(server: &MySqlServer) -> Result<Duration> {
    usage::processor_of(&server.id().context("the server has ended")?.to_string())
}

/// How many prepared statements the server has executed.
fn executed(server: &MySqlServer) -> Result<u64> {
    let rows = server.query("SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'")?;
    let value = rows.first().and_then(|row| row.get(1)).cloned().flatten().context("no status")?;
    Ok(String::from_utf8_lossy(&value).parse()?)
}

async fn held(server: &MySqlServer) -> Result<Vec<Figure>> {
    let client = client(server, KeeperRuntime::OwnThread, "").await?;
    let guards = held::acquire(&client, "held", LEASES).await?;
    let renewed = client.stats().renewed;
    let (idle, before) = (idle_processor().await?, server_processor(server)?);
    tokio::time::sleep(WATCHED).await;
    let used = (server_processor(server)? - before).saturating_sub(idle.mul_f64(WATCHED.as_secs_f64()));
    let renewals = client.stats().renewed - renewed;
    ensure!(guards.iter().all(LockGuard::is_held), "a lease was lost");
    ensure!(renewals > 2 * LEASES as u64, "{renewals} renewals were made");
    let percent = 100.0 * used.as_secs_f64() / WATCHED.as_secs_f64();
    drop(guards);
    let _ = client.shutdown().await;
    let what = "server's processor for the renewal of 10,000 leases";
    Ok(vec![
        Figure::new(WORKLOAD, what, percent, Unit::Percent, Goal::AtMost(1.0)),
        Figure::plain(
            WORKLOAD,
            "server's processor for the renewal of a lease",
            used.as_secs_f64() * 1000.0 / renewals as f64,
            Unit::Milliseconds,
        ),
    ])
}

/// The processor time that a server without clients uses per second.
async fn idle_processor() -> Result<Duration> {
    let other = MySqlSettings::new().option("innodb-buffer-pool-size=128M").start()?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = server_processor(&other)?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    Ok((server_processor(&other)? - before) / 5)
}

async fn waiters(server: &MySqlServer) -> Result<Vec<Figure>> {
    let (holder, client) =
        (client(server, KeeperRuntime::OwnThread, "").await?, client(server, KeeperRuntime::OwnThread, "").await?);
    let mut guards = Vec::new();
    let mut tasks = Vec::new();
    for number in 0..WAITERS {
        guards.push(holder.lock(format!("waited/{number}")).ttl(held::TTL * 100).acquire().await?);
        let lock = client.lock(format!("waited/{number}")).ttl(held::TTL);
        tasks.push(tokio::spawn(async move { lock.acquire().await.map(drop) }));
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (before, begin) = (executed(server)?, Instant::now());
    tokio::time::sleep(WATCHED / 2).await;
    let per_second = (executed(server)? - before) as f64 / begin.elapsed().as_secs_f64();
    for task in tasks {
        ensure!(!task.is_finished(), "a lock was granted that is held");
        task.abort();
    }
    let what = "statements for 100 idle waiters of one client";
    Ok(vec![Figure::new(WORKLOAD, what, per_second, Unit::PerSecond, Goal::AtMost(20.0))])
}

async fn row_handoffs(server: &MySqlServer) -> Result<Vec<Figure>> {
    let per_second = handoffs(server, "").await?;
    Ok(vec![Figure::new(WORKLOAD, "handoffs with 100 clients", per_second, Unit::PerSecond, Goal::AtLeast(2_500.0))])
}

/// Compares handoffs with transactions that lock the same row and do nothing else.
async fn for_update_handoffs(server: &MySqlServer) -> Result<Vec<Figure>> {
    switch_strategy(server)?;
    let mut rounds = Vec::new();
    for number in 0..3 {
        let own = async || handoffs(server, "&strategy=for-update").await;
        rounds.push(if number % 2 == 0 {
            let own = own().await?;
            (own, bare_handoffs(server).await?)
        } else {
            let other = bare_handoffs(server).await?;
            (own().await?, other)
        });
    }
    let what = "handoffs with 100 clients by SELECT … FOR UPDATE, against bare transactions";
    let ratio = median(rounds.iter().map(|(own, other)| own / other));
    let scale = median(rounds.iter().map(|(own, _)| *own));
    Ok(vec![
        Figure::new(WORKLOAD, what, ratio, Unit::Ratio, Goal::AtLeast(0.7)),
        Figure::plain(WORKLOAD, "handoffs with 100 clients by SELECT … FOR UPDATE, here", scale, Unit::PerSecond),
    ])
}

/// Handoffs per second of a row that 100 connections lock in turn.
async fn bare_handoffs(server: &MySqlServer) -> Result<f64> {
    const LOCK: &str = "BEGIN; SELECT name FROM raw WHERE name = 'bench/0' FOR UPDATE";
    let turns = Turns::default();
    let mut tasks = Vec::new();
    for number in 0..WAITERS {
        let mut connection = raw_connection(server).await?;
        let turns = turns.clone();
        tasks.push(tokio::spawn(async move {
            while turns.go_on() {
                sqlx::raw_sql(LOCK).execute(&mut connection).await?;
                turns.taken_by(number);
                sqlx::raw_sql("COMMIT").execute(&mut connection).await?;
            }
            anyhow::Ok(())
        }));
    }
    turns.per_second(tasks).await
}

/// Counts how often a lock passes from one of many clients to another. A further grant to the same client does not
/// count.
#[derive(Clone, Default)]
struct Turns(Arc<Counts>);

#[derive(Default)]
struct Counts {
    stop: AtomicBool,
    handed: AtomicU64,
    /// The number of the last client, plus one.
    last: AtomicUsize,
}

impl Turns {
    fn go_on(&self) -> bool {
        !self.0.stop.load(Ordering::Relaxed)
    }

    fn taken_by(&self, number: usize) {
        if self.0.last.swap(number + 1, Ordering::Relaxed) != number + 1 {
            self.0.handed.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn per_second(&self, tasks: Vec<tokio::task::JoinHandle<Result<()>>>) -> Result<f64> {
        // By then, each client has waited once.
        tokio::time::sleep(HANDOFFS).await;
        let handed = || self.0.handed.load(Ordering::Relaxed);
        let (before, begin) = (handed(), Instant::now());
        tokio::time::sleep(HANDOFFS).await;
        let per_second = (handed() - before) as f64 / begin.elapsed().as_secs_f64();
        self.0.stop.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await??;
        }
        Ok(per_second)
    }
}

/// How often a lock for which 100 clients wait passes from one to another per second.
async fn handoffs(server: &MySqlServer, more: &str) -> Result<f64> {
    let turns = Turns::default();
    let mut clients = Vec::new();
    for _ in 0..WAITERS {
        // Many clients in one process stand for many processes, so their keepers share its runtime.
        clients.push(client(server, KeeperRuntime::CurrentRuntime, more).await?);
    }
    let mut tasks = Vec::new();
    for (number, client) in clients.iter().enumerate() {
        let (lock, turns) = (client.lock("handoff"), turns.clone());
        tasks.push(tokio::spawn(async move {
            while turns.go_on() {
                let guard = lock.acquire().await?;
                turns.taken_by(number);
                guard.release().await?;
            }
            Ok(())
        }));
    }
    turns.per_second(tasks).await
}

/// Kills the process of a holder.
async fn takeovers(server: &MySqlServer) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (more, ends, what, bound) in [
        ("", Ends::AtTheDeadline, "a killed holder's waiter holds, after the deadline of its row", 100.0),
        ("&strategy=for-update", Ends::WithTheProcess, "the same with SELECT … FOR UPDATE, after the kill", 10.0),
    ] {
        switch_strategy(server)?;
        let client = client(server, KeeperRuntime::OwnThread, more).await?;
        let samples = takeover::killed(&client, &client_url(server, more), takeover::TTL, ends).await?;
        figures.extend(takeover::figures(WORKLOAD, what, &samples, bound));
    }
    Ok(figures)
}
