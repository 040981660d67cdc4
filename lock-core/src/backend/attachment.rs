//! Where a backend keeps the way back to its client.

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

    /// Keeps the handle, and says whether it is the first. A backend serves one client: a second handle is ignored, so that the
    /// first client keeps its events.
    pub fn attach(&self, core: CoreHandle) -> bool {
        self.0.set(core).is_ok()
    }

    /// The handle, where the backend may also work before it is attached.
    pub fn get(&self) -> Option<&CoreHandle> {
        self.0.get()
    }

    /// The handle.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) when the backend is not attached: it was called without a client.
    pub fn core(&self) -> Result<&CoreHandle> {
        self.get().ok_or_else(|| Error::invalid("attach the backend to a client before it is called"))
    }
}
