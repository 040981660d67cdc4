//! One lock that many clients pass on.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use leasehold_core::{KeeperRuntime, LockClient};
use leasehold_test_servers::RedisSettings;
use redis::aio::MultiplexedConnection;

use crate::report::{Figure, Goal, Unit};
use crate::rounds::median;
use crate::{commands, peers};

const WORKLOAD: &str = "handoff";
const WAITERS: [usize; 4] = [2, 10, 100, 1000];
const ROUNDS: usize = 7;
const PERIOD: Duration = Duration::from_millis(1500);

/// The figures of one round.
struct Round {
    per_second: f64,
    commands: f64,
    /// The largest number of grants to others between two grants of one client, divided by the number of clients. 1 is
    /// perfectly fair.
    longest_turn: f64,
}

pub(crate) async fn run() -> Result<Vec<Figure>> {
    // A thousand clients in one process simulate a thousand processes, so their keepers share the runtime of this
    // process.
    let most = WAITERS.iter().max().copied().unwrap_or_default();
    let server = RedisSettings::new().line("maxclients 10000").start()?;
    let mut side = peers::connect(&server.url()).await?;
    // They connect beforehand, so that a round measures no connections.
    let mut clients = Vec::new();
    for number in 0..most {
        let client = peers::client(&server.url(), KeeperRuntime::CurrentRuntime).await?;
        client.lock(format!("connect/{number}")).acquire().await?.release().await?;
        clients.push(client);
    }

    let mut rounds: Vec<Vec<Round>> = WAITERS.iter().map(|_| Vec::new()).collect();
    for number in 0..ROUNDS {
        for (waiters, rounds) in WAITERS.iter().zip(&mut rounds) {
            rounds.push(round(&clients[..*waiters], format!("{waiters}/{number}"), &mut side).await?);
        }
    }

    let mut figures = Vec::new();
    for (waiters, rounds) in WAITERS.iter().zip(&rounds) {
        let commands = median(rounds.iter().map(|round| round.commands));
        let what = format!("sent for each handoff, {waiters} waiters");
        figures.push(Figure::new(WORKLOAD, what, commands, Unit::Commands, Goal::AtMost(2.2)));
    }
    for (waiters, rounds) in WAITERS.iter().zip(&rounds) {
        let turn = rounds.iter().map(|round| round.longest_turn).fold(0.0, f64::max);
        let what = format!("longest turn against a fair one, {waiters} waiters (worst round)");
        figures.push(Figure::plain(WORKLOAD, what, turn, Unit::Ratio));
    }
    let speed = |index: usize| median(rounds[index].iter().map(|round| round.per_second));
    let ratio = median(rounds[3].iter().zip(&rounds[1]).map(|(many, few)| many.per_second / few.per_second));
    figures.push(Figure::new(
        WORKLOAD,
        "handoffs/s of 1,000 waiters against 10",
        ratio,
        Unit::Ratio,
        Goal::AtLeast(0.5),
    ));
    for (index, waiters) in WAITERS.iter().enumerate() {
        figures.push(Figure::plain(
            WORKLOAD,
            format!("handoffs with {waiters} waiters, here"),
            speed(index),
            Unit::PerSecond,
        ));
    }
    Ok(figures)
}

async fn round(clients: &[LockClient], name: String, side: &mut MultiplexedConnection) -> Result<Round> {
    let stop = Arc::new(AtomicBool::new(false));
    let grants: Arc<Mutex<Vec<u32>>> = Arc::default();
    let mut tasks = Vec::new();
    for (number, client) in clients.iter().enumerate() {
        let (lock, stop, grants) = (client.lock(&name), stop.clone(), grants.clone());
        tasks.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let guard = lock.acquire().await?;
                grants.lock().unwrap_or_else(PoisonError::into_inner).push(number as u32);
                guard.release().await?;
            }
            anyhow::Ok(())
        }));
    }
    let granted = || grants.lock().unwrap_or_else(PoisonError::into_inner).len();
    // When every client has had the lock once, every client is in the queue.
    let patience = Instant::now() + Duration::from_secs(30);
    while granted() < 2 * clients.len() && Instant::now() < patience {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (start, from, sent) = (Instant::now(), granted(), commands::sent(side).await?);
    tokio::time::sleep(PERIOD).await;
    let (to, sent) = (granted(), commands::sent(side).await? - sent);
    let elapsed = start.elapsed();
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await??;
    }
    let handoffs = (to - from) as f64;
    let grants = grants.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(Round {
        per_second: handoffs / elapsed.as_secs_f64(),
        commands: sent as f64 / handoffs,
        longest_turn: longest_turn(&grants[from..to]) as f64 / clients.len() as f64,
    })
}

fn longest_turn(grants: &[u32]) -> usize {
    let mut last = HashMap::new();
    let mut longest = 0;
    for (turn, client) in grants.iter().enumerate() {
        let before = last.insert(client, turn);
        longest = longest.max(before.map_or(0, |before| turn - before));
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fair_round_gives_everybody_a_turn() {
        assert_eq!(longest_turn(&[1, 2, 3, 1, 2, 3]), 3);
        assert_eq!(longest_turn(&[1, 2, 2, 2, 1]), 4);
        assert_eq!(longest_turn(&[]), 0);
    }
}
