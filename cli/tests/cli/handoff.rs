//! Handoffs from one process to the next, with the default options and with bounds in time.

use std::time::{Duration, Instant};

use leasehold_conformance::harness::LagMonitor;

use crate::process::{Running, id_of, is_running, line_of, outcome, until};
use crate::store::Store;

on_every_store!(
    with_the_defaults_the_next_run_begins_when_the_last_one_ends,
    many_runs_with_the_defaults_take_turns_without_stalls,
    a_longest_hold_that_is_shorter_than_a_place_in_the_queue_is_kept,
    a_long_grace_does_not_end_a_command_that_came_out_of_a_queue,
);

/// Far above the time of a handoff, and far below the seconds of one that waits for a poll or a renewal.
pub(crate) const HANDOFF: Duration = Duration::from_millis(500);

/// Starts a run that holds the lock until the test ends it.
pub(crate) fn start_waiting(store: &Store, args: &[&str]) -> Running {
    let run = Running::start(store, args);
    if store.has_queue() {
        until("it stands in the queue", || outcome(store, &["status", "x", "--json"]).1.contains(r#""waiters":1"#));
    } else {
        crate::process::watcher(run.id());
        std::thread::sleep(Duration::from_millis(300));
    }
    run
}

fn with_the_defaults_the_next_run_begins_when_the_last_one_ends(store: &Store) {
    let gate = store.gate();
    let mut gaps = Vec::new();
    for round in 0..3 {
        let (ended, began) = (store.file(&format!("ended{round}")), store.file(&format!("began{round}")));
        let script = format!("echo $$ > id{round}; read line < gate; date +%s%N > {}", ended.display());
        let holder = Running::start(store, &["run", "x", "--", "sh", "-c", &script]);
        id_of(&store.file(&format!("id{round}")));
        let script = format!("date +%s%N > {}", began.display());
        let next = start_waiting(store, &["run", "x", "--", "sh", "-c", &script]);
        gate.open();
        let [ended, began] = [ended, began].map(|file| line_of(&file).parse::<u64>().unwrap());
        gaps.push(Duration::from_nanos(began.checked_sub(ended).expect("they took turns")));
        assert_eq!(holder.end(), (0, String::new(), String::new()));
        assert_eq!(next.end(), (0, String::new(), String::new()));
    }
    // A pause of the machine can delay one handoff. A handoff that waits for a poll or a renewal is late each time.
    assert!(gaps.iter().any(|gap| *gap <= HANDOFF), "{gaps:?}");
}

fn many_runs_with_the_defaults_take_turns_without_stalls(store: &Store) {
    const PROCESSES: usize = 8;
    const RUNS: usize = 4;
    let script = format!("for i in $(seq {RUNS}); do \"$0\" run x -- true || exit; done");
    let (lag_monitor, begin) = (LagMonitor::start(), Instant::now());
    let shells: Vec<_> = (0..PROCESSES)
        .map(|_| {
            let mut command = std::process::Command::new("sh");
            command.args(["-c", &script, env!("CARGO_BIN_EXE_leasehold")]);
            Running::spawn(command.env("LEASEHOLD_STORE", store.url()).current_dir(store.folder()))
        })
        .collect();
    for run in shells {
        assert_eq!(run.end().0, 0);
    }
    let (took, runs) = (begin.elapsed(), u32::try_from(PROCESSES * RUNS).unwrap());
    assert!(took <= runs * (HANDOFF + lag_monitor.allowance()), "{took:?} for {runs} runs");
}

fn a_longest_hold_that_is_shorter_than_a_place_in_the_queue_is_kept(store: &Store) {
    let gate = store.gate();
    let holder = Running::start(store, &["run", "x", "--", "sh", "-c", "echo $$ > id; read line < gate"]);
    id_of(&store.file("id"));
    let script = "echo $$ > next; exec sleep 600";
    let next = start_waiting(store, &["run", "x", "--max-hold", "2s", "--", "sh", "-c", script]);
    let opened = Instant::now();
    gate.open();
    let command = id_of(&store.file("next"));
    let (lag_monitor, began) = (LagMonitor::start(), Instant::now());
    until("the command is gone", || !is_running(command));
    let took = began.elapsed();
    // TERM ends it. The validity is a tenth shorter than the hold, and TERM is sent a sixth before its end.
    assert!(opened.elapsed() >= Duration::from_millis(1300), "{:?}", opened.elapsed());
    assert!(took <= Duration::from_secs(2) + lag_monitor.allowance(), "{took:?}");
    let (code, _, stderr) = next.end();
    assert_eq!(code, 124, "{stderr}");
    assert!(stderr.contains("lock `x` has reached --max-hold"), "{stderr}");
    assert_eq!(holder.end().0, 0);
    assert_eq!(outcome(store, &["run", "x", "--no-wait", "--", "true"]).0, 0, "it was released");
}

fn a_long_grace_does_not_end_a_command_that_came_out_of_a_queue(store: &Store) {
    let gate = store.gate();
    let holder = Running::start(store, &["run", "x", "--", "sh", "-c", "echo $$ > id; read line < gate"]);
    id_of(&store.file("id"));
    // Nearly a third of the ttl, which may be more than is left of a place.
    let next = start_waiting(store, &["run", "x", "--grace", "9900ms", "--", "sh", "-c", "sleep 1; exit 7"]);
    gate.open();
    assert_eq!(next.end(), (7, String::new(), String::new()));
    assert_eq!(holder.end().0, 0);
}
