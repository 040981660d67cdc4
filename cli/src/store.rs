//! The store that is asked.

use leasehold::LockClient;

use crate::args::Common;
use crate::exit::Failure;

/// A client for the store of `--store`.
pub(crate) async fn connect(common: &Common) -> Result<LockClient, Failure> {
    Ok(leasehold::builder(&common.store).await?.label(&common.label).build()?)
}
