//! The ways in which a process can end, or stand still, with the lock in hand.

use std::time::Duration;

use leasehold_conformance::harness::{TakerEvent, machine_now, micros};

use super::world::{LOSS_SLACK, MARGIN, SOON, Scene as _, TAKEOVER_SLACK, TTL, World, eventually, look};

/// The next one holds when the lease of the last has ended, by the server's own record: not before, and at once.
#[track_caller]
fn taken_over(
    world: &World,
    waiter: &mut leasehold_conformance::harness::Taker,
    ends: (Duration, Duration),
    above: u64,
) {
    let (at, token) = waiter.acquired(SOON).unwrap();
    world.happened("the takeover came", at, ends.0, ends.1 + TAKEOVER_SLACK);
    assert!(token > above, "token {token} after {above}");
}

#[test]
fn the_waiter_of_a_killed_holder_takes_over_when_its_lease_ends() {
    let world = World::new();
    let (mut holder, token) = world.holder(&[]);
    let mut waiter = world.waiter(&[]);
    holder.process().kill().unwrap();
    taken_over(&world, &mut waiter, world.lease_ends(), token);
}

#[test]
fn a_killed_holder_without_waiters_leaves_a_free_lock_after_its_lease() {
    let world = World::new();
    let (mut holder, token) = world.holder(&[]);
    holder.process().kill().unwrap();
    let ends = world.lease_ends();
    // It comes when the holder is dead already.
    let mut next = world.taker(&[]);
    taken_over(&world, &mut next, ends, token);
}

#[test]
fn a_killed_head_of_the_queue_costs_no_more_than_its_place() {
    let world = World::new();
    let (mut holder, token) = world.holder(&[]);
    let mut head = world.waiter(&[]);
    let mut second = world.waiter(&[]);
    head.process().kill().unwrap();
    holder.process().kill().unwrap();
    let ends = world.lease_ends();
    let (at, next) = second.acquired(SOON).unwrap();
    // The dead head is handed the lock for what is left of its place, which is at most one ttl here.
    world.happened("the takeover came", at, ends.0, ends.1 + TTL + TAKEOVER_SLACK);
    assert!(next > token);
}

#[test]
fn exit_panic_and_leak_end_by_the_ttl() {
    let world = World::new();
    let (mut holder, token) = world.holder(&[]);
    let mut waiter = world.waiter(&[]);
    holder.tell("exit").unwrap();
    assert!(holder.wait(SOON).unwrap().success());
    taken_over(&world, &mut waiter, world.lease_ends(), token);

    // A panic drops the guard: its release may still get through, or not.
    let mut next = world.waiter(&[]);
    waiter.tell("panic").unwrap();
    assert_eq!(waiter.wait(SOON).unwrap().code(), Some(101));
    let dead = machine_now();
    let (at, token) = next.acquired(SOON).unwrap();
    world.happened("the takeover came", at, Duration::ZERO, dead + TTL + TAKEOVER_SLACK);

    // A leaked guard is renewed for as long as its process lives, and no longer.
    next.tell("leak").unwrap();
    let mut last = world.waiter(&[]);
    std::thread::sleep(TTL * 2);
    assert!(world.is_held());
    assert!(last.next(Duration::ZERO, |line| matches!(line.event, TakerEvent::Acquired { .. }).then_some(())).is_err());
    next.tell("exit").unwrap();
    next.wait(SOON).unwrap();
    taken_over(&world, &mut last, world.lease_ends(), token);
}

#[test]
fn release_and_drop_hand_the_lock_on_at_once() {
    let world = World::new();
    let (mut holder, mut token) = world.holder(&[]);
    for command in ["release", "drop"] {
        let mut waiter = world.waiter(&[]);
        let told = machine_now();
        holder.tell(command).unwrap();
        let (at, next) = waiter.acquired(SOON).unwrap();
        world.happened(&format!("the handoff after {command} came"), at, told, told + TAKEOVER_SLACK);
        assert!(next > token);
        assert!(holder.wait(SOON).unwrap().success());
        (holder, token) = (waiter, next);
    }
}

#[test]
fn a_paused_holder_learns_of_its_loss_with_its_first_look() {
    let world = World::new();
    let (mut holder, token) = world.holder(&["--stay"]);
    let mut waiter = world.waiter(&[]);
    holder.process().pause().unwrap();
    taken_over(&world, &mut waiter, world.lease_ends(), token);

    // These are waiting for it when it wakes up.
    holder.tell("look").unwrap();
    holder.tell("look").unwrap();
    let woken = machine_now();
    holder.process().resume().unwrap();
    let (at, reason) = holder.lost(SOON).unwrap();
    world.happened("the loss was told", at, woken, woken + LOSS_SLACK);
    assert_eq!(reason, "Expired");
    // A look may have come before the loss was told, and was passed over.
    let is_look = |line: &&leasehold_conformance::harness::TakerLine| {
        line.at_us >= micros(woken) && matches!(line.event, TakerEvent::Look { .. })
    };
    while holder.said().iter().filter(is_look).count() < 2 {
        assert!(!look(&mut holder));
    }
    let said_held = |line: &leasehold_conformance::harness::TakerLine| {
        line.at_us >= micros(woken) && matches!(line.event, TakerEvent::Look { held: true, .. })
    };
    assert!(!holder.said().iter().any(said_held), "it said that it holds after it woke up: {:?}", holder.said());

    // The other one is not harmed by whatever the woken one still sends.
    std::thread::sleep(TTL);
    waiter.tell("look").unwrap();
    assert!(look(&mut waiter));
}

#[test]
fn a_paused_waiter_is_passed_over_and_does_not_hold_when_it_wakes() {
    let world = World::new();
    let (mut holder, token) = world.holder(&[]);
    let mut sleeper = world.waiter(&[]);
    let mut second = world.waiter(&[]);
    sleeper.process().pause().unwrap();
    holder.tell("release").unwrap();
    let released = machine_now();
    let (at, next) = second.acquired(SOON).unwrap();
    world.happened("the next one got it", at, released, released + TTL + TAKEOVER_SLACK);
    assert!(next > token);
    sleeper.process().resume().unwrap();
    // It was granted the lock in its sleep and slept through the lease: it stands in the queue again, and waits its turn.
    std::thread::sleep(TTL);
    second.tell("look").unwrap();
    assert!(look(&mut second));
    let told = machine_now();
    second.tell("release").unwrap();
    let (at, last) = sleeper.acquired(SOON).unwrap();
    world.happened("the woken one got it", at, told, told + TAKEOVER_SLACK);
    assert!(last > next);
}

#[test]
fn a_pause_shorter_than_the_validity_loses_nothing() {
    let world = World::new();
    let (mut holder, _) = world.holder(&["--stay"]);
    for _ in 0..3 {
        holder.process().pause().unwrap();
        let (earliest, _) = world.lease_ends();
        // Not longer than what is left for sure, with a wide margin for a busy machine.
        let left = earliest.saturating_sub(machine_now()).saturating_sub(MARGIN);
        std::thread::sleep(left / 2);
        holder.process().resume().unwrap();
        holder.tell("look").unwrap();
        assert!(look(&mut holder));
        std::thread::sleep(TTL / 2);
    }
    holder.tell("release").unwrap();
    eventually("released", || !world.is_held());
}
