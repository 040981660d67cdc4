//! How long the server keeps the tombstone of a withdrawn claim.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold_core::backend::{Claim, WITHDRAWN_TTL};

use crate::shared::millis;

/// The longest ttl of the claim's acquires in milliseconds, if it is longer than [`WITHDRAWN_TTL`].
#[derive(Debug, Default)]
struct LongTtl(AtomicU32);

/// Records an acquire that is about to be sent.
pub(crate) fn acquiring(claim: &Claim, ttl: Duration) {
    if ttl > WITHDRAWN_TTL {
        claim.slot::<LongTtl>().0.fetch_max(millis(ttl), Ordering::Relaxed);
    }
}

/// The ttl of the tombstone: the ttl of the claim, and at least [`WITHDRAWN_TTL`]. A late copy of the acquire would
/// block the lock for that long.
pub(crate) fn ttl_of(claim: &Claim) -> Duration {
    WITHDRAWN_TTL.max(Duration::from_millis(claim.slot::<LongTtl>().0.load(Ordering::Relaxed).into()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold_core::backend::OwnerToken;
    use leasehold_core::{HolderInfo, LockName};

    use super::*;

    #[test]
    fn a_claim_is_remembered_for_its_own_ttl_and_a_minute_at_least() {
        let holder = Arc::new(HolderInfo::of_this_process("").unwrap());
        let claim = Claim::new(LockName::new("job").unwrap(), OwnerToken::from_bytes([1; 16]), holder);
        acquiring(&claim, Duration::from_secs(5));
        assert_eq!(ttl_of(&claim), WITHDRAWN_TTL);
        let hour = Duration::from_secs(3600);
        acquiring(&claim.clone(), hour);
        acquiring(&claim, hour / 2);
        assert_eq!(ttl_of(&claim), hour);
    }
}
