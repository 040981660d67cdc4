//! The handle of a backend to its client.

use std::sync::OnceLock;

use crate::backend::CoreHandle;
use crate::error::{Error, Result};

/// The [`CoreHandle`] of a backend, from [`attach`](crate::backend::LockBackend::attach) on.
#[derive(Debug, Default)]
pub struct Attachment(OnceLock<CoreHandle>);

impl Attachment {
    /// Not attached yet.
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Stores the handle, and returns whether it is the first. A backend serves one client: a second handle is ignored,
    /// so that the first client keeps receiving events.
    pub fn attach(&self, core: CoreHandle) -> bool {
        self.0.set(core).is_ok()
    }

    /// The handle, or `None` before the backend is attached.
    pub fn get(&self) -> Option<&CoreHandle> {
        self.0.get()
    }

    /// The handle.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if the backend is not attached, because it is called without a
    /// client.
    pub fn core(&self) -> Result<&CoreHandle> {
        self.get().ok_or_else(|| Error::invalid("attach the backend to a client before it is called"))
    }
}
