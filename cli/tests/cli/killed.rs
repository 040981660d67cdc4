//! Processes that get KILL.

use std::time::{Duration, Instant};

use leasehold_conformance::harness::LagMonitor;
use rustix::process::{Signal, kill_process};

use crate::handoff::{HANDOFF, start_waiting};
use crate::process::{
    BOUND, Running, id_of, is_running, json, line_of, outcome, pid, state, until, until_within, watcher,
};
use crate::store::Store;

on_every_store!(
    killed_with_9_it_is_followed_when_its_lease_ends,
    killed_with_9_it_leaves_neither_child_nor_grandchild,
    a_watcher_that_is_killed_is_replaced,
    a_watcher_that_is_stopped_is_replaced,
    killed_with_9_it_keeps_the_shortest_hold,
    killed_while_it_waits_it_leaves_the_lock_to_others,
);

/// How soon the command of a killed run is gone: its watcher reads the end of a pipe, and kills it.
const GONE_BY: Duration = Duration::from_secs(1);

/// A command with a child process. Both ignore every signal that can be ignored.
const FAMILY: &str =
    r#"trap "" INT TERM HUP; sh -c 'echo $$ > grandchild; while :; do sleep 0.05; done' & echo $$ > child; wait"#;

fn killed_with_9_it_is_followed_when_its_lease_ends(store: &Store) {
    let (ttl, started) = (Duration::from_secs(6), Instant::now());
    let mut run = Running::start(store, &["run", "x", "--ttl", "6s", "--", "sh", "-c", "echo $$ > id; exec sleep 600"]);
    id_of(&store.file("id"));
    let next = start_waiting(store, &["run", "x", "--", "sh", "-c", "echo > began"]);
    let seen = Instant::now();
    let left = ttl_left(store);
    let (lag_monitor, killed) = (LagMonitor::start(), Instant::now());
    run.kill();
    line_of(&store.file("began"));
    let (took, allowance) = (killed.elapsed(), lag_monitor.allowance());
    if store.ends_leases_with_processes() {
        assert!(took <= HANDOFF + allowance, "{took:?}");
    } else {
        // A lease need not last for what its server has rounded up.
        let (since, least) = if store.pushes_losses() { (started, ttl) } else { (seen, left) };
        assert!(since.elapsed() >= least, "followed {:?} early", least - since.elapsed());
        // A session ends later than its ttl. The next renewal of the waiter's place is up to three seconds away, and
        // the takeover does not wait for it.
        assert!(took <= ttl + 4 * HANDOFF + allowance, "{took:?}");
    }
    assert_eq!(next.end(), (0, String::new(), String::new()));
}

fn ttl_left(store: &Store) -> Duration {
    let status = json(store, &["status", "x", "--json"]);
    Duration::from_millis(status["holders"][0]["ttl_left_ms"].as_u64().unwrap())
}

fn killed_with_9_it_leaves_neither_child_nor_grandchild(store: &Store) {
    let ttl = Duration::from_secs(6);
    let mut run = Running::start(store, &["run", "x", "--ttl", "6s", "--", "sh", "-c", FAMILY]);
    let family = [id_of(&store.file("child")), id_of(&store.file("grandchild"))];
    let watcher = watcher(run.id());
    let (lag_monitor, killed) = (LagMonitor::start(), Instant::now());
    run.kill();
    until("no process of the family is running", || !family.into_iter().any(is_running));
    let took = killed.elapsed();
    // Long before another client can get the lock: the lease lasts at least two thirds of its ttl. A lease that ends
    // with its process has ended already, and the command is ended some milliseconds later.
    let bound = if store.ends_leases_with_processes() { GONE_BY } else { ttl / 2 };
    assert!(took < bound + lag_monitor.allowance_since(killed), "{took:?}");
    until("nor does the watcher", || !is_running(watcher));
    assert_eq!(outcome(store, &["run", "x", "--", "true"]).0, 0, "the lock comes back by its ttl");
}

fn a_watcher_that_is_killed_is_replaced(store: &Store) {
    a_watcher_that_gets_a_signal_is_replaced(store, Signal::KILL);
}

fn a_watcher_that_is_stopped_is_replaced(store: &Store) {
    a_watcher_that_gets_a_signal_is_replaced(store, Signal::STOP);
}

fn a_watcher_that_gets_a_signal_is_replaced(store: &Store, signal: Signal) {
    let mut run = Running::start(store, &["run", "x", "--", "sh", "-c", FAMILY]);
    let family = [id_of(&store.file("child")), id_of(&store.file("grandchild"))];
    let first = watcher(run.id());
    kill_process(pid(first), signal).unwrap();
    until("the first is gone, also as a zombie", || state(first).is_none());
    let second = watcher(run.id());
    assert_ne!(first, second);
    assert!(family.into_iter().all(is_running), "the command noticed nothing");
    // The watcher takes a moment to start up.
    until_within(BOUND, "it has a session of its own", || crate::process::session(second) == second);
    std::thread::sleep(Duration::from_millis(100));
    run.kill();
    until("no process of the family is running", || !family.into_iter().any(is_running));
}

fn killed_with_9_it_keeps_the_shortest_hold(store: &Store) {
    let (shortest, begin) = (Duration::from_secs(8), Instant::now());
    let args = ["run", "x", "--ttl", "2s", "--min-hold", "8s", "--", "sh", "-c", "echo $$ > id; exec sleep 600"];
    let mut run = Running::start(store, &args);
    let command = id_of(&store.file("id"));
    run.kill();
    until("the command is gone", || !is_running(command));
    if store.ends_leases_with_processes() {
        // So does its shortest hold.
        until("the lock is free", || outcome(store, &["status", "x", "--exit-code"]).0 == 1);
        assert_eq!(outcome(store, &["run", "x", "--no-wait", "--", "true"]).0, 0);
        return assert!(begin.elapsed() < shortest, "{:?}", begin.elapsed());
    }
    // Longer than its ttl.
    std::thread::sleep(Duration::from_secs(4));
    let (code, _, stderr) = outcome(store, &["run", "x", "--no-wait", "--", "true"]);
    // If the machine has paused for that long, the exit code proves nothing.
    assert!(code == 120 || begin.elapsed() > shortest, "{code}: {stderr}");
    assert_eq!(outcome(store, &["run", "x", "--wait", "30s", "--", "true"]).0, 0);
    assert!(begin.elapsed() >= shortest, "{:?}", begin.elapsed());
}

fn killed_while_it_waits_it_leaves_the_lock_to_others(store: &Store) {
    let gate = store.gate();
    let holder = Running::start(store, &["run", "x", "--", "sh", "-c", "echo $$ > id; read line < gate"]);
    id_of(&store.file("id"));
    let mut waiter = Running::start(store, &["run", "x", "--ttl", "2s", "--", "touch", "ran"]);
    watcher(waiter.id());
    std::thread::sleep(Duration::from_millis(200));
    waiter.kill();
    gate.open();
    assert_eq!(holder.end().0, 0);
    // If it had a place, the place ends by its ttl.
    assert_eq!(outcome(store, &["run", "x", "--wait", "30s", "--", "true"]).0, 0);
    assert!(!store.file("ran").exists());
}
