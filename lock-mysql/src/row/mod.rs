//! The row lease (`strategy=row`): one row for each lock, with the time at which the lease ends.

pub(crate) mod admin;
pub(crate) mod quarantine;
pub(crate) mod released;
pub(crate) mod renewal;
pub(crate) mod rows;
pub(crate) mod run;
pub(crate) mod statements;
pub(crate) mod wakeup;
pub(crate) mod watcher;
