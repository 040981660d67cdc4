//! Fenced writes: a transaction of the user on the same cluster takes effect only while the lease is current.

use etcd_client::{Compare, CompareOp};
use leasehold_core::{Error, LockGuard, Result};

use crate::errors::BACKEND;
use crate::slot::Slot;

/// A condition for the user's own transaction: the guard's lease is current. etcd evaluates it together with the
/// writes, so the late write of a holder that was paused has no effect.
///
/// ```no_run
/// # async fn example(
/// #     client: leasehold_etcd::etcd_client::Client,
/// #     guard: leasehold_core::LockGuard,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_etcd::etcd_client::{Txn, TxnOp};
///
/// let write = Txn::new()
///     .when([leasehold_etcd::fence(&guard)?])
///     .and_then([TxnOp::put("accounts/7", "120", None)]);
/// let is_written = client.kv_client().txn(write).await?.succeeded();
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Lost`](leasehold_core::ErrorKind::Lost) if the client knows already that the lease has ended. Otherwise the
/// transaction decides.
pub fn fence(guard: &LockGuard) -> Result<Compare> {
    let lease = guard.lease_ref();
    match Slot::of(&lease.claim).key() {
        // Nobody but the holder has this key, and it exists as long as the lease.
        Some(key) => Ok(Compare::create_revision(&*key.key, CompareOp::Equal, key.revision)),
        None => Err(Error::lease_ended().during("fence a write with", guard.name(), BACKEND)),
    }
}
