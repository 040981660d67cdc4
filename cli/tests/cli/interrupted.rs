//! Ctrl-C in a script ends the script too, as with any other command.

use crate::process::{Running, id_of, outcome, until};
use crate::store::Store;
use crate::terminal::Terminal;

/// The shells for scripts. Each has its own rule for whether Ctrl-C ends the script.
const SHELLS: [&str; 2] = ["bash", "dash"];

const INT: Option<i32> = Some(2);
const QUIT: Option<i32> = Some(3);

/// Runs a script in each shell, presses Ctrl-C when it shows a text, and checks that the script has ended.
fn ctrl_c_ends(store: &Store, script: &str, when: &str) {
    for shell in SHELLS {
        let mut terminal = Terminal::of_script(store, shell, script);
        terminal.shows(when);
        terminal.write("\x03");
        assert_eq!(terminal.signal_at_end(), INT, "{shell}: {}", terminal.rest());
        let rest = terminal.rest();
        for later in ["turn", "fallback", "survived"] {
            assert!(!rest.contains(later), "{shell}: {rest}");
        }
    }
}

#[test]
fn ctrl_c_ends_a_loop() {
    let store = Store::any();
    let script = "for i in 1 2 3; do leasehold run x -- sh -c 'echo turn; exec sleep 600'; done; echo survived";
    ctrl_c_ends(&store, script, "turn");
    assert_eq!(outcome(&store, &["run", "x", "--no-wait", "--", "true"]).0, 0, "the lock was released");
}

#[test]
fn ctrl_c_does_not_run_a_fallback() {
    let script = "leasehold run x -- sh -c 'echo turn; exec sleep 600' || echo fallback; echo survived";
    ctrl_c_ends(&Store::any(), script, "turn");
}

#[test]
fn ctrl_c_while_waiting_ends_a_loop() {
    let store = Store::any();
    let holder = Running::start(&store, &["run", "x", "--", "sh", "-c", "echo $$ > id; exec sleep 600"]);
    id_of(&store.file("id"));
    let script = "for i in 1 2 3; do leasehold run x -- true || echo fallback; done; echo survived";
    ctrl_c_ends(&store, script, "waiting ");
    drop(holder);
}

#[test]
fn ctrl_c_through_a_pipeline_ends_a_loop() {
    // The command never has the foreground: the run forwards the signal.
    let script = "for i in 1 2 3; do leasehold run x -- sh -c 'echo turn; exec sleep 600' | cat; done; echo survived";
    ctrl_c_ends(&Store::any(), script, "turn");
}

#[test]
fn quit_ends_the_run_too_without_a_core_dump() {
    let store = Store::any();
    let mut terminal = Terminal::of_leasehold(&store, &["run", "x", "--", "sh", "-c", "echo go; exec sleep 600"]);
    terminal.shows("go");
    terminal.write("\x1c");
    assert_eq!(terminal.signal_at_end(), QUIT, "{}", terminal.rest());
    assert!(!terminal.dumped_core());
}

#[test]
fn a_command_that_handles_ctrl_c_does_not_end_the_script() {
    for shell in SHELLS {
        let store = Store::any();
        let script = "leasehold run x -- sh -c 'trap \"exit 9\" INT; echo turn; while :; do sleep 0.05; done'; \
                      echo code $?";
        let mut terminal = Terminal::of_script(&store, shell, script);
        terminal.shows("turn");
        terminal.write("\x03");
        terminal.shows("code 9");
        terminal.ends_with(0);
    }
}

#[test]
fn a_command_that_another_process_interrupts_does_not_end_the_script() {
    let store = Store::any();
    let run = Running::start(&store, &["run", "x", "--", "sh", "-c", "echo $$ > id; exec sleep 600"]);
    let id = id_of(&store.file("id"));
    rustix::process::kill_process(crate::process::pid(id), rustix::process::Signal::INT).unwrap();
    assert_eq!(run.output().status.code(), Some(130));
    until("it is free", || outcome(&store, &["run", "x", "--no-wait", "--", "true"]).0 == 0);
}
