//! Ownership: a request for a claim affects that claim and nothing else.

use leasehold_core::backend::{
    AcquireOutcome, Claim, Delivery, PlaceNumber, ReleaseOutcome, RenewReply, RenewRequest, TtlScope, Waiting,
};

use crate::direct::Direct;
use crate::fixture::{Fixture, Route};
use crate::support::{self, AT_ONCE, eventually, name};

/// Releases a claim, which must have this outcome. `step` says what the claim is, for the message.
async fn releases(
    fixture: &dyn Fixture,
    client: &Direct,
    claim: &Claim,
    delivery: Delivery,
    expected: ReleaseOutcome,
    step: &str,
) {
    let outcome = client.release(claim, delivery).await;
    let record = fixture.record(claim.name()).await;
    assert!(
        matches!(&outcome, Ok(outcome) if *outcome == expected),
        "{step}: its release ({delivery:?}) must return {expected:?}, and returned {outcome:?}. The lock is {:?}, and \
         its record at the server after that is {record:?}",
        claim.name()
    );
}

/// Invariant 7: a release of a claim whose lease has expired returns `NotHeld` and does not affect the next holder.
pub async fn stale_release_leaves_the_new_holder(fixture: &dyn Fixture) {
    let (ann, bob) = (Direct::new(fixture, Route::Clear).await, Direct::new(fixture, Route::Clear).await);
    let (name, ttl) = (name("stale release"), fixture.ttl());
    let (old, new) = (ann.claim(&name), bob.claim(&name));
    ann.granted(&old, ttl).await;
    let grant = bob.takes_over(&new, ttl, ttl * 20).await;

    let step = "the lease has expired, and another client holds";
    releases(fixture, &ann, &old, Delivery::Confirmed, ReleaseOutcome::NotHeld, step).await;
    support::still_held(fixture, &name, grant.token, ttl * 10).await;
}

/// Invariant 7: a withdraw of a stale claim, which leaves a note at the store, does not affect the next holder.
pub async fn stale_withdraw_leaves_the_new_holder(fixture: &dyn Fixture) {
    let (ann, bob) = (Direct::new(fixture, Route::Clear).await, Direct::new(fixture, Route::Clear).await);
    let (name, ttl) = (name("stale withdraw"), fixture.ttl());
    let (old, new) = (ann.claim(&name), bob.claim(&name));
    ann.granted(&old, ttl).await;
    let grant = bob.takes_over(&new, ttl, ttl * 20).await;

    let step = "the lease has expired, and another client holds";
    releases(fixture, &ann, &old, Delivery::InDoubt, ReleaseOutcome::NotHeld, step).await;
    support::still_held(fixture, &name, grant.token, ttl * 10).await;
}

/// Invariant 7: a renewal of a claim whose lease has expired returns `Lost` and does not prolong the next holder's.
pub async fn stale_renewal_leaves_the_new_holder(fixture: &dyn Fixture) {
    let (ann, bob) = (Direct::new(fixture, Route::Clear).await, Direct::new(fixture, Route::Clear).await);
    let (name, ttl) = (name("stale renewal"), fixture.ttl());
    let (old, new) = (ann.claim(&name), bob.claim(&name));
    let place = ann.granted(&old, ttl).await.confirmation.place;
    let grant = bob.takes_over(&new, ttl, ttl * 5).await;

    let reply = ann.renew(RenewRequest::new(old, place, ttl * 50)).await;
    assert!(
        matches!(reply, RenewReply::Lost),
        "another client holds the lock, and the stale renewal returned {reply:?}"
    );
    let left = support::still_held(fixture, &name, grant.token, ttl).await;
    assert!(left <= ttl * 5, "the stale renewal gave the new holder {left:?} of {:?}", ttl * 5);
}

