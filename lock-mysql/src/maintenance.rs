//! Removes the rows of locks that have been free for longer than the retention.
//!
//! Each client that acquires locks does so in steps: a step reads some rows, in the order of their names, and removes those that may be
//! removed in one statement. So no statement locks many rows, and a long table costs no client much.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use leasehold_core::backend::CoreHandle;
use tokio::time::Instant;

use crate::connections::TEST_AFTER;
use crate::errors::Failure;
use crate::for_update;
use crate::pool::{Limit, Pool};
use crate::row::rows;
use crate::row::statements::PURGE_ROWS;
use crate::session::SetUp;
use crate::settings::Strategy;
use crate::shared::Shared;

/// The pause between two steps: a quarter of the retention, within these bounds.
const PAUSE: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);

/// The pause after a step that removed rows, if others follow.
const SHORT_PAUSE: Duration = Duration::from_secs(1);

/// Whether this client has to remove rows.
#[derive(Default)]
pub(crate) struct Maintenance {
    is_running: AtomicBool,
    /// This client has acquired a lock since the last step.
    is_due: AtomicBool,
}

impl Maintenance {
    /// Notes that this client has acquired a lock. Starts the task with the first one.
    pub(crate) fn acquired(shared: &Arc<Shared>, core: &CoreHandle) {
        let it = &shared.maintenance;
        if !it.is_due.swap(true, Ordering::Relaxed) && !it.is_running.swap(true, Ordering::Relaxed) {
            let pause = (shared.settings.retention / 4).clamp(*PAUSE.start(), *PAUSE.end());
            core.keeper_runtime().spawn(run(Arc::downgrade(shared), core.clone(), pause));
        }
    }
}

/// Runs until the client is dropped.
async fn run(shared: Weak<Shared>, core: CoreHandle, long: Duration) {
    let mut pause = long;
    let mut after = Vec::new();
    loop {
        tokio::time::sleep(core.jitter(pause)).await;
        pause = long;
        let Some(shared) = shared.upgrade() else { return };
        if after.is_empty() && !shared.maintenance.is_due.swap(false, Ordering::Relaxed) {
            continue;
        }
        let (after_name, retention) = (std::mem::take(&mut after), shared.settings.retention);
        let until = Instant::now() + shared.settings.timeout;
        // Its connection is closed after the step.
        let pool = |set_up| Pool::new(shared.clone(), set_up, Limit::Calls(1), TEST_AFTER);
        let done = match shared.settings.strategy {
            Strategy::Row => step(&pool(SetUp::default()), &after_name, retention, until).await,
            Strategy::ForUpdate => {
                for_update::purge::step(&pool(for_update::SET_UP), &after_name, retention, until).await
            }
        };
        match done {
            Ok(Some((last, removed))) => {
                after = last;
                if removed > 0 {
                    pause = SHORT_PAUSE.min(long);
                }
            }
            Ok(None) => {}
            Err(failure) => {
                tracing::debug!(target: "leasehold", backend = "mysql", ?failure, "the rows of free locks cannot be removed");
            }
        }
    }
}

/// Reads the rows after a name and removes those that may be removed. Returns the last name and the number of removed rows, or `None` at
/// the end of the table.
async fn step(
    pool: &Pool,
    after: &[u8],
    retention: Duration,
    until: Instant,
) -> Result<Option<(Vec<u8>, u64)>, Failure> {
    let (names, last) = rows::purgeable(pool, after, retention, until).await?;
    let mut removed = 0;
    for names in names.chunks(PURGE_ROWS) {
        removed += rows::purge(pool, names, retention, until).await?;
    }
    Ok(last.map(|last| (last, removed)))
}
