//! One lock that passes from one client to the next.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use leasehold_core::LockClient;

use crate::rounds::median;

/// The time and the cost of handoffs.
pub(crate) struct Handoffs {
    /// The time from a release to the next grant, in seconds.
    pub(crate) p50: f64,
    /// How much the counter of the server increased per handoff.
    pub(crate) cost: f64,
}

#[derive(Default)]
struct Shared {
    released: Mutex<Option<Instant>>,
    times: Mutex<Vec<f64>>,
    stop: AtomicBool,
}

/// Passes a lock on `handoffs` times between this many waiters, which are spread over the clients. `counted` reads a
/// counter of the server.
pub(crate) async fn handoffs(
    first: &LockClient,
    clients: &[LockClient],
    waiters: usize,
    handoffs: usize,
    counted: impl Fn() -> Result<f64>,
) -> Result<Handoffs> {
    let shared = Arc::new(Shared::default());
    let guard = first.lock("handoff").acquire().await?;
    let mut tasks = Vec::new();
    for client in clients.iter().cycle().take(waiters) {
        let (client, shared) = (client.clone(), shared.clone());
        tasks.push(tokio::spawn(async move {
            let lock = client.lock("handoff");
            while !shared.stop.load(Ordering::Relaxed) {
                let guard = lock.acquire().await?;
                let now = Instant::now();
                if let Some(released) = shared.released.lock().unwrap_or_else(PoisonError::into_inner).take() {
                    shared.times.lock().unwrap_or_else(PoisonError::into_inner).push((now - released).as_secs_f64());
                }
                *shared.released.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                // A release without a reply continues in the background.
                let _ = guard.release().await;
            }
            anyhow::Ok(())
        }));
    }
    // Every client has a place in the queue before the first handoff.
    let places = async || anyhow::Ok(first.inspect("handoff").await?.and_then(|seen| seen.waiters).unwrap_or_default());
    while places().await? < clients.len() as u64 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // The clients' watches are also ready by then.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = counted()?;
    guard.release().await?;
    let times = || shared.times.lock().unwrap_or_else(PoisonError::into_inner);
    while times().len() < handoffs {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (cost, made) = (counted()? - before, times().len() as f64);
    shared.stop.store(true, Ordering::Relaxed);
    let p50 = median(times().iter().copied());
    for task in tasks {
        task.await??;
    }
    Ok(Handoffs { p50, cost: cost / made })
}
