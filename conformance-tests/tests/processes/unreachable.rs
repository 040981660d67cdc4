//! Holders that are disconnected from the server.

use std::time::Duration;

use leasehold_conformance::harness::{Fault, LockHolder, machine_now};

use super::environment::{
    ENDS_LOST_LEASES, Environment, LOSS_SLACK, MARGIN, SOON, StoreUnderTest as _, TAKEOVER_SLACK, TTL, is_held,
};

/// A holder behind the proxy, and a waiter with a direct connection.
fn holder_and_waiter(environment: &Environment) -> (LockHolder, u64, LockHolder) {
    let mut holder = environment.holder_by_proxy(&["--stay"]);
    let (_, token) = holder.acquired(SOON).unwrap();
    let waiter = environment.waiter(&[]);
    (holder, token, waiter)
}

/// A disconnected holder is notified when its validity ends, and before the lock is granted to another client.
fn is_notified_before_the_next_grant(faults: &[Fault]) {
    let environment = Environment::new();
    let (mut holder, token, mut waiter) = holder_and_waiter(&environment);
    let cut = machine_now();
    for fault in faults {
        environment.proxy.apply(*fault);
    }
    let (earliest, latest) = environment.lease_ends();
    let (lost_at, reason) = holder.lost(SOON).unwrap();
    assert_eq!(reason, "Expired");
    environment.happened("the loss was reported", lost_at, cut, latest - MARGIN + LOSS_SLACK);
    let (at, next) = waiter.acquired(SOON).unwrap();
    environment.happened("the takeover came", at, earliest, latest + TAKEOVER_SLACK);
    assert!(
        Duration::from_micros(lost_at) < Duration::from_micros(at),
        "the lock was granted before the loss was reported"
    );
    assert!(next > token);

    // Requests that were held do not affect the new holder after the path is healed.
    environment.proxy.heal();
    environment.proxy.deliver();
    std::thread::sleep(TTL);
    waiter.send("check").unwrap();
    assert!(is_held(&mut waiter));
}

#[test]
fn a_holder_whose_connections_are_cut_is_notified_before_the_next_grant() {
    is_notified_before_the_next_grant(&[Fault::Refuse, Fault::Disconnect]);
}

#[test]
fn a_holder_whose_traffic_is_dropped_is_notified_before_the_next_grant() {
    is_notified_before_the_next_grant(&[Fault::DropTraffic]);
}

#[test]
fn a_holder_whose_requests_are_held_back_is_notified_before_the_next_grant() {
    is_notified_before_the_next_grant(&[Fault::HoldRequests]);
}

#[test]
fn a_holder_without_replies_is_notified_while_the_server_renews_its_lease() {
    let environment = Environment::new();
    let (mut holder, token, mut waiter) = holder_and_waiter(&environment);
    let (_, latest) = environment.lease_ends();
    environment.proxy.apply(Fault::LoseReplies);
    let (at, reason) = holder.lost(SOON).unwrap();
    assert_eq!(reason, "Expired");
    // A renewal may have got its reply between our read and the fault.
    environment.happened("the loss was reported", at, Duration::ZERO, latest + TTL / 3 - MARGIN + LOSS_SLACK);
    // Its renewals arrived, so the server grants the lock later, and then at once. Where the holder ends its lease, that arrives as well.
    let (earliest, latest) = match ENDS_LOST_LEASES {
        // At the same moment as it is notified.
        true => (Duration::from_micros(at).saturating_sub(LOSS_SLACK), Duration::from_micros(at) + TTL),
        false => environment.lease_ends(),
    };
    let (at, next) = waiter.acquired(SOON).unwrap();
    environment.happened("the takeover came", at, earliest, latest + TAKEOVER_SLACK);
    assert!(next > token);
}

#[test]
fn cut_off_for_less_than_the_validity_loses_nothing() {
    let environment = Environment::new();
    let (mut holder, _, mut waiter) = holder_and_waiter(&environment);
    for faults in [&[Fault::Refuse, Fault::Disconnect][..], &[Fault::DropTraffic], &[Fault::HoldRequests]] {
        for fault in faults {
            environment.proxy.apply(*fault);
        }
        std::thread::sleep(TTL / 3);
        environment.proxy.heal();
        environment.proxy.deliver();
        std::thread::sleep(TTL);
        holder.send("check").unwrap();
        assert!(is_held(&mut holder), "lost after {faults:?}: {:?}", holder.events());
    }
    let released = machine_now();
    holder.send("release").unwrap();
    let (at, _) = waiter.acquired(SOON).unwrap();
    environment.happened("the handoff came", at, released, released + TAKEOVER_SLACK);
}

#[test]
fn a_paused_server_ends_the_validity_and_not_the_wait() {
    let mut environment = Environment::new();
    let (mut holder, token, mut waiter) = holder_and_waiter(&environment);
    let (_, latest) = environment.lease_ends();
    environment.server.pause().unwrap();
    let paused = machine_now();
    let (at, reason) = holder.lost(SOON).unwrap();
    assert_eq!(reason, "Expired");
    // A renewal may have arrived between our read and the pause.
    environment.happened("the loss was reported", at, paused, latest + TTL / 3 - MARGIN + LOSS_SLACK);
    std::thread::sleep(TTL);
    environment.server.resume().unwrap();
    let (_, next) = waiter.acquired(SOON).unwrap();
    assert!(next > token);
}
