//! The decisions about one local queue, one at a time.

use std::sync::Arc;

use super::*;
use crate::backend::{LeaseKind, Mode};
use crate::holder_info::HolderInfo;
use crate::name::LockName;
use crate::terms::Terms;
use crate::token::OwnerToken;

const TTL: Duration = Duration::from_secs(3);

fn at(ms: u64) -> Stamp {
    Stamp::from_start(Duration::from_millis(ms))
}

fn rules() -> Rules {
    Rules {
        call_bound: Duration::from_millis(500),
        min_ttl: Duration::from_millis(100),
        ttl_granularity: Duration::from_millis(1),
        max_place_ttl: TTL,
        margin_percent: 10,
        sessions: false,
    }
}

/// A queue of one acquire, whose first attempt is sent at 1,000 ms.
fn queue() -> WaitQueue<u32> {
    queue_of(OnContention::Queue)
}

fn queue_of(on_contention: OnContention) -> WaitQueue<u32> {
    WaitQueue::new(joining(1, on_contention), at(1000))
}

/// An acquire, whose outcome goes to `to`.
fn joining(to: u32, on_contention: OnContention) -> Joining<u32> {
    let kind = LeaseKind::Kept;
    let terms = Terms { mode: Mode::Exclusive, ttl: TTL, kind, max_hold: None, min_hold: None, holder: None };
    Joining { acquire: to.into(), terms, on_contention, confirm_after: Stamp::ZERO, to }
}

#[test]
fn an_acquire_has_failed_when_its_bound_is_over_and_not_before() {
    let (mut queue, mut out) = (queue(), Outputs::default());
    queue.handle_timeout(&rules(), at(1400), &mut out);
    let outputs: Vec<_> = out.drain().collect();
    assert!(matches!(&outputs[..], [QueueOutput::Wake(wake)] if *wake == Wake::at(at(1500))), "{outputs:?}");
    queue.handle_timeout(&rules(), at(1500), &mut out);
    let outputs: Vec<_> = out.drain().collect();
    let withdraws =
        |output: &QueueOutput<u32>| matches!(output, QueueOutput::End(ending) if ending.delivery == Delivery::InDoubt);
    assert!(outputs.iter().any(withdraws), "{outputs:?}");
}

#[test]
fn the_next_claim_of_an_acquire_requests_a_place_only_if_the_acquire_waits() {
    for wanted in [OnContention::Queue, OnContention::Fail] {
        let (mut queue, mut out) = (queue_of(wanted), Outputs::default());
        queue.handle_timeout(&rules(), at(1500), &mut out);
        assert!(out.drain().any(|output| matches!(output, QueueOutput::Acquire { .. })));
        let holder = Arc::new(HolderInfo::of_this_process("test").unwrap());
        let claim = Claim::new(LockName::new("job").unwrap(), OwnerToken::from_bytes([1; 16]), holder);
        assert_eq!(queue.request(claim).on_contention, wanted);
    }
}

#[test]
fn the_renewal_of_a_place_has_failed_when_its_bound_is_over_and_not_before() {
    let (mut queue, mut out) = (queue(), Outputs::default());
    let confirmation = Confirmation { ttl: TTL, sent: at(1000), place: PlaceNumber::new(1) };
    let queued = AcquireOutcome::Queued { confirmation, retry_after: TTL };
    queue.handle_acquire_reply(&rules(), Ok(queued), at(1010), &mut out);
    out.drain().for_each(drop);
    let mut due = |now| {
        queue.handle_timeout(&rules(), at(now), &mut out);
        out.drain().collect::<Vec<_>>()
    };
    let outputs = due(2000);
    assert!(matches!(&outputs[..], [QueueOutput::Renew { .. }, QueueOutput::Wake(_)]), "{outputs:?}");
    for now in [2000, 2499] {
        let outputs = due(now);
        assert!(matches!(&outputs[..], [QueueOutput::Wake(wake)] if *wake == Wake::at(at(2500))), "{outputs:?}");
    }
    let outputs = due(2500);
    let failed = |output: &QueueOutput<u32>| matches!(output, QueueOutput::Note(QueueNote::RenewalFailed));
    assert!(outputs.iter().any(failed), "{outputs:?}");
}

