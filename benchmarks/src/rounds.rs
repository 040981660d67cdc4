//! Rounds that alternate between contenders, and the figures of a round.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

/// The median. NaN if there are no values.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The figures of one contender in one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    /// Operations a second, over all tasks.
    pub(crate) per_second: f64,
    /// How many operations were run.
    pub(crate) operations: usize,
    /// The median of the time of an operation, in seconds.
    pub(crate) p50: f64,
    /// The 99th percentile of the time of an operation, in seconds.
    pub(crate) p99: f64,
}

/// Runs `operation` repeatedly in this many tasks for about `period`.
pub(crate) async fn run<F, W>(tasks: usize, period: Duration, operation: F) -> Result<Round>
where
    F: Fn(usize) -> W + Send + Sync + 'static,
    W: Future<Output = Result<()>> + Send + 'static,
{
    let operation = Arc::new(operation);
    let stop = Arc::new(AtomicBool::new(false));
    let start = Instant::now();
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let (operation, stop) = (operation.clone(), stop.clone());
            tokio::spawn(async move {
                let mut times = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let before = Instant::now();
                    operation(task).await?;
                    times.push(before.elapsed().as_secs_f32());
                }
                anyhow::Ok((times, Instant::now()))
            })
        })
        .collect();
    tokio::time::sleep(period).await;
    stop.store(true, Ordering::Relaxed);
    let (mut times, mut end) = (Vec::new(), start);
    for task in tasks {
        let (own, ended) = task.await??;
        times.extend(own);
        end = end.max(ended);
    }
    times.sort_by(f32::total_cmp);
    let percentile = |percent| times.get(times.len() * percent / 100).copied().unwrap_or(f32::NAN).into();
    let (p50, p99) = (percentile(50), percentile(99));
    let operations = times.len();
    Ok(Round { per_second: operations as f64 / (end - start).as_secs_f64(), operations, p50, p99 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_found() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert!(median([]).is_nan());
    }
}
