//! The row lease (`strategy=row`): one row for each lock, with the time at which the lease ends.

mod admin;
mod backend;
mod purge;
mod quarantine;
mod renewal;
mod rows;
mod run;
mod statements;
mod wakeup;
mod watcher;

pub(crate) use backend::RowLease;
pub(crate) use statements::{FENCE, PREPARED};
