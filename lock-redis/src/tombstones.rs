//! How long the server remembers that a claim was withdrawn.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use leasehold_core::backend::{OwnerToken, WITHDRAWN_TTL};
use tokio::time::Instant;

use crate::shared::lock;

/// As many ended claims may be kept before they are looked for.
const SPARE: usize = 64;

/// Knows how long each claim has to be remembered: for its ttl, and for a minute at least. A late copy of its acquire would block the
/// lock for as long.
#[derive(Debug, Default)]
pub(crate) struct Tombstones(Mutex<Long>);

/// The claims with a longer ttl, and until when their acquires may still be under way.
#[derive(Debug, Default)]
struct Long {
    claims: HashMap<OwnerToken, (Duration, Instant)>,
    purge_at: usize,
}

impl Tombstones {
    /// An acquire is about to be sent.
    pub(crate) fn acquiring(&self, owner: OwnerToken, ttl: Duration, now: Instant) {
        if ttl <= WITHDRAWN_TTL {
            return;
        }
        let mut long = lock(&self.0);
        if long.claims.len() >= long.purge_at {
            long.claims.retain(|_, (_, until)| *until > now);
            long.purge_at = 2 * long.claims.len() + SPARE;
        }
        long.claims.insert(owner, (ttl, now + ttl));
    }

    /// How long to remember a claim that is withdrawn now.
    pub(crate) fn ttl_of(&self, owner: &OwnerToken) -> Duration {
        lock(&self.0).claims.get(owner).map_or(WITHDRAWN_TTL, |&(ttl, _)| ttl)
    }

    /// The server has answered that the claim has ended.
    pub(crate) fn ended(&self, owner: &OwnerToken) {
        lock(&self.0).claims.remove(owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(number: u16) -> OwnerToken {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&number.to_be_bytes());
        OwnerToken::from_bytes(bytes)
    }

    #[test]
    fn a_claim_is_remembered_for_its_own_ttl_and_a_minute_at_least() {
        let (tombstones, now) = (Tombstones::default(), Instant::now());
        let hour = Duration::from_secs(3600);
        tombstones.acquiring(owner(1), hour, now);
        tombstones.acquiring(owner(2), Duration::from_secs(5), now);
        assert_eq!(tombstones.ttl_of(&owner(1)), hour);
        assert_eq!(tombstones.ttl_of(&owner(2)), WITHDRAWN_TTL, "another claim's ttl is none of its business");
        tombstones.ended(&owner(1));
        assert_eq!(tombstones.ttl_of(&owner(1)), WITHDRAWN_TTL);
    }

    #[test]
    fn claims_that_nobody_ended_are_forgotten() {
        let (tombstones, now) = (Tombstones::default(), Instant::now());
        let ttl = Duration::from_secs(100);
        for number in 0..10_000 {
            tombstones.acquiring(owner(number), ttl, now + Duration::from_secs(u64::from(number)));
        }
        assert!(lock(&tombstones.0).claims.len() <= 2 * 100 + SPARE + 1);
        assert_eq!(tombstones.ttl_of(&owner(9_999)), ttl);
    }
}
