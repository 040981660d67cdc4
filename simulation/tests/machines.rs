//! Tests each state machine of the keeper alone, with any inputs in any order, including inputs that no backend should
//! send.

#[path = "machines/disposal.rs"]
mod disposal;
#[path = "machines/held_lease.rs"]
mod held_lease;
#[path = "machines/wait_queue.rs"]
mod wait_queue;

use std::time::Duration;

use leasehold_core::backend::{Confirmation, Grant, LeaseKind, Mode, PlaceNumber, RenewReply, Stamp};
use leasehold_core::machines::{Rules, Terms, Wake};
use leasehold_core::{Error, ErrorKind, FencingToken};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Every run has the same cases, so that a failure can be reproduced.
fn config() -> ProptestConfig {
    ProptestConfig { cases: 2000, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() }
}

const TTL: Duration = Duration::from_secs(3);
const PLACE_TTL: Duration = Duration::from_secs(2);

fn at(ms: u64) -> Stamp {
    Stamp::from_start(Duration::from_millis(ms))
}

fn rules(sessions: bool) -> Rules {
    Rules {
        call_bound: Duration::from_millis(500),
        min_ttl: Duration::from_millis(100),
        ttl_granularity: Duration::from_millis(1),
        max_place_ttl: PLACE_TTL,
        margin_percent: 10,
        sessions,
    }
}

fn terms(kind: LeaseKind, max_hold: Option<u64>, min_hold: Option<u64>) -> Terms {
    let [max_hold, min_hold] = [max_hold, min_hold].map(|hold| hold.map(Duration::from_millis));
    Terms { mode: Mode::Exclusive, ttl: TTL, kind, max_hold, min_hold, holder: None }
}

fn exactly(wake: Wake) -> Stamp {
    wake.resolve(|pause| pause)
}

/// A reply to a request that was sent this long ago, about a place with a number at or next to the expected one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    Renewed { ago: u64, place: u64 },
    Granted { ago: u64, place: u64, token: u64 },
    Waiting { ago: u64, place: u64 },
    Free,
    Lost,
    Unknown,
    NotSent,
}

fn replies() -> impl Strategy<Value = Reply> {
    let (ago, place) = (0..4000_u64, 4..7_u64);
    prop_oneof![
        4 => (ago.clone(), place.clone()).prop_map(|(ago, place)| Reply::Renewed { ago, place }),
        4 => (ago.clone(), place.clone(), 1..4_u64)
            .prop_map(|(ago, place, token)| Reply::Granted { ago, place, token }),
        4 => (ago, place).prop_map(|(ago, place)| Reply::Waiting { ago, place }),
        1 => Just(Reply::Free),
        1 => Just(Reply::Lost),
        2 => Just(Reply::Unknown),
        2 => Just(Reply::NotSent),
    ]
}

fn confirmation(now: u64, ago: u64, place: u64, ttl: Duration) -> Confirmation {
    Confirmation { ttl, sent: at(now.saturating_sub(ago)), place: PlaceNumber::new(place) }
}

impl Reply {
    fn answer(self, now: u64) -> RenewReply {
        match self {
            Self::Renewed { ago, place } => RenewReply::Renewed(confirmation(now, ago, place, TTL)),
            Self::Granted { ago, place, token } => {
                RenewReply::Granted(Grant::new(FencingToken::new(token), confirmation(now, ago, place, TTL)))
            }
            Self::Waiting { ago, place } => {
                RenewReply::Waiting { confirmation: confirmation(now, ago, place, PLACE_TTL), retry_after: PLACE_TTL }
            }
            Self::Free => RenewReply::Free,
            Self::Lost => RenewReply::Lost,
            Self::Unknown => RenewReply::Unknown(Error::new(ErrorKind::Indeterminate, "no reply")),
            Self::NotSent => RenewReply::Unknown(Error::new(ErrorKind::Unavailable, "refused")),
        }
    }
}
