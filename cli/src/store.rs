//! The store that is asked.

use leasehold::LockClient;

use crate::args::Common;
use crate::exit::Failure;

/// A client for the store of `--store`, which answers.
pub(crate) async fn connect(common: &Common) -> Result<LockClient, Failure> {
    check(common)?;
    Ok(leasehold::builder(&common.store).await?.label(&common.label).build()?)
}

/// A client for the store of `--store`, which may not answer yet.
#[cfg(unix)]
pub(crate) fn open(common: &Common) -> Result<LockClient, Failure> {
    check(common)?;
    Ok(leasehold::builder_lazy(&common.store)?.label(&common.label).build()?)
}

fn check(common: &Common) -> Result<(), Failure> {
    if common.store.starts_with("memory:") {
        let text = "`memory://` is inside one process, where no other command sees the lock: give a file, like \
                    `sqlite:///path/locks.db`, or a server";
        return Err(Failure::input(text));
    }
    Ok(())
}
