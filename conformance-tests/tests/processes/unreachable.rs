//! Holders that are disconnected from the server.

use std::cell::Cell;
use std::time::Duration;

use leasehold_conformance::harness::{Fault, LockHolder, machine_now};
use leasehold_core::backend::TtlScope;

use super::bounds::checked;
use super::environment::{
    CALL, Environment, LOSS_SLACK, MARGIN, SOON, StoreUnderTest as _, TAKEOVER_SLACK, TTL, eventually, is_held,
};
use super::late_write::written;

/// A holder behind the proxy, and a waiter with a direct connection.
fn holder_and_waiter(environment: &Environment) -> (LockHolder, u64, LockHolder) {
    let mut holder = environment.holder_by_proxy(&["--stay"]);
    let (_, token) = holder.acquired(SOON).unwrap();
    let waiter = environment.waiter(&[]);
    (holder, token, waiter)
}

/// Waits until the holder has just got the reply to a renewal: the next one is due within half a ttl, and the lease
/// outlives that.
fn after_a_renewal(environment: &Environment) {
    // What is left grows by a renewal only.
    let before = Cell::new(Duration::MAX);
    eventually("the lease is renewed", || environment.record().lease().is_some_and(|left| left > before.replace(left)));
    std::thread::sleep(TTL / 40);
}

/// A disconnected holder is notified when its validity ends, and before the lock is granted to another client.
fn is_notified_before_the_next_grant(environment: &Environment, faults: &[Fault]) {
    let (mut holder, token, mut waiter) = holder_and_waiter(environment);
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

/// A lease that ends with its connection: the next client is granted the lock as soon as the server sees that end,
/// between the fault and the call of this function. The holder is notified by its next renewal. The server refuses its
/// fenced write.
fn is_lost_with_its_connection(
    environment: &Environment,
    (mut holder, token, mut waiter): (LockHolder, u64, LockHolder),
    fault: Duration,
) {
    let ended = machine_now();
    let (at, next) = waiter.acquired(SOON).unwrap();
    environment.happened("the takeover came", at, fault, ended + TAKEOVER_SLACK);
    assert!(next > token, "token {next} after {token}");
    let (at, reason) = holder.lost(SOON).unwrap();
    assert_eq!(reason, "Gone");
    environment.happened("the loss was reported", at, fault, ended + TTL / 3 + LOSS_SLACK);

    environment.proxy.heal();
    environment.proxy.deliver();
    holder.send("write too late").unwrap();
    assert_eq!(written(&mut holder), Err("Lost".to_owned()), "a late write was accepted");
    std::thread::sleep(TTL);
    waiter.send("check").unwrap();
    assert!(is_held(&mut waiter));
}

#[test]
fn a_holder_whose_connections_are_cut_is_notified_in_time() {
    let (environment, faults) = (Environment::new(), [Fault::Refuse, Fault::Disconnect]);
    if !environment.outlives_its_process().is_zero() {
        return is_notified_before_the_next_grant(&environment, &faults);
    }
    let lock_holders = holder_and_waiter(&environment);
    let cut = machine_now();
    for fault in faults {
        environment.proxy.apply(fault);
    }
    is_lost_with_its_connection(&environment, lock_holders, cut);
}

#[test]
fn a_holder_whose_traffic_is_dropped_is_notified_before_the_next_grant() {
    is_notified_before_the_next_grant(&Environment::new(), &[Fault::DropTraffic]);
}

#[test]
fn a_holder_whose_requests_are_held_back_is_notified_before_the_next_grant() {
    is_notified_before_the_next_grant(&Environment::new(), &[Fault::HoldRequests]);
}

#[test]
fn a_holder_without_replies_is_notified_while_the_server_renews_its_lease() {
    let environment = Environment::new();
    let (mut holder, token, mut waiter) = holder_and_waiter(&environment);
    let (_, latest) = environment.lease_ends();
    // Its validity ends no earlier, whenever the holder can report that.
    let before = machine_now();
    holder.send("check").unwrap();
    let valid_until = before + checked(&mut holder).1;
    environment.proxy.apply(Fault::LoseReplies);
    let (at, reason) = holder.lost(SOON).unwrap();
    assert_eq!(reason, "Expired");
    // A renewal may have got its reply between our read and the fault.
    environment.happened("the loss was reported", at, Duration::ZERO, latest + TTL / 3 - MARGIN + LOSS_SLACK);
    let (earliest, latest) = match environment.outlives_its_process() {
        // The validity has ended, and the client ends the connection of the lease. That request arrives.
        Duration::ZERO => (valid_until, Duration::from_micros(at) + CALL),
        // The session would keep the lease, so the client releases it. That request arrives.
        _ if environment.ttl_scope() == TtlScope::Session => (valid_until, Duration::from_micros(at) + TTL),
        // Its renewals arrived, so the server grants the lock later, and then at once.
        _ => environment.lease_ends(),
    };
    let (at, next) = waiter.acquired(SOON).unwrap();
    environment.happened("the takeover came", at, earliest, latest + TAKEOVER_SLACK);
    assert!(next > token);
}

#[test]
fn a_short_outage_loses_only_what_ends_with_its_connection() {
    let environment = Environment::new();
    let outages = [&[Fault::Refuse, Fault::Disconnect][..], &[Fault::DropTraffic], &[Fault::HoldRequests]];
    if environment.outlives_its_process().is_zero() {
        late_requests_lose_nothing(&environment);
        return std::thread::scope(|scope| {
            for faults in outages {
                scope.spawn(|| an_outage_that_breaks_connections_loses_the_lease(faults));
            }
        });
    }
    let (mut holder, _, mut waiter) = holder_and_waiter(&environment);
    for faults in outages {
        after_a_renewal(&environment);
        for fault in faults {
            environment.proxy.apply(*fault);
        }
        std::thread::sleep(TTL / 2);
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

/// As in an outage after which TCP sends again what was lost.
fn late_requests_lose_nothing(environment: &Environment) {
    let (mut holder, ..) = holder_and_waiter(environment);
    for _ in 0..2 {
        after_a_renewal(environment);
        environment.proxy.apply(Fault::Delay { requests: TTL, replies: Duration::ZERO });
        std::thread::sleep(TTL / 2);
        // What waits arrives now.
        environment.proxy.apply(Fault::Delay { requests: Duration::ZERO, replies: Duration::ZERO });
        std::thread::sleep(TTL);
        holder.send("check").unwrap();
        assert!(is_held(&mut holder), "lost by late requests: {:?}", holder.events());
    }
}

fn an_outage_that_breaks_connections_loses_the_lease(faults: &[Fault]) {
    let environment = Environment::new();
    let lock_holders = holder_and_waiter(&environment);
    after_a_renewal(&environment);
    let begin = machine_now();
    for fault in faults {
        environment.proxy.apply(*fault);
    }
    // When the path is healed, the connection of the renewal that was due breaks.
    std::thread::sleep(TTL / 2);
    environment.proxy.heal();
    environment.proxy.deliver();
    is_lost_with_its_connection(&environment, lock_holders, begin);
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
