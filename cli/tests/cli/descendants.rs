//! Processes that leave the process group of the command are ended with it.
#![cfg(target_os = "linux")]

use std::time::Duration;

use rustix::process::{Signal, kill_process};

use crate::process::{Running, group, id_of, is_running, outcome, pid, until};
use crate::store::Store;

on_every_store!(what_has_left_the_group_is_ended_by_a_loss);

/// `timeout` and `setsid` make groups of their own, and an orphan has no parent in the group.
const SCATTERED: &str = r#"timeout 600 sh -c 'echo $$ > wrapped; sleep 600; true' &
    setsid sh -c 'echo $$ > detached; sleep 600; true' &
    (setsid sh -c 'echo $$ > orphan; sleep 600; true' &)
    echo $$ > shell; wait"#;

/// The processes of [`SCATTERED`].
fn scattered(store: &Store) -> [u32; 4] {
    let ids = ["shell", "wrapped", "detached", "orphan"].map(|name| id_of(&store.file(name)));
    for id in &ids[1..] {
        assert_ne!(group(*id), group(ids[0]));
    }
    ids
}

fn what_has_left_the_group_is_ended_by_a_loss(store: &Store) {
    let run = Running::start(store, &["run", "x", "--ttl", "9s", "--", "sh", "-c", SCATTERED]);
    let ids = scattered(store);
    store.remove_records();
    assert_eq!(run.end().0, 121);
    until("no process is running", || !ids.into_iter().any(is_running));
}

#[test]
fn timeout_inside_of_a_script_gets_term_and_has_the_grace() {
    let store = Store::any();
    let script = r#"timeout 600 sh -c 'trap "sleep 0.3; echo tidy > tidied; exit" TERM; echo $$ > id
        while :; do sleep 0.02; done'; :"#;
    let run = Running::start(&store, &["run", "x", "--ttl", "9s", "--grace", "2900ms", "--", "sh", "-c", script]);
    let id = id_of(&store.file("id"));
    store.stop_replying();
    let (code, _, stderr) = run.end();
    let tidied = store.file("tidied").exists();
    store.reply_again();
    assert!(code == 121 && tidied && !is_running(id), "{stderr}");
}

#[test]
fn what_has_left_the_group_is_killed_if_it_ignores_term() {
    let store = Store::any();
    let script = r#"timeout 600 sh -c 'trap "" TERM; echo $$ > id; while :; do sleep 0.02; done'; :"#;
    let run = Running::start(&store, &["run", "x", "--ttl", "3s", "--", "sh", "-c", script]);
    let id = id_of(&store.file("id"));
    store.stop_replying();
    assert_eq!(run.end().0, 121);
    store.reply_again();
    until("it is killed", || !is_running(id));
}

#[test]
fn killed_with_9_it_leaves_nothing_below_the_command() {
    // A mistake here shows only once in a while.
    for round in 0..8 {
        let store = Store::any();
        let mut run = Running::start(&store, &["run", "x", "--", "sh", "-c", SCATTERED]);
        let ids = scattered(&store);
        run.kill();
        until(&format!("no process is running, round {round}"), || !ids[..3].iter().copied().any(is_running));
        // The run had adopted it, and after the death of the run the watcher cannot know whose it was.
        let _ = kill_process(pid(ids[3]), Signal::KILL);
    }
}

#[test]
fn stopped_it_leaves_nothing_past_the_end_of_the_lease() {
    let store = Store::any();
    let mut run = Running::start(&store, &["run", "x", "--ttl", "2s", "--", "sh", "-c", SCATTERED]);
    let ids = scattered(&store);
    run.pause();
    until("no process is running", || !ids.into_iter().any(is_running));
    run.resume();
    assert_eq!(run.end().0, 121);
}

#[test]
fn what_does_not_belong_to_the_command_goes_on() {
    let store = Store::any();
    // A script that starts a helper and replaces itself by `leasehold`.
    let script =
        r#"sleep 600 & echo $! > helper; exec "$LEASEHOLD" run x --ttl 3s -- sh -c 'echo $$ > id; exec sleep 600'"#;
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script]).current_dir(store.folder()).env("LEASEHOLD", env!("CARGO_BIN_EXE_leasehold"));
    shell.env("LEASEHOLD_STORE", store.url()).stdout(std::process::Stdio::null());
    let run = Running::spawn(shell.stderr(std::process::Stdio::null()));
    let (helper, id) = (id_of(&store.file("helper")), id_of(&store.file("id")));
    store.remove_records();
    assert_eq!(run.end().0, 121);
    assert!(is_running(helper) && !is_running(id));
    kill_process(pid(helper), Signal::KILL).unwrap();
}

#[test]
fn what_a_command_leaves_in_the_background_goes_on() {
    let store = Store::any();
    let script = "sleep 600 >/dev/null 2>&1 & echo $! > same; setsid sleep 600 >/dev/null 2>&1 & echo $! > other";
    assert_eq!(outcome(&store, &["run", "x", "--", "sh", "-c", script]), (0, String::new(), String::new()));
    std::thread::sleep(Duration::from_millis(200));
    let ids = ["same", "other"].map(|name| id_of(&store.file(name)));
    assert!(ids.into_iter().all(is_running));
    ids.into_iter().for_each(|id| kill_process(pid(id), Signal::KILL).unwrap());
}
