//! The command has exited, and the store does not reply to the release, or does not have the lease any more.

use std::time::{Duration, Instant};

use leasehold_conformance::harness::{Fault, LagMonitor};

use crate::process::{Running, id_of, is_running, leasehold, outcome, until};
use crate::store::Store;

on_every_store!(
    a_failed_release_is_retried,
    a_release_that_keeps_failing_ends_with_a_warning,
    a_signal_ends_the_retries_of_a_release,
    a_lease_that_was_broken_is_no_success,
    a_lease_that_was_broken_during_an_outage_is_no_success,
    with_warn_a_broken_lease_is_a_warning,
);

/// A run whose command has exited while the store does not reply.
fn ended_without_replies(store: &Store) -> Running {
    let gate = store.gate();
    let run = Running::start(store, &["run", "x", "--", "sh", "-c", "echo $$ > id; read line < gate; exit 4"]);
    let command = id_of(&store.file("id"));
    store.stop_replying();
    gate.open();
    until("the command has ended", || !is_running(command));
    run
}

fn a_failed_release_is_retried(store: &Store) {
    let run = ended_without_replies(store);
    // Longer than one attempt.
    std::thread::sleep(Duration::from_secs(2));
    store.reply_again();
    let (code, stdout, stderr) = run.end();
    if store.forgets_free_locks() && code == 121 {
        // The first attempt has arrived after all, and the store does not show whether it ended the lease or the lease
        // ended before it.
        assert!(stderr.contains("lock `x` may have been lost"), "{stderr}");
    } else {
        assert_eq!((code, stdout, stderr), (4, String::new(), String::new()));
    }
    assert_eq!(outcome(store, &["run", "x", "--no-wait", "--", "true"]).0, 0, "it was released");
}

fn a_release_that_keeps_failing_ends_with_a_warning(store: &Store) {
    let (lag_monitor, begin) = (LagMonitor::start(), Instant::now());
    let run = ended_without_replies(store);
    let (code, _, stderr) = run.end();
    let took = begin.elapsed();
    store.reply_again();
    assert_eq!((code, stderr.lines().count()), (4, 1), "{stderr}");
    assert!(stderr.contains("warning: lock `x` could not be released"), "{stderr}");
    assert!(stderr.contains("it stays held until its lease ends, in 2"), "{stderr}");
    // The first attempt, and five seconds of retries.
    assert!(took <= Duration::from_secs(8) + lag_monitor.allowance(), "{took:?}");
}

fn a_signal_ends_the_retries_of_a_release(store: &Store) {
    let run = ended_without_replies(store);
    std::thread::sleep(Duration::from_secs(2));
    let (lag_monitor, signalled) = (LagMonitor::start(), Instant::now());
    run.signal(rustix::process::Signal::TERM);
    let (code, _, stderr) = run.end();
    let took = signalled.elapsed();
    store.reply_again();
    assert_eq!(code, 4, "{stderr}");
    assert!(stderr.contains("could not be released"), "{stderr}");
    assert!(took <= Duration::from_secs(2) + lag_monitor.allowance(), "{took:?}");
}

const GATED: [&str; 4] = ["--", "sh", "-c", "echo $$ > id; read line < gate"];

/// Breaks the lease of a run, and another run holds the lock.
fn take_from(store: &Store) {
    assert_eq!(outcome(store, &["break", "x", "--yes"]).0, 0);
    assert_eq!(outcome(store, &["run", "x", "--wait", "10s", "--", "true"]).0, 0, "another holds it");
}

fn a_lease_that_was_broken_is_no_success(store: &Store) {
    let gate = store.gate();
    let run = Running::start(store, &[&["run", "x"], &GATED[..]].concat());
    id_of(&store.file("id"));
    take_from(store);
    if !store.pushes_losses() {
        gate.open();
    }
    let (code, _, stderr) = run.end();
    assert_eq!((code, stderr.lines().count()), (121, 1), "{stderr}");
    let is_told = stderr.contains("lock `x` was lost before leasehold saw the command end");
    // Some stores report the loss at once, and a lease with a connection of its own is found lost when that is used.
    let was_told = stderr.contains("lock `x` is lost: the store no longer has this lease");
    assert!(is_told || was_told && store.ends_holds_with_processes(), "{stderr}");
}

/// The run is cut off from before the break until after the end of its command, so the first release has no reply, and
/// the next one finds no lease.
fn a_lease_that_was_broken_during_an_outage_is_no_success(store: &Store) {
    let Some((url, proxy)) = store.proxy() else { return };
    let gate = store.gate();
    let run = Running::spawn(leasehold(store, &[&["run", "x"], &GATED[..]].concat()).env("LEASEHOLD_STORE", url));
    let command = id_of(&store.file("id"));
    proxy.apply(Fault::DropTraffic);
    take_from(store);
    gate.open();
    until("the command has ended", || !is_running(command));
    // Longer than one attempt.
    std::thread::sleep(Duration::from_millis(1500));
    proxy.heal();
    let (code, _, stderr) = run.end();
    assert_eq!((code, stderr.lines().count()), (121, 1), "{stderr}");
    assert!(stderr.contains("lock `x` may have been lost before leasehold saw the command end"), "{stderr}");
}

fn with_warn_a_broken_lease_is_a_warning(store: &Store) {
    let gate = store.gate();
    let run = Running::start(store, &[&["run", "x", "--on-lost", "warn"], &GATED[..]].concat());
    id_of(&store.file("id"));
    take_from(store);
    gate.open();
    let (code, _, stderr) = run.end();
    assert_eq!((code, stderr.lines().count()), (0, 1), "{stderr}");
    assert!(stderr.contains("warning: lock `x` "), "{stderr}");
}