/// A server may refuse a client that has connected again, while the client has a place.
#[test]
fn a_refusal_of_the_renewal_of_a_place_ends_the_wait() {
    for (error, ends) in [
        (Error::new(ErrorKind::Auth, "planted"), true),
        (Error::new(ErrorKind::Unsupported, "planted"), true),
        (Error::new(ErrorKind::Capacity, "planted"), true),
        (Error::new(ErrorKind::Capacity, "planted").passing_by_itself(), false),
        (Error::new(ErrorKind::Unavailable, "planted"), false),
    ] {
        let (mut queue, mut out) = (queue(), Outputs::default());
        let (place, kind) = (PlaceNumber::new(1), error.kind());
        let confirmation = Confirmation { ttl: TTL, sent: at(1000), place };
        let queued = AcquireOutcome::Queued { confirmation, retry_after: TTL };
        queue.handle_acquire_reply(&rules(), Ok(queued), at(1010), &mut out);
        queue.handle_timeout(&rules(), at(2000), &mut out);
        out.drain().for_each(drop);
        queue.handle_renewal_reply(&rules(), place, RenewReply::Unknown(error), at(2010), &mut out);
        let outputs: Vec<_> = out.drain().collect();
        let failed =
            |output: &QueueOutput<u32>| matches!(output, QueueOutput::Failed { to: 1, error } if error.kind() == kind);
        let withdraws = |output: &QueueOutput<u32>| matches!(output, QueueOutput::End(_));
        assert_eq!((outputs.iter().any(failed), outputs.iter().any(withdraws)), (ends, ends), "{outputs:?}");
    }
}

/// A backend need not check whether the ttl of a request is one that it supports.
#[test]
fn the_renewal_of_a_place_asks_for_its_ttl_and_not_for_what_is_left() {
    let (mut queue, mut out) = (queue(), Outputs::default());
    let left = TTL - Duration::from_nanos(7);
    let confirmation = Confirmation { ttl: left, sent: at(1000), place: PlaceNumber::new(1) };
    queue.handle_acquire_reply(
        &rules(),
        Ok(AcquireOutcome::Queued { confirmation, retry_after: left }),
        at(1010),
        &mut out,
    );
    out.drain().for_each(drop);
    queue.handle_timeout(&rules(), at(2000), &mut out);
    let outputs: Vec<_> = out.drain().collect();
    assert!(matches!(&outputs[..], [QueueOutput::Renew { ttl: TTL, .. }, QueueOutput::Wake(_)]), "{outputs:?}");
}

/// The message of a grant confirms the place that it names, and no other.
#[test]
fn a_pushed_grant_needs_a_confirmation_of_its_place() {
    for (confirmed, is_granted) in [(2, true), (1, false), (3, false)] {
        let (mut queue, mut out) = (queue(), Outputs::default());
        let confirmation = |place| Confirmation { ttl: TTL, sent: at(1100), place: PlaceNumber::new(place) };
        let queued = AcquireOutcome::Queued { confirmation: confirmation(1), retry_after: TTL };
        queue.handle_acquire_reply(&rules(), Ok(queued), at(1110), &mut out);
        out.drain().for_each(drop);
        let grant = (PlaceNumber::new(2), FencingToken::new(7));
        queue.handle_pushed_grant(&rules(), grant, Some(confirmation(confirmed)), at(1200), &mut out);
        let granted = out.drain().any(|output| matches!(output, QueueOutput::Granted { .. }));
        assert_eq!(granted, is_granted, "the confirmation is of place {confirmed}");
    }
}

/// The lease goes to the acquire that came first, whoever came or left since.
#[test]
fn acquires_are_granted_in_the_order_in_which_they_came() {
    let (mut queue, mut out) = (queue(), Outputs::default());
    for to in 2..=6 {
        queue.join(&rules(), joining(to, OnContention::Queue), &mut out).unwrap();
    }
    assert!(queue.leave(&rules(), 3, at(1005), &mut out).is_some());
    out.drain().for_each(drop);
    let mut granted = Vec::new();
    for grant in 1..=5 {
        let confirmation = Confirmation { ttl: TTL, sent: at(1000), place: PlaceNumber::new(grant) };
        let grant = Grant::new(FencingToken::new(grant), confirmation);
        queue.handle_acquire_reply(&rules(), Ok(AcquireOutcome::Granted(grant)), at(1010), &mut out);
        granted.extend(out.drain().filter_map(|output| match output {
            QueueOutput::Granted { to, .. } => Some(to),
            _ => None,
        }));
    }
    assert_eq!(granted, [[1], [2], [4], [5], [6]]);
}
