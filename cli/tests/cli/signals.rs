//! Signals are forwarded to the command.

use std::time::Duration;

use rustix::process::Signal;

use crate::process::{Running, group, id_of, is_running, leasehold, line_of, outcome, pid, session, until, watcher};
use crate::store::Store;

on_every_store!(
    signals_are_forwarded_to_the_whole_group,
    a_signal_ends_the_wait_and_withdraws_the_place,
    ignored_signals_stay_ignored,
    the_command_has_a_group_and_the_watcher_a_session_of_its_own,
);

fn signals_are_forwarded_to_the_whole_group(store: &Store) {
    // Two processes of the group, each of which prints the signal that it got.
    let script = r#"
        listen() {
            for signal in INT TERM HUP QUIT USR1 USR2; do trap "echo $signal >> $1.$signal" $signal; done
            echo ready > $1.ready
            until [ -e stop ]; do sleep 0.02; done
        }
        listen one & listen two; wait"#;
    let run = Running::start(store, &["run", "x", "--", "sh", "-c", script]);
    for who in ["one", "two"] {
        line_of(&store.file(&format!("{who}.ready")));
    }
    for (name, signal) in [
        ("INT", Signal::INT),
        ("TERM", Signal::TERM),
        ("HUP", Signal::HUP),
        ("QUIT", Signal::QUIT),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
    ] {
        run.signal(signal);
        // A shell starts background jobs with INT and QUIT ignored.
        let background = !["INT", "QUIT"].contains(&name);
        for who in [Some("two"), background.then_some("one")].into_iter().flatten() {
            assert_eq!(line_of(&store.file(&format!("{who}.{name}"))), name);
        }
    }
    std::fs::write(store.file("stop"), "").unwrap();
    assert_eq!(run.end().0, 0);
}

fn a_signal_ends_the_wait_and_withdraws_the_place(store: &Store) {
    let gate = store.gate();
    let holder = Running::start(store, &["run", "x", "--", "sh", "-c", "echo $$ > id; read line < gate"]);
    id_of(&store.file("id"));
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let waiter = Running::start(store, &["run", "x", "--", "touch", "ran"]);
        let queued = || outcome(store, &["status", "x", "--json"]).1.contains(r#""waiters":1"#);
        if store.has_queue() {
            until("it stands in the queue", queued);
        } else {
            watcher(waiter.id());
            std::thread::sleep(Duration::from_millis(200));
        }
        waiter.signal(signal);
        assert_eq!(waiter.end(), (code, String::new(), String::new()));
    }
    gate.open();
    assert_eq!(holder.end().0, 0);
    assert_eq!(outcome(store, &["run", "x", "--no-wait", "--", "true"]).0, 0);
    assert!(!store.file("ran").exists());
}

fn ignored_signals_stay_ignored(store: &Store) {
    let gate = store.gate();
    // As under `nohup`.
    let mut command = std::process::Command::new("sh");
    let script = r#"trap "" HUP; exec "$0" run x -- sh -c 'echo $$ > id; read line < gate'"#;
    command.args(["-c", script, env!("CARGO_BIN_EXE_leasehold")]);
    command.env("LEASEHOLD_STORE", store.url()).current_dir(store.folder());
    let mut run = Running::spawn(&mut command);
    let id = id_of(&store.file("id"));
    run.signal(Signal::HUP);
    rustix::process::kill_process(pid(id), Signal::HUP).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(is_running(id) && !run.has_ended());
    gate.open();
    assert_eq!(run.end().0, 0);
}

fn the_command_has_a_group_and_the_watcher_a_session_of_its_own(store: &Store) {
    let gate = store.gate();
    let run = Running::start(store, &["run", "x", "--", "sh", "-c", "echo $$ > id; read line < gate"]);
    let (command, watcher) = (id_of(&store.file("id")), watcher(run.id()));
    assert_eq!(group(command), command);
    assert_eq!(session(command), session(run.id()));
    assert_eq!((group(watcher), session(watcher)), (watcher, watcher));
    // The watcher has blocked these signals.
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        rustix::process::kill_process(pid(watcher), signal).unwrap();
    }
    gate.open();
    assert_eq!(run.end().0, 0);
    until("the watcher ends when all is done", || !is_running(watcher));
}

#[test]
fn signals_are_forwarded_a_second_later_too() {
    let store = Store::any();
    let mut command = leasehold(&store, &["run", "x", "--", "sh", "-c", "echo $$ > id; sleep 600"]);
    let run = Running::spawn(&mut command);
    let id = id_of(&store.file("id"));
    std::thread::sleep(Duration::from_millis(1100));
    assert!(is_running(id));
    run.signal(Signal::TERM);
    assert_eq!(run.end().0, 143);
    assert!(!is_running(id));
}
