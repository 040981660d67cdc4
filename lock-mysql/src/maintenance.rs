//! Removes the rows of locks that have been free for longer than the retention.
//!
//! Each client that acquires locks does so in steps: a step reads some rows, in the order of their names, and removes
//! those that may be removed in one statement. So no statement locks many rows, and a long table costs no client much.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::backend::CoreHandle;
use sqlx::mysql::MySqlRow;
use tokio::time::Instant;

use crate::errors::Failure;
use crate::pool::Pool;
use crate::session::SetUp;
use crate::shared::Shared;
use crate::sql::get;

/// The pause between two steps: a quarter of the retention, within these bounds.
const PAUSE: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);

/// The pause after a step that removed rows, if others follow.
const SHORT_PAUSE: Duration = Duration::from_secs(1);

/// How a strategy removes the rows of free locks.
pub(crate) trait Purge: 'static {
    /// What its connection needs. It is closed after the step.
    const SET_UP: SetUp;

    /// Reads the rows after a name and removes those that may be removed. Returns the last name and the number of
    /// removed rows, or `None` at the end of the table.
    fn step(
        pool: &Pool,
        after: &[u8],
        retention: Duration,
        until: Instant,
    ) -> impl Future<Output = Result<Option<(Vec<u8>, u64)>, Failure>> + Send;
}

/// The names in the rows of a step, `(name, may be removed)`, whose rows may be removed.
pub(crate) fn removable(rows: &[MySqlRow]) -> Result<Vec<Vec<u8>>, Failure> {
    let mut names = Vec::new();
    for row in rows {
        if get::<i64>(row, 1)? != 0 {
            names.push(get(row, 0)?);
        }
    }
    Ok(names)
}

/// Whether this client has to remove rows.
pub(crate) struct Maintenance {
    shared: Arc<Shared>,
    is_running: AtomicBool,
    /// This client has acquired a lock since the last step.
    is_due: AtomicBool,
}

impl Maintenance {
    pub(crate) fn new(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self { shared, is_running: AtomicBool::new(false), is_due: AtomicBool::new(false) })
    }

    /// Notes that this client has acquired a lock. Starts the task with the first one. It runs until the client is
    /// dropped.
    pub(crate) fn acquired<P: Purge>(self: &Arc<Self>, core: &CoreHandle) {
        if self.is_due.swap(true, Ordering::Relaxed) || self.is_running.swap(true, Ordering::Relaxed) {
            return;
        }
        let (it, clock) = (Arc::downgrade(self), core.clone());
        let long = (self.shared.settings.retention / 4).clamp(*PAUSE.start(), *PAUSE.end());
        core.keeper_runtime().spawn(async move {
            let (mut pause, mut after) = (long, Vec::new());
            loop {
                tokio::time::sleep(clock.jitter(pause)).await;
                let Some(it) = it.upgrade() else { return };
                pause = it.step::<P>(&mut after, long).await;
            }
        });
    }

    /// Removes rows after a name, if there may be any. Returns the pause until the next step.
    async fn step<P: Purge>(&self, after: &mut Vec<u8>, long: Duration) -> Duration {
        if after.is_empty() && !self.is_due.swap(false, Ordering::Relaxed) {
            return long;
        }
        let begin = std::mem::take(after);
        let pool = Pool::single(&self.shared, P::SET_UP);
        match P::step(&pool, &begin, self.shared.settings.retention, self.shared.until()).await {
            Ok(Some((last, removed))) => {
                *after = last;
                if removed > 0 { SHORT_PAUSE.min(long) } else { long }
            }
            Ok(None) => long,
            Err(failure) => {
                tracing::debug!(
                    target: "leasehold", backend = "mysql", ?failure,
                    "the rows of free locks cannot be removed"
                );
                long
            }
        }
    }
}
