//! The store that is asked.

use leasehold::LockClient;

use crate::args::Common;
use crate::exit::Failure;

/// A client for the store of `--store`.
pub(crate) async fn connect(common: &Common) -> Result<LockClient, Failure> {
    if common.store.starts_with("memory:") {
        let text = "`memory://` is inside one process, where no other command sees the lock: give a file, like \
                    `sqlite:///path/locks.db`, or a server";
        return Err(Failure::input(text));
    }
    Ok(leasehold::builder(&common.store).await?.label(&common.label).build()?)
}
