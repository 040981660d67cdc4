//! The decisions about one lease, one at a time.

use super::*;
use crate::backend::{Grant, Mode};

const TTL: Duration = Duration::from_secs(3);
const PLACE: PlaceNumber = PlaceNumber::new(5);

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

fn confirmation(sent: u64, ttl: Duration, place: PlaceNumber) -> Confirmation {
    Confirmation { sent: at(sent), ttl, place }
}

/// A lease whose acquire was sent at 1,000 ms and granted at 1,010 ms, and its first wake-up.
fn lease(kind: LeaseKind, max_hold: Option<Duration>) -> (HeldLease, Stamp) {
    let grant = Grant::new(FencingToken::new(9), confirmation(1000, TTL, PLACE));
    let terms = Terms { mode: Mode::Exclusive, ttl: TTL, kind, max_hold, min_hold: None, holder: None };
    let start = Start { grant, terms, asked: TTL, delivery: Delivery::Confirmed, waited: false };
    let (lease, wake, valid_until) = HeldLease::new(&rules(), &start, at(1010));
    assert_eq!(valid_until, at(3700));
    (lease, exactly(wake))
}

fn exactly(wake: Wake) -> Stamp {
    wake.resolve(|pause| pause)
}

/// The outputs of `handle_timeout`: the ttl of a renewal, the number of failures that it reports, and the next wake-up.
fn due(lease: &mut HeldLease, now: u64) -> (Option<Duration>, Option<u32>, Stamp) {
    let mut out = Outputs::default();
    lease.handle_timeout(&rules(), at(now), &mut out);
    let (mut renewal, mut failed, mut wake) = (None, None, None);
    for output in out.drain() {
        match output {
            LeaseOutput::Renew { ttl, .. } => renewal = Some(ttl),
            LeaseOutput::Note(LeaseNote::RenewalUnanswered { failures }) => failed = Some(failures),
            LeaseOutput::Wake(at) => wake = Some(exactly(at)),
            other => panic!("{other:?}"),
        }
    }
    (renewal, failed, wake.expect("it is never left without a time"))
}

#[test]
fn a_renewal_has_failed_when_its_bound_is_over_and_not_before() {
    let (mut lease, wake) = lease(LeaseKind::Kept, None);
    assert_eq!(wake, at(2000));
    assert_eq!(due(&mut lease, 2000), (Some(TTL), None, at(2500)));
    assert_eq!(due(&mut lease, 2400), (None, None, at(2500)));
    assert_eq!(due(&mut lease, 2500), (None, Some(1), at(2625)));
    assert_eq!(due(&mut lease, 2625), (Some(TTL), None, at(3125)));
    assert_eq!(due(&mut lease, 3125), (None, Some(2), at(3375)));
}

#[test]
fn a_fixed_lease_is_not_renewed() {
    let (mut lease, wake) = lease(LeaseKind::Fixed, None);
    assert_eq!(wake, at(3700));
    assert_eq!(due(&mut lease, 2000), (None, None, at(3700)));
}

#[test]
fn a_lease_that_lasts_until_max_hold_is_not_renewed_again() {
    let (mut lease, wake) = lease(LeaseKind::Kept, Some(TTL));
    assert_eq!(wake, at(2000));
    let rest = Duration::from_millis(2010);
    assert_eq!(due(&mut lease, 2000), (Some(rest), None, at(2500)));
    let mut out = Outputs::default();
    lease.handle_renewal_reply(&rules(), RenewReply::Renewed(confirmation(2000, rest, PLACE)), at(2020), &mut out);
    let wakes = out.drain().filter_map(|output| match output {
        LeaseOutput::Wake(wake) => Some(exactly(wake)),
        _ => None,
    });
    let wakes: Vec<Stamp> = wakes.collect();
    let ends = at(3809);
    assert_eq!(wakes, [ends]);
    assert_eq!(due(&mut lease, 3000), (None, None, ends));
}

/// The reply was in flight when the validity ended, and nothing has read the clock since.
#[test]
fn a_reply_after_the_end_of_the_validity_revives_nothing() {
    let (mut lease, _) = lease(LeaseKind::Kept, None);
    assert_eq!(due(&mut lease, 3600), (Some(TTL), None, at(3700)));
    let mut out = Outputs::default();
    lease.handle_renewal_reply(&rules(), RenewReply::Renewed(confirmation(3600, TTL, PLACE)), at(3701), &mut out);
    assert!(out.drain().any(|output| matches!(output, LeaseOutput::Lost(loss) if loss.reason == LossReason::Expired)));
    assert!(lease.check(at(3702), &mut out).is_err());
}

#[test]
fn a_lease_without_guards_cannot_be_shared() {
    let (mut lease, _) = lease(LeaseKind::Kept, None);
    lease.add_guard();
    assert!(lease.share());
    assert!(!lease.drop_guard());
    assert!(lease.drop_guard() && !lease.share());
}

/// The reply to a renewal of the place may be about another grant of the same claim.
#[test]
fn only_an_older_grant_leaves_the_lease_alone() {
    for (place, token, is_gone) in [(4, 8, false), (5, 8, true), (5, 9, false), (6, 8, true)] {
        let (mut lease, _) = lease(LeaseKind::Kept, None);
        let confirmation = confirmation(1500, TTL, PlaceNumber::new(place));
        let reply = RenewReply::Granted(Grant::new(FencingToken::new(token), confirmation));
        lease.handle_place_reply(&rules(), PLACE, reply, at(1600), &mut Outputs::default());
        let is_held = lease.check(at(1600), &mut Outputs::default()).is_ok();
        assert_eq!(is_held, !is_gone, "place {place}, token {token}");
    }
}

/// A process that was paused for longer than the validity may read what the store has pushed before it reads its clock.
#[test]
fn a_lease_that_is_gone_after_its_validity_was_not_renewed_in_time() {
    for (now, reason) in [(3699, LossReason::Gone), (3700, LossReason::Expired)] {
        let (mut lease, _) = lease(LeaseKind::Kept, None);
        let mut out = Outputs::default();
        lease.handle_gone(at(now), &mut out);
        let lost: Vec<_> = out.drain().filter(|output| matches!(output, LeaseOutput::Lost(_))).collect();
        assert!(matches!(&lost[..], [LeaseOutput::Lost(loss)] if loss.reason == reason), "at {now}: {lost:?}");
    }
}
