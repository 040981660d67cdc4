//! The store cannot be reached when a run begins.

use std::time::{Duration, Instant};

use leasehold_conformance::harness::Canary;

use crate::process::{BOUND, Running, leasehold, output, tell, told, until_within};
use crate::store::Store;
use crate::terminal::Terminal;

on_every_store!(
    a_wait_covers_a_store_that_does_not_answer_yet,
    without_a_wait_a_store_that_does_not_answer_ends_the_run,
    a_wait_for_the_store_ends_in_time_or_with_a_signal,
    who_waits_for_the_store_at_a_terminal_is_told,
    a_crowd_that_starts_at_once_is_served,
);

/// Longer than one call to the store may take.
const SILENCE: Duration = Duration::from_secs(3);

fn a_wait_covers_a_store_that_does_not_answer_yet(store: &Store) {
    assert_eq!(tell(store, &["run", "x", "--", "true"]).0, 0);
    store.fall_silent();
    let mut run = Running::start(store, &["run", "x", "--wait", "50s", "--", "touch", "ran"]);
    std::thread::sleep(SILENCE);
    assert!(!run.has_ended() && !store.file("ran").exists());
    let canary = Canary::start();
    store.speak_again();
    let back = Instant::now();
    assert_eq!(run.end(), (0, String::new(), String::new()));
    let took = back.elapsed();
    // A pause between two attempts, and an attempt that began in the silence.
    assert!(took <= Duration::from_secs(4) + canary.allowance(), "{took:?}");
}

fn without_a_wait_a_store_that_does_not_answer_ends_the_run(store: &Store) {
    assert_eq!(tell(store, &["run", "x", "--", "true"]).0, 0);
    store.fall_silent();
    let (canary, begin) = (Canary::start(), Instant::now());
    let (code, _, stderr) = tell(store, &["run", "x", "--no-wait", "--", "touch", "ran"]);
    let took = begin.elapsed();
    store.speak_again();
    assert_eq!((code, stderr.lines().count()), (122, 1), "{stderr}");
    assert!(took <= Duration::from_secs(3) + canary.allowance(), "{took:?}");
    assert!(!store.file("ran").exists());
}

fn a_wait_for_the_store_ends_in_time_or_with_a_signal(store: &Store) {
    assert_eq!(tell(store, &["run", "x", "--", "true"]).0, 0);
    store.fall_silent();
    let (canary, begin) = (Canary::start(), Instant::now());
    let (code, _, stderr) = tell(store, &["run", "x", "--wait", "1500ms", "--", "touch", "ran"]);
    let took = begin.elapsed();
    assert_eq!((code, stderr.lines().count()), (122, 1), "{stderr}");
    assert!(took >= Duration::from_millis(1500), "{took:?}");
    assert!(took <= Duration::from_secs(4) + canary.allowance(), "{took:?}");
    let run = Running::start(store, &["run", "x", "--", "touch", "ran"]);
    std::thread::sleep(Duration::from_millis(500));
    let asked = Instant::now();
    run.signal(rustix::process::Signal::TERM);
    let (code, ..) = run.end();
    assert_eq!(code, 143);
    // What may have reached the store is taken back, for two calls at most.
    assert!(asked.elapsed() <= Duration::from_secs(4) + canary.allowance(), "{:?}", asked.elapsed());
    store.speak_again();
    assert!(!store.file("ran").exists());
}

fn who_waits_for_the_store_at_a_terminal_is_told(store: &Store) {
    assert_eq!(tell(store, &["run", "x", "--", "true"]).0, 0);
    store.fall_silent();
    let mut terminal = Terminal::of_leasehold(store, &["run", "x", "--", "echo", "my turn"]);
    terminal.shows("waiting ");
    // A file that another writes to can still be read.
    terminal.shows(if store.has_queue() { "s of 1m: the store does not answer" } else { "does not grant it yet" });
    store.speak_again();
    terminal.shows("my turn");
    assert_eq!(terminal.end(), Some(0));
}

/// Each start is three processes, and all of them want the store at the same moment.
fn a_crowd_that_starts_at_once_is_served(store: &Store) {
    const CROWD: usize = 200;
    let wait = format!("{}s", 2 * BOUND.as_secs());
    let args = ["run", "x", "--wait", &wait, "--", "sh", "-c", "echo $LEASEHOLD_FENCING_TOKEN >> tokens"];
    let mut crowd: Vec<_> = (0..CROWD).map(|_| Running::start(store, &args)).collect();
    until_within(3 * BOUND, "everybody has ended", || crowd.iter_mut().all(Running::has_ended));
    for run in crowd {
        assert_eq!(run.end(), (0, String::new(), String::new()));
    }
    let tokens = std::fs::read_to_string(store.file("tokens")).unwrap();
    let tokens: Vec<u64> = tokens.lines().map(|token| token.parse().unwrap()).collect();
    assert_eq!(tokens.len(), CROWD);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[cfg(feature = "redis")]
#[test]
fn a_server_that_is_started_later_is_waited_for() {
    let store = Store::redis();
    store.go_down();
    let mut run = Running::start(&store, &["run", "x", "--wait", "50s", "--", "touch", "ran"]);
    std::thread::sleep(Duration::from_secs(1));
    assert!(!run.has_ended());
    store.come_up();
    assert_eq!(run.end(), (0, String::new(), String::new()));
    assert!(store.file("ran").exists());
}

#[test]
fn what_no_wait_mends_ends_the_run_at_once() {
    let store = Store::any();
    std::fs::write(store.file("text"), "no database ".repeat(1000)).unwrap();
    let canary = Canary::start();
    let mut stores = vec![format!("sqlite://{}", store.file("text").display())];
    let server = cfg!(feature = "redis").then(Store::redis);
    stores.extend(server.as_ref().map(|server| server.url().replace("redis://", "redis://nobody:hunter2@")));
    for url in stores {
        let begin = Instant::now();
        let mut command = leasehold(&store, &["run", "x", "--wait", "50s", "--", "touch", "ran"]);
        let (code, _, stderr) = told(&output(command.env("LEASEHOLD_STORE", &url)));
        assert_eq!((code, stderr.lines().count()), (123, 1), "{url}: {stderr}");
        assert!(!stderr.contains("hunter2"), "{stderr}");
        assert!(begin.elapsed() <= Duration::from_secs(5) + canary.allowance(), "{:?}", begin.elapsed());
    }
    assert!(!store.file("ran").exists());
}
