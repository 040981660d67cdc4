//! The run is stopped.

use std::time::{Duration, Instant};

use leasehold_conformance::harness::LagMonitor;

use crate::process::{Running, id_of, is_running, outcome, until};
use crate::store::Store;

on_every_store!(
    while_the_run_is_stopped_the_command_does_not_outlive_the_lease,
    a_pause_that_is_shorter_than_the_lease_changes_nothing,
);

/// Long enough that no lease is lost if a busy machine pauses for some seconds.
const TTL: Duration = Duration::from_secs(6);

fn while_the_run_is_stopped_the_command_does_not_outlive_the_lease(store: &Store) {
    let script = r#"trap "" TERM; sh -c 'trap "" TERM; echo $$ > grandchild; while :; do sleep 0.05; done' &
        echo $$ > child; wait"#;
    let mut run = Running::start(store, &["run", "x", "--ttl", "6s", "--", "sh", "-c", script]);
    let family = [id_of(&store.file("child")), id_of(&store.file("grandchild"))];
    // After the first renewals, whose deadlines the watcher has to know, and between two of them.
    std::thread::sleep(TTL + TTL / 6);
    assert!(family.into_iter().all(is_running));
    let lag_monitor = LagMonitor::start();
    run.pause();
    let paused = Instant::now();
    until("no process of the family is running, while the run is stopped", || !family.into_iter().any(is_running));
    let took = paused.elapsed();
    assert!(took <= TTL * 9 / 10 + lag_monitor.allowance(), "the lease ended before: {took:?}");
    assert_eq!(outcome(store, &["run", "x", "--", "true"]).0, 0, "another holds it then");
    run.resume();
    let (code, _, stderr) = run.end();
    assert_eq!(code, 121, "{stderr}");
    assert!(stderr.contains("lock `x` is lost: the lease was not renewed in time"), "{stderr}");
}

fn a_pause_that_is_shorter_than_the_lease_changes_nothing(store: &Store) {
    let gate = store.gate();
    let args = ["run", "x", "--ttl", "15s", "--grace", "100ms", "--", "sh", "-c", "echo $$ > id; read line < gate"];
    let mut run = Running::start(store, &args);
    id_of(&store.file("id"));
    run.pause();
    // At least one renewal is due in this time.
    std::thread::sleep(Duration::from_millis(5500));
    run.resume();
    std::thread::sleep(Duration::from_millis(200));
    gate.open();
    assert_eq!(run.end(), (0, String::new(), String::new()));
}
