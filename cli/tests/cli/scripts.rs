//! Behaviour that users of flock(1) expect, and nested runs.

use crate::process::{Running, id_of, leasehold, outcome, outcome_of, output};
use crate::store::Store;

on_every_store!(a_conflict_ends_with_the_code_of_the_option, a_run_inside_a_run_does_not_wait_for_itself);

fn a_conflict_ends_with_the_code_of_the_option(store: &Store) {
    let gate = store.gate();
    let holder = Running::start(store, &["run", "x", "-c", "echo $$ > id; read line < gate"]);
    id_of(&store.file("id"));
    for wait in [&["-n"][..], &["-w", "1.5"]] {
        let args = [&["run", "x", "--json"], wait, &["-E", "7", "-c", "touch ran"]].concat();
        let (code, _, stderr) = outcome(store, &args);
        assert_eq!(code, 7, "{stderr}");
        assert!(stderr.contains(r#""kind":"held""#) && stderr.ends_with(r#""exit_code":7}"#), "{stderr}");
    }
    // An expected conflict prints nothing: cron mails everything that a job prints.
    for (options, code) in [
        (&["-n", "-E", "0"][..], 0),
        (&["-n", "--quiet"], 120),
        (&["-w", "1", "-q", "-E", "9"], 9),
        (&["-n", "-E", "0", "--json"], 0),
    ] {
        let args = [&["run", "x"], options, &["--", "touch", "ran"]].concat();
        assert_eq!(outcome(store, &args), (code, String::new(), String::new()), "{options:?}");
    }
    let args = ["run", "y", "--quiet", "-E", "0", "-n", "--store", "redis://127.0.0.1:1", "--", "touch", "ran"];
    let (code, _, stderr) = outcome(store, &args);
    assert!(code == 122 && stderr.lines().count() == 1, "other errors are: {stderr}");
    assert!(!store.file("ran").exists());
    gate.open();
    assert_eq!(holder.end().0, 0);
}

fn a_run_inside_a_run_does_not_wait_for_itself(store: &Store) {
    let nested = |inner: &str| {
        let mut command = leasehold(store, &["run", "x", "--", "sh", "-c", &format!("\"$LEASEHOLD\" {inner}")]);
        outcome_of(&output(command.env("LEASEHOLD", env!("CARGO_BIN_EXE_leasehold"))))
    };
    for wait in ["", "--no-wait", "--wait forever"] {
        let (code, stdout, stderr) = nested(&format!("run x {wait} -- echo ran"));
        assert_eq!((code, &*stdout), (2, ""), "{stderr}");
        assert!(stderr.contains("would wait for itself") && stderr.lines().count() == 1, "{stderr}");
    }
    assert_eq!(nested("run y -- echo ran"), (0, "ran".to_owned(), String::new()));
}

#[test]
fn the_shell_runs_the_text() {
    let store = Store::any();
    let (code, stdout, stderr) = outcome(&store, &["run", "x", "-w", "5", "-c", "echo one two | tr ' ' '\n'; exit 3"]);
    assert_eq!((code, &*stdout, &*stderr), (3, "one\ntwo", ""));
}

#[test]
fn another_store_is_another_lock_inside_a_run_too() {
    let (store, other) = (Store::any(), Store::any());
    let script = format!("\"$LEASEHOLD\" run x --store {} --no-wait -- echo ran", other.url());
    let mut command = leasehold(&store, &["run", "x", "-c", &script]);
    let out = outcome_of(&output(command.env("LEASEHOLD", env!("CARGO_BIN_EXE_leasehold"))));
    assert_eq!(out, (0, "ran".to_owned(), String::new()));
}