/// Invariants 4 and 7: an expired lease is not revived, even if no other claim waits.
pub async fn renewal_after_expiry_never_revives(fixture: &dyn Fixture) {
    let ann = Direct::new(fixture, Route::Clear).await;
    let (name, ttl) = (name("expired"), fixture.ttl());
    let claim = ann.claim(&name);
    let place = ann.granted(&claim, ttl).await.confirmation.place;
    let bound = ttl + ann.capabilities().takeover_slack;
    eventually(bound, "the lease expires", async || fixture.record(&name).await.lease().is_none()).await;

    let reply = ann.renew(RenewRequest::new(claim, place, ttl)).await;
    assert!(
        matches!(reply, RenewReply::Lost | RenewReply::Free),
        "the lease has expired, but its renewal returned {reply:?}"
    );
    assert_eq!(fixture.record(&name).await.lease(), None, "a late renewal revived the lease");
}

/// Invariant 7: the second release of a claim has no effect and returns `NotHeld`.
pub async fn second_release_is_a_no_op(fixture: &dyn Fixture) {
    let ann = Direct::new(fixture, Route::Clear).await;
    let name = name("double release");
    let (claim, next) = (ann.claim(&name), ann.claim(&name));
    ann.granted(&claim, fixture.ttl() * 20).await;
    let release = async |expected, step: &str| {
        releases(fixture, &ann, &claim, Delivery::Confirmed, expected, step).await;
    };
    release(ReleaseOutcome::Released, "a claim that holds").await;
    release(ReleaseOutcome::NotHeld, "a claim that was released").await;
    let grant = ann.granted(&next, fixture.ttl() * 20).await;
    release(ReleaseOutcome::NotHeld, "a claim that was released, while the next one holds").await;
    support::still_held(fixture, &name, grant.token, fixture.ttl() * 10).await;
}

/// Invariant 7: a release of a claim that never held ends nothing and leaves nothing.
pub async fn release_of_a_claim_never_granted(fixture: &dyn Fixture) {
    let (ann, bob) = (Direct::new(fixture, Route::Clear).await, Direct::new(fixture, Route::Clear).await);
    let (held, free) = (name("held"), name("free"));
    let grant = ann.granted(&ann.claim(&held), fixture.ttl() * 20).await;
    for name in [&held, &free] {
        let step = "a claim that never held";
        releases(fixture, &bob, &bob.claim(name), Delivery::Confirmed, ReleaseOutcome::NotHeld, step).await;
    }
    support::still_held(fixture, &held, grant.token, fixture.ttl() * 10).await;
    assert_eq!(fixture.resource_counts().await.leases, 1, "only the granted lock is held");
}

/// Contract of `LockBackend`: a repeated acquire of a claim that holds returns the same grant, and the lease lasts at
/// least for the second ttl.
pub async fn repeated_acquire_returns_the_same_grant(fixture: &dyn Fixture) {
    let ann = Direct::new(fixture, Route::Clear).await;
    let (name, ttl) = (name("again"), fixture.ttl());
    let claim = ann.claim(&name);
    // The ttl of a session cannot change.
    let shorter = if ann.capabilities().ttl_scope == TtlScope::Session { ttl * 20 } else { ttl * 10 };
    let first = ann.granted(&claim, shorter).await;
    let second = ann.granted(&claim, ttl * 20).await;
    assert_eq!(first.token, second.token, "one claim was granted twice");
    assert_eq!(first.confirmation.place, second.confirmation.place, "one claim had two places");
    let left = support::still_held(fixture, &name, first.token, ttl * 15).await;
    // A shorter ttl does not shorten the lease.
    ann.granted(&claim, ttl).await;
    let then = support::still_held(fixture, &name, first.token, ttl * 15).await;
    assert!(then <= left, "the lease was prolonged by an acquire with a shorter ttl");
}

