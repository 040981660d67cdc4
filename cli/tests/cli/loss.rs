//! The lease is lost, or is about to be lost.

use std::time::{Duration, Instant, SystemTime};

use leasehold_conformance::harness::LagMonitor;

use crate::process::{Running, id_of, is_running, outcome, until};
use crate::store::Store;

on_every_store!(
    a_removed_record_kills_the_command_at_once,
    a_store_that_does_not_reply_brings_term_and_then_kill,
    with_the_defaults_a_store_that_does_not_reply_ends_the_command_in_time,
    with_the_defaults_a_removed_record_ends_the_command,
    a_command_that_ends_on_term_is_not_killed,
    an_outage_that_is_shorter_than_the_lease_changes_nothing,
    with_warn_the_command_goes_on,
    the_longest_hold_ends_the_command,
);

/// Creates a file when it gets TERM, without starting another program, and does not exit.
const STUBBORN: &str = r#"trap ": >> got-term" TERM; sh -c 'trap "" TERM; echo $$ > grandchild
    while :; do sleep 0.05; done' &
    echo $$ > child; while :; do sleep 0.05; done"#;

/// Long enough that no lease is lost if a busy machine pauses for some seconds.
const TTL: Duration = Duration::from_secs(9);

fn a_removed_record_kills_the_command_at_once(store: &Store) {
    killed_when_removed(store, &["--ttl", "9s"], TTL);
}

fn with_the_defaults_a_removed_record_ends_the_command(store: &Store) {
    killed_when_removed(store, &[], Duration::from_secs(30));
}

