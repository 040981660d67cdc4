//! Re-entry without threads.

use std::sync::atomic::{AtomicU64, Ordering};

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Whoever acquires with the same `HolderId` on the same client shares one lease and one fencing token.
///
/// Without one nothing is re-entrant: a second acquire waits like anybody else. An id means something only
/// to the client that it is used with, inside one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HolderId(u64);

impl HolderId {
    /// An id that no other call in this process gets.
    #[expect(clippy::new_without_default, reason = "a default that differs at each call would surprise")]
    pub fn new() -> Self {
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
