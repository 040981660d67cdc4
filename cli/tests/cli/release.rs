//! The command has exited, and the store does not answer the release.

use std::time::{Duration, Instant};

use leasehold_conformance::harness::LagMonitor;

use crate::process::{Running, id_of, is_running, outcome, until};
use crate::store::Store;

on_every_store!(
    a_failed_release_is_retried,
    a_release_that_keeps_failing_ends_with_a_warning,
    a_signal_ends_the_retries_of_a_release,
);

/// A run whose command has exited while the store does not answer.
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
    assert_eq!(run.end(), (4, String::new(), String::new()));
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
