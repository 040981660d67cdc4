//! Re-entry without threads.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Acquires with the same `HolderId` on the same client share one lease and one fencing token.
///
/// Without one, an acquire is not re-entrant: a second acquire waits like any other. An id is valid for one client,
/// inside one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HolderId(NonZeroU64);

impl HolderId {
    /// Creates an id that no other call in this process returns.
    #[expect(clippy::new_without_default, reason = "a default that differs at each call would surprise")]
    pub fn new() -> Self {
        // No counter of 64 bits overflows.
        Self(NonZeroU64::new(NEXT.fetch_add(1, Ordering::Relaxed)).unwrap_or(NonZeroU64::MAX))
    }
}
