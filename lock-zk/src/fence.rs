//! Fenced writes: a multi of the user on the same servers takes effect only while the lease is current.

use leasehold_core::{Error, LockGuard, Result};
use zookeeper_client::MultiWriter;

use crate::errors::BACKEND;
use crate::slot::Slot;

/// A condition for the user's own multi: the lease is current.
#[derive(Clone)]
pub struct Fence {
    path: String,
}

impl Fence {
    /// The path of the holder's node, from the root of the server. Nobody but the holder has this node, and it exists
    /// as long as the lease.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The version of the node's data, which do not change while the lease is current.
    pub const fn version(&self) -> i32 {
        0
    }

    /// Adds the condition to a multi. The client must have no chroot, and the permissions of the user of the locks.
    ///
    /// # Errors
    /// None of a client without a chroot.
    pub fn check(&self, multi: &mut MultiWriter<'_>) -> Result<(), zookeeper_client::Error> {
        multi.add_check_version(&self.path, self.version())
    }
}

// A path names the lock, and a number of the claim that is no secret.
impl std::fmt::Debug for Fence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fence").finish_non_exhaustive()
    }
}

/// A condition for the user's own multi: the guard's lease is current. ZooKeeper checks it together with the writes, so
/// the late write of a holder that was paused has no effect.
///
/// ```no_run
/// # async fn example(
/// #     client: leasehold_zk::zookeeper_client::Client,
/// #     guard: leasehold_core::LockGuard,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let mut multi = client.new_multi_writer();
/// leasehold_zk::fence(&guard)?.check(&mut multi)?;
/// multi.add_set_data("/accounts/7", b"120", None)?;
/// let is_written = multi.commit().await.is_ok();
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Lost`](leasehold_core::ErrorKind::Lost) if the client knows already that the lease has ended. Otherwise the multi
/// decides.
pub fn fence(guard: &LockGuard) -> Result<Fence> {
    let lease = guard.lease_ref();
    match Slot::of(&lease.claim).node() {
        Some(node) => Ok(Fence { path: node.path() }),
        None => Err(Error::lease_ended().during("fence a write with", guard.name(), BACKEND)),
    }
}