/// Removes the record while a stubborn command runs with these options, which mean this ttl.
fn killed_when_removed(store: &Store, options: &[&str], ttl: Duration) {
    let run = Running::start(store, &[&["run", "x"], options, &["--", "sh", "-c", STUBBORN]].concat());
    let family = [id_of(&store.file("child")), id_of(&store.file("grandchild"))];
    let (lag_monitor, begin) = (LagMonitor::start(), Instant::now());
    store.remove_records();
    until("no process of the family is running", || !family.into_iter().any(is_running));
    let took = begin.elapsed();
    // The next renewal reports the loss, at most a third of the ttl later, or the one after it if that was already
    // sent.
    assert!(took < ttl * 2 / 3 + lag_monitor.allowance(), "{took:?}");
    assert!(!store.file("got-term").exists(), "there is no time to ask");
    let (code, _, stderr) = run.end();
    assert_eq!(code, 121, "{stderr}");
    assert!(
        stderr.contains("lock `x` is lost: the store no longer has this lease") && stderr.contains("KILL"),
        "{stderr}"
    );
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

fn a_store_that_does_not_reply_brings_term_and_then_kill(store: &Store) {
    let stderr = term_and_kill(store, &["--ttl", "9s", "--grace", "2s"], TTL, Duration::from_secs(2));
    assert!(stderr.contains("no longer confirms lock `x`") && stderr.contains("KILL follows in 2s"), "{stderr}");
}

fn with_the_defaults_a_store_that_does_not_reply_ends_the_command_in_time(store: &Store) {
    term_and_kill(store, &[], Duration::from_secs(30), Duration::from_secs(5));
}

/// Runs a stubborn command with these options, which mean this ttl and grace, on a store that falls silent. Returns its
/// standard error.
fn term_and_kill(store: &Store, options: &[&str], ttl: Duration, grace: Duration) -> String {
    let lag_monitor = LagMonitor::start();
    let run = Running::start(store, &[&["run", "x"], options, &["--", "sh", "-c", STUBBORN]].concat());
    let family = [id_of(&store.file("child")), id_of(&store.file("grandchild"))];
    let (outage, outage_at) = (Instant::now(), SystemTime::now());
    store.stop_replying();
    let began = outage.elapsed();
    until("no process of the family is running", || !family.into_iter().any(is_running));
    let took = outage.elapsed();
    store.reply_again();
    // Validity counts from before the last renewal was sent, minus a tenth. A renewal may have been sent until the
    // store stopped replying, which waits for writers.
    assert!(
        took <= began + ttl * 9 / 10 + lag_monitor.allowance(),
        "killed after the lease: {took:?}, after an outage that began within {began:?}"
    );
    // And the last renewal was due a third of the ttl ago at most.
    let least = ttl * 9 / 10 - ttl / 3 - Duration::from_millis(300);
    assert!(took + lag_monitor.allowance() >= least, "killed too early: {took:?}");
    let term = std::fs::metadata(store.file("got-term")).and_then(|found| found.modified()).unwrap();
    let term = term.duration_since(outage_at).unwrap_or_default();
    // The shell handles the signal after its `sleep` has ended.
    let between = took.saturating_sub(term) + lag_monitor.allowance();
    assert!(between + Duration::from_millis(500) >= grace, "TERM at {term:?}, gone at {took:?}");
    let (code, _, stderr) = run.end();
    assert_eq!(code, 121, "{stderr}");
    stderr
}

fn a_command_that_ends_on_term_is_not_killed(store: &Store) {
    // The shell exits at once, and its child process takes a moment to clean up.
    let script = r#"sh -c 'trap "sleep 0.2; echo tidy > tidied; exit" TERM; echo $$ > child
        while :; do sleep 0.02; done' & wait"#;
    let run = Running::start(store, &["run", "x", "--ttl", "9s", "--grace", "2900ms", "--", "sh", "-c", script]);
    let child = id_of(&store.file("child"));
    store.stop_replying();
    let (code, _, stderr) = run.end();
    let tidied = store.file("tidied").exists();
    store.reply_again();
    assert!(tidied && !is_running(child), "{stderr}");
    assert_eq!(code, 121, "{stderr}");
    assert!(stderr.contains("the command was ended"), "{stderr}");
}

fn an_outage_that_is_shorter_than_the_lease_changes_nothing(store: &Store) {
    let gate = store.gate();
    let run = Running::start(
        store,
        &["run", "x", "--ttl", "15s", "--grace", "300ms", "--", "sh", "-c", "echo $$ > id; read line < gate"],
    );
    id_of(&store.file("id"));
    store.stop_replying();
    // At least one renewal is due in this time.
    std::thread::sleep(Duration::from_millis(5500));
    store.reply_again();
    std::thread::sleep(Duration::from_millis(500));
    gate.open();
    assert_eq!(run.end(), (0, String::new(), String::new()));
}

fn with_warn_the_command_goes_on(store: &Store) {
    let gate = store.gate();
    let script = r#"trap "touch got-term" TERM; echo $$ > id; read line < gate; exit 5"#;
    let run = Running::start(store, &["run", "x", "--ttl", "9s", "--on-lost", "warn", "--", "sh", "-c", script]);
    let id = id_of(&store.file("id"));
    store.remove_records();
    until("another can hold it", || outcome(store, &["run", "x", "--no-wait", "--", "true"]).0 == 0);
    // Until the holder's own deadline.
    std::thread::sleep(TTL);
    assert!(is_running(id) && !store.file("got-term").exists());
    gate.open();
    let (code, _, stderr) = run.end();
    assert_eq!(code, 5);
    assert!(stderr.contains("warning: lock `x` is lost") && stderr.lines().count() == 1, "{stderr}");
}

fn the_longest_hold_ends_the_command(store: &Store) {
    let begin = Instant::now();
    let args = ["run", "x", "--max-hold", "4s", "--grace", "2s", "--", "sh", "-c", STUBBORN];
    let run = Running::start(store, &args);
    let family = [id_of(&store.file("child")), id_of(&store.file("grandchild"))];
    let (lag_monitor, began) = (LagMonitor::start(), Instant::now());
    until("no process of the family is running", || !family.into_iter().any(is_running));
    // The last lease ends with the hold, and its validity is a tenth shorter.
    assert!(begin.elapsed() >= Duration::from_millis(3500), "{:?}", begin.elapsed());
    assert!(began.elapsed() <= Duration::from_secs(4) + lag_monitor.allowance(), "{:?}", began.elapsed());
    assert!(store.file("got-term").exists());
    let (code, _, stderr) = run.end();
    assert_eq!(code, 124, "{stderr}");
    assert!(stderr.contains("lock `x` has reached --max-hold") && !stderr.contains("no longer"), "{stderr}");
    assert!(stderr.contains("TERM, KILL follows in 2s"), "{stderr}");
    let last = stderr.lines().last().unwrap_or("");
    assert!(last.starts_with("leasehold: lock `x` has reached"), "the reason comes last: {stderr}");
    // It was released before its ttl of 30 s was over.
    assert_eq!(outcome(store, &["run", "x", "--wait", "10s", "--", "true"]).0, 0);
}

/// The command ends before a renewal could report the loss.
#[test]
fn a_loss_that_only_the_release_finds_is_no_success() {
    for store in [Store::sqlite(), Store::redis(), Store::mysql()] {
        for (on_lost, expected) in [("kill", 121), ("warn", 7)] {
            let (gate, ttl) = (store.gate(), ["--ttl", "60s", "--on-lost", on_lost]);
            let args =
                [&["run", "x"], &ttl[..], &["--", "sh", "-c", "echo $$ > id; read line < gate; exit 7"]].concat();
            let run = Running::start(&store, &args);
            id_of(&store.file("id"));
            store.remove_records();
            gate.open();
            let (code, _, stderr) = run.end();
            assert_eq!(code, expected, "{stderr}");
            assert!(stderr.contains("lock `x` was lost before leasehold saw the command end"), "{stderr}");
            for name in ["id", "gate"] {
                std::fs::remove_file(store.file(name)).unwrap();
            }
        }
    }
}

/// As after a pause between the grant and the start of the command.
#[test]
fn a_command_whose_lease_has_ended_is_not_started() {
    let store = Store::any();
    let (code, _, stderr) = outcome(&store, &["run", "x", "--max-hold", "1us", "--", "touch", "ran"]);
    assert_eq!(code, 122, "{stderr}");
    assert!(stderr.contains("nothing was run") && !store.file("ran").exists(), "{stderr}");
}

#[test]
fn the_lock_stays_held_while_processes_that_got_term_clean_up() {
    let store = Store::any();
    let child = r#"trap "sleep 0.5; echo tidy > tidied; exit" TERM; echo $$ > child; while :; do sleep 0.02; done"#;
    let script = format!("sh -c '{child}' & wait");
    let mut run = Running::start(&store, &["run", "x", "--max-hold", "9s", "--grace", "8s", "--", "sh", "-c", &script]);
    id_of(&store.file("child"));
    until("the run has ended", || run.has_ended());
    assert!(store.file("tidied").exists());
    assert_eq!(run.end().0, 124);
}

#[test]
fn a_stopped_command_handles_term() {
    let store = Store::any();
    let script = r#"trap ": > got-term; exit" TERM; echo $$ > id; kill -STOP $$; while :; do sleep 0.05; done"#;
    let run = Running::start(&store, &["run", "x", "--max-hold", "6s", "--grace", "5s", "--", "sh", "-c", script]);
    id_of(&store.file("id"));
    assert_eq!(run.end().0, 124);
    assert!(store.file("got-term").exists());
}