/// Contract of `LockBackend`: a repeated acquire of a claim that waits returns its place and creates no second one.
pub async fn repeated_acquire_keeps_its_place(fixture: &dyn Fixture) {
    let (ann, bob) = (Direct::new(fixture, Route::Clear).await, Direct::new(fixture, Route::Clear).await);
    let (name, ttl) = (name("again in the queue"), fixture.ttl() * 20);
    let (holder, waiter) = (ann.claim(&name), bob.claim(&name));
    ann.granted(&holder, ttl).await;
    let place = bob.not_granted(&waiter, ttl).await;
    for _ in 0..3 {
        assert_eq!(bob.not_granted(&waiter, ttl).await, place, "the claim has another place");
    }
    let expected = u64::from(bob.capabilities().waiting == Waiting::ServerQueue);
    assert_eq!(fixture.record(&name).await.waiting(), expected, "one claim waits");
    // It has one place: after the waiter leaves, the queue is empty.
    bob.release(&waiter, Delivery::Confirmed).await.expect("a waiter leaves");
    ann.release(&holder, Delivery::Confirmed).await.expect("a release");
    assert_eq!(fixture.record(&name).await.lease(), None, "the lock was handed to a second place of the claim");
}

/// Contract of `LockBackend`: renew creates nothing, neither a lease if the lock is free nor a place if it is held.
pub async fn renewal_creates_nothing(fixture: &dyn Fixture) {
    let (ann, bob) = (Direct::new(fixture, Route::Clear).await, Direct::new(fixture, Route::Clear).await);
    let (held, free, ttl) = (name("held"), name("free"), fixture.ttl() * 20);
    let grant = ann.granted(&ann.claim(&held), ttl).await;
    let replies = bob
        .renew_all(&[
            RenewRequest::new(bob.claim(&held), PlaceNumber::NONE, ttl),
            RenewRequest::new(bob.claim(&free), PlaceNumber::NONE, ttl),
        ])
        .await;
    assert!(matches!(replies[0], RenewReply::Lost), "a stranger renewed a held lock: {:?}", replies[0]);
    assert!(
        matches!(replies[1], RenewReply::Lost | RenewReply::Free),
        "a stranger renewed a free lock: {:?}",
        replies[1]
    );
    support::still_held(fixture, &held, grant.token, ttl / 2).await;
    assert_eq!(fixture.record(&held).await.waiting(), 0, "a renewal created a place");
    assert_eq!(fixture.record(&free).await.lease(), None, "a renewal created a lease");
}

/// Invariant 14: two claims of one client on one connection are two owners.
pub async fn two_claims_of_one_client_are_two_owners(fixture: &dyn Fixture) {
    let ann = Direct::new(fixture, Route::Clear).await;
    let (name, ttl) = (name("two claims"), fixture.ttl() * 20);
    let (first, second) = (ann.claim(&name), ann.claim(&name));
    let grant = ann.granted(&first, ttl).await;
    let place = ann.not_granted(&second, ttl).await;
    let reply = ann.renew(RenewRequest::new(second.clone(), place, ttl)).await;
    assert!(
        !matches!(reply, RenewReply::Renewed(_) | RenewReply::Granted(_)),
        "the second claim holds as well: {reply:?}"
    );
    ann.release(&second, Delivery::Confirmed).await.expect("the second leaves");
    support::still_held(fixture, &name, grant.token, ttl / 2).await;
}

/// An acquire without a place returns `Contended` if the lock is held, and the store keeps no record of the claim.
pub async fn a_claim_without_a_place_leaves_none(fixture: &dyn Fixture) {
    let (ann, bob) = (Direct::new(fixture, Route::Clear).await, Direct::new(fixture, Route::Clear).await);
    let (name, ttl) = (name("no place"), fixture.ttl() * 20);
    let holder = ann.claim(&name);
    ann.granted(&holder, ttl).await;
    let reply = bob.try_acquire(&bob.claim(&name), ttl).await;
    assert!(
        matches!(reply, Ok(AcquireOutcome::Contended { .. })),
        "the lock is held, and the request has no place: {reply:?}"
    );
    assert_eq!(fixture.record(&name).await.waiting(), 0, "the store has a place of an acquire without a place");
    ann.release(&holder, Delivery::Confirmed).await.expect("a release");
    tokio::time::sleep(AT_ONCE).await;
    assert_eq!(fixture.record(&name).await.lease(), None, "the lock was handed to a claim that did not wait");
}
