//! Processes that end or pause while they hold the lock.

use std::time::Duration;

use leasehold_conformance::harness::{HolderEvent, machine_now, micros};

use super::environment::{
    Environment, LOSS_SLACK, MARGIN, SOON, StoreUnderTest as _, TAKEOVER_SLACK, TTL, eventually, is_held,
};

/// The next lock holder acquires the lock when the previous lease ends by the server's own record: not before, and at
/// once.
#[track_caller]
fn taken_over(
    environment: &Environment,
    waiter: &mut leasehold_conformance::harness::LockHolder,
    ends: (Duration, Duration),
    above: u64,
) {
    let (at, token) = waiter.acquired(SOON).unwrap();
    environment.happened("the takeover came", at, ends.0, ends.1 + TAKEOVER_SLACK);
    assert!(token > above, "token {token} after {above}");
}

#[test]
fn the_waiter_of_a_killed_holder_takes_over_when_its_lease_ends() {
    let environment = Environment::new();
    let (mut holder, token) = environment.holder(&[]);
    let mut waiter = environment.waiter(&[]);
    let killed = machine_now();
    holder.process().kill().unwrap();
    taken_over(&environment, &mut waiter, environment.lease_of_the_dead_ends(killed), token);
}

#[test]
fn a_killed_holder_without_waiters_leaves_a_free_lock_after_its_lease() {
    let environment = Environment::new();
    let (mut holder, token) = environment.holder(&[]);
    let killed = machine_now();
    holder.process().kill().unwrap();
    let ends = environment.lease_of_the_dead_ends(killed);
    // The next one starts after the holder is dead.
    if environment.outlives_its_process().is_zero() {
        eventually("the lock is free", || !environment.is_held());
        environment.happened("the lock became free", micros(machine_now()), ends.0, ends.1 + TAKEOVER_SLACK);
        let (_, next) = environment.holder(&[]);
        assert!(next > token, "token {next} after {token}");
    } else {
        let mut next = environment.lock_holder(&[]);
        taken_over(&environment, &mut next, ends, token);
    }
}

#[test]
fn a_killed_head_of_the_queue_costs_no_more_than_its_place() {
    let environment = Environment::new();
    let (mut holder, token) = environment.holder(&[]);
    let mut head = environment.waiter(&[]);
    let mut second = environment.waiter(&[]);
    head.process().kill().unwrap();
    let killed = machine_now();
    holder.process().kill().unwrap();
    let (earliest, latest) = environment.lease_of_the_dead_ends(killed);
    // The dead head is handed the lock for what is left of its place.
    let ends = (earliest, latest + environment.outlives_its_process());
    taken_over(&environment, &mut second, ends, token);
}

#[test]
fn exit_panic_and_leak_end_by_the_ttl() {
    let environment = Environment::new();
    let (mut holder, token) = environment.holder(&[]);
    let mut waiter = environment.waiter(&[]);
    let exited = machine_now();
    holder.send("exit").unwrap();
    assert!(holder.wait(SOON).unwrap().success());
    taken_over(&environment, &mut waiter, environment.lease_of_the_dead_ends(exited), token);

    // A panic drops the guard. Its release may or may not still be sent.
    let mut next = environment.waiter(&[]);
    waiter.send("panic").unwrap();
    assert_eq!(waiter.wait(SOON).unwrap().code(), Some(101));
    let dead = machine_now();
    let (at, token) = next.acquired(SOON).unwrap();
    let latest = dead + environment.outlives_its_process() + TAKEOVER_SLACK;
    environment.happened("the takeover came", at, Duration::ZERO, latest);

    // A leaked guard is renewed for as long as its process lives, and no longer.
    next.send("leak").unwrap();
    let mut last = environment.waiter(&[]);
    std::thread::sleep(TTL * 2);
    assert!(environment.is_held());
    assert!(
        last.next(Duration::ZERO, |line| matches!(line.event, HolderEvent::Acquired { .. }).then_some(())).is_err()
    );
    let exited = machine_now();
    next.send("exit").unwrap();
    next.wait(SOON).unwrap();
    taken_over(&environment, &mut last, environment.lease_of_the_dead_ends(exited), token);
}

#[test]
fn a_paused_holder_detects_its_loss_with_its_first_check() {
    let environment = Environment::new();
    let (mut holder, token) = environment.holder(&["--stay"]);
    let mut waiter = environment.waiter(&[]);
    holder.process().pause().unwrap();
    taken_over(&environment, &mut waiter, environment.lease_ends(), token);

    // These commands wait for it when it resumes.
    holder.send("check").unwrap();
    holder.send("check").unwrap();
    let woken = machine_now();
    holder.process().resume().unwrap();
    let (at, reason) = holder.lost(SOON).unwrap();
    environment.happened("the loss was reported", at, woken, woken + LOSS_SLACK);
    assert_eq!(reason, "Expired");
    // A check may have come before the loss was reported. It is skipped.
    let is_check = |line: &&leasehold_conformance::harness::HolderLine| {
        line.at_us >= micros(woken) && matches!(line.event, HolderEvent::Checked { .. })
    };
    while holder.events().iter().filter(is_check).count() < 2 {
        assert!(!is_held(&mut holder));
    }
    let reports_held = |line: &leasehold_conformance::harness::HolderLine| {
        line.at_us >= micros(woken) && matches!(line.event, HolderEvent::Checked { held: true, .. })
    };
    assert!(
        !holder.events().iter().any(reports_held),
        "it reported that it holds after the pause: {:?}",
        holder.events()
    );

    // Late requests of the resumed holder do not affect the other one.
    std::thread::sleep(TTL);
    waiter.send("check").unwrap();
    assert!(is_held(&mut waiter));
}

#[test]
fn a_paused_waiter_is_passed_over_and_does_not_hold_when_it_wakes() {
    let environment = Environment::new();
    let (mut holder, token) = environment.holder(&[]);
    let mut sleeper = environment.waiter(&[]);
    let mut second = environment.waiter(&[]);
    sleeper.process().pause().unwrap();
    let released = machine_now();
    holder.send("release").unwrap();
    let (at, next) = second.acquired(SOON).unwrap();
    environment.happened("the next lock holder got the lock", at, released, released + TTL + TAKEOVER_SLACK);
    assert!(next > token);
    sleeper.process().resume().unwrap();
    // It was granted the lock during its pause, and the lease has ended. It is in the queue again and waits for its
    // turn.
    std::thread::sleep(TTL);
    second.send("check").unwrap();
    assert!(is_held(&mut second));
    let released = machine_now();
    second.send("release").unwrap();
    let (at, last) = sleeper.acquired(SOON).unwrap();
    environment.happened("the resumed lock holder got the lock", at, released, released + TAKEOVER_SLACK);
    assert!(last > next);
}

#[test]
fn a_pause_shorter_than_the_validity_loses_nothing() {
    let environment = Environment::new();
    let (mut holder, _) = environment.holder(&["--stay"]);
    for _ in 0..3 {
        holder.process().pause().unwrap();
        let (earliest, _) = environment.lease_ends();
        // Shorter than the rest of the lease, with a wide margin for a busy machine.
        let left = earliest.saturating_sub(machine_now()).saturating_sub(MARGIN);
        std::thread::sleep(left / 2);
        holder.process().resume().unwrap();
        holder.send("check").unwrap();
        assert!(is_held(&mut holder));
        std::thread::sleep(TTL / 2);
    }
    holder.send("release").unwrap();
    eventually("released", || !environment.is_held());
}
