//! Commands in a terminal.

use std::time::Duration;

use rustix::process::{Signal, kill_process};
use rustix::termios::{InputModes, LocalModes};

use crate::process::{Running, group, id_of, is_running, outcome, pid, state, until};
use crate::store::Store;
use crate::terminal::Terminal;

on_every_store!(
    an_interactive_command_has_the_foreground,
    ctrl_c_reaches_the_command_only,
    a_job_is_stopped_and_continued_like_any_other,
    a_background_job_gets_the_terminal_after_fg,
    in_a_pipeline_the_command_gets_the_foreground_on_request,
    a_job_that_is_stopped_past_the_ttl_loses_the_lock,
    a_terminal_shows_the_progress_of_a_wait,
);

fn an_interactive_command_has_the_foreground(store: &Store) {
    let script = "echo $$ > id; printf 'name? '; read name; echo \"hello, $name\"; exit 3";
    let mut terminal = Terminal::of_leasehold(store, &["run", "x", "--", "sh", "-c", script]);
    terminal.shows("name? ");
    let command = id_of(&store.file("id"));
    assert_eq!(group(command), command);
    assert!(terminal.is_in_foreground(command));
    assert!(!terminal.is_in_foreground(group(terminal.leader())));
    terminal.line("Ada");
    terminal.shows("hello, Ada");
    terminal.ends_with(3);
}

fn ctrl_c_reaches_the_command_only(store: &Store) {
    let script = "trap 'echo caught; exit 9' INT; echo $$ > id; echo go; while :; do sleep 0.05; done";
    let mut terminal = Terminal::of_leasehold(store, &["run", "x", "--", "sh", "-c", script]);
    terminal.shows("go");
    terminal.write("\x03");
    terminal.shows("caught");
    terminal.ends_with(9);
    // A command without a handler dies of it, and the run dies of the same signal.
    let mut terminal = Terminal::of_leasehold(store, &["run", "x", "--", "sh", "-c", "echo go; exec sleep 600"]);
    terminal.shows("go");
    terminal.write("\x03");
    assert_eq!(terminal.signal_at_end(), Some(2));
    assert_eq!(outcome(store, &["run", "x", "--no-wait", "--", "true"]).0, 0);
}

fn a_job_is_stopped_and_continued_like_any_other(store: &Store) {
    let terminal = Terminal::of_shell(store);
    let shell = terminal.leader();
    terminal
        .line("leasehold run x -- sh -c 'echo $$ > id; echo be''gun; read a; echo \"got $a\"; exit 4'; echo code $?");
    terminal.shows("begun");
    let command = id_of(&store.file("id"));
    assert!(terminal.is_in_foreground(command));
    terminal.write("\x1a");
    terminal.shows("Stopped");
    terminal.shows("ready> ");
    assert_eq!(state(command), Some('T'));
    assert!(terminal.is_in_foreground(shell));
    terminal.line("fg");
    until("the command has the foreground again", || terminal.is_in_foreground(command) && state(command) != Some('T'));
    terminal.line("it");
    terminal.shows("got it");
    terminal.shows("ready> ");
    assert!(terminal.is_in_foreground(shell));
    terminal.line("exit");
}

fn a_background_job_gets_the_terminal_after_fg(store: &Store) {
    let terminal = Terminal::of_shell(store);
    terminal.line("leasehold run x -- sh -c 'echo $$ > id; read a; echo \"got $a\"' &");
    terminal.shows("ready> ");
    let command = id_of(&store.file("id"));
    // It reads, which the kernel does not allow in the background.
    until("it is stopped", || state(command) == Some('T'));
    assert!(terminal.is_in_foreground(terminal.leader()));
    // The shell reports it at its next prompt.
    until("the shell sees the job stopped", || {
        terminal.line("jobs");
        std::thread::sleep(Duration::from_millis(50));
        terminal.rest().contains("Stopped")
    });
    terminal.line("fg");
    until("it has the foreground", || terminal.is_in_foreground(command));
    terminal.line("it");
    terminal.shows("got it");
    terminal.shows("ready> ");
    terminal.line("exit");
}

fn in_a_pipeline_the_command_gets_the_foreground_on_request(store: &Store) {
    let terminal = Terminal::of_shell(store);
    let script = "echo $$ > id; sleep 0.2; read a < /dev/tty; echo \"got $a\"";
    terminal.line(&format!("leasehold run x -- sh -c '{script}' | sed s/got/filtered/"));
    let command = id_of(&store.file("id"));
    // The other processes of the pipeline have it at first.
    until("it has the foreground", || terminal.is_in_foreground(command));
    terminal.line("it");
    terminal.shows("filtered it");
    terminal.shows("ready> ");
    // The run forwards Ctrl-C to a command that has not used the terminal.
    terminal.line("leasehold run x -- sh -c 'echo $$ > second; exec sleep 600' | cat; echo codes ${PIPESTATUS[*]}");
    let command = id_of(&store.file("second"));
    assert!(!terminal.is_in_foreground(command));
    terminal.write("\x03");
    until("it is gone", || !is_running(command));
    terminal.shows("ready> ");
    // The same for Ctrl-Z.
    terminal.line("leasehold run x -- sh -c 'echo $$ > third; exec sleep 600' | cat");
    let command = id_of(&store.file("third"));
    terminal.write("\x1a");
    terminal.shows("Stopped");
    assert_eq!(state(command), Some('T'));
    terminal.line("bg");
    until("it goes on", || state(command) != Some('T'));
    terminal.line("kill %1; wait; echo over");
    terminal.shows("\nover");
    assert!(!is_running(command));
    terminal.line("exit");
}

fn a_job_that_is_stopped_past_the_ttl_loses_the_lock(store: &Store) {
    let terminal = Terminal::of_shell(store);
    terminal.line("leasehold run x --ttl 6s -- sh -c 'echo $$ > id; echo be''gun; read a'; echo code $?");
    terminal.shows("begun");
    let command = id_of(&store.file("id"));
    terminal.write("\x1a");
    terminal.shows("Stopped");
    assert_eq!(outcome(store, &["run", "x", "--", "true"]).0, 0, "another gets it");
    until("the command does not wait to be continued", || !is_running(command));
    terminal.line("fg; echo code $?");
    terminal.shows("is lost: the lease was not renewed in time");
    terminal.shows("code 121");
    terminal.line("exit");
}

#[test]
fn the_modes_of_the_terminal_are_restored() {
    let store = Store::any();
    let terminal = Terminal::of_shell(&store);
    let before = terminal.modes();
    terminal.line("leasehold run x -- sh -c 'stty raw -echo; echo $$ > id; exec sleep 600'; echo code $?");
    let command = id_of(&store.file("id"));
    assert!(!terminal.modes().local_modes.contains(LocalModes::ICANON));
    kill_process(pid(command), Signal::KILL).unwrap();
    terminal.shows("code 137");
    // Bash sets its own modes while it reads a line.
    terminal.line("sleep 600");
    until("a line ends as before", || terminal.modes().input_modes.contains(InputModes::ICRNL & before.input_modes));
    terminal.write("\x03");
    terminal.line("exit");
}

fn a_terminal_shows_the_progress_of_a_wait(store: &Store) {
    let gate = store.gate();
    let holder =
        Running::start(store, &["run", "x", "--label", "nightly", "--", "sh", "-c", "echo $$ > id; read a < gate"]);
    id_of(&store.file("id"));
    let mut terminal = Terminal::of_leasehold(store, &["run", "x", "--", "echo", "my turn"]);
    let place = if store.has_queue() { ", next in the queue" } else { "" };
    // After a second, and later on a busy machine.
    terminal.shows("waiting ");
    terminal.shows("s of 1m: held by nightly, ");
    terminal.shows(&format!(" s left{place}; "));
    terminal.shows(", nightly)");
    gate.open();
    terminal.shows("\r\x1b[Kmy turn");
    terminal.ends_with(0);
    assert_eq!(holder.end().0, 0);
}

#[test]
fn break_asks_at_a_terminal() {
    let store = Store::any();
    let args = ["run", "x", "--ttl", "9s", "--", "sh", "-c", "echo $$ > id; sleep 600"];
    let run = Running::start(&store, &args);
    id_of(&store.file("id"));
    let mut terminal = Terminal::of_leasehold(&store, &["break", "x"]);
    terminal.shows("may still be writing");
    terminal.shows("Break it? [y/N] ");
    terminal.line("n");
    terminal.ends_with(1);
    assert!(outcome(&store, &["status", "x", "--json"]).1.contains(r#""held":true"#));
    let mut terminal = Terminal::of_leasehold(&store, &["break", "x"]);
    terminal.shows("Break it? [y/N] ");
    terminal.line("y");
    terminal.shows("broken, token raised to");
    terminal.ends_with(0);
    assert_eq!(run.end().0, 121);
}

#[test]
fn ctrl_z_without_a_shell_does_nothing() {
    let store = Store::any();
    let gate = store.gate();
    let script = "echo $$ > id; echo go; read a < gate; exit 6";
    let mut terminal = Terminal::of_leasehold(&store, &["run", "x", "--ttl", "6s", "--", "sh", "-c", script]);
    terminal.shows("go");
    terminal.write("\x1a");
    std::thread::sleep(Duration::from_secs(7));
    gate.open();
    terminal.ends_with(6);
}

/// An interactive shell would set the modes itself.
#[test]
fn a_killed_command_leaves_no_modes_to_a_script() {
    let store = Store::any();
    let script = "leasehold run x -- sh -c 'stty raw -echo; kill -KILL $$'; \
        case $(stty -a) in *-icanon*) echo raw;; *) echo as before;; esac";
    let terminal = Terminal::of_script(&store, "sh", script);
    terminal.shows("as before");
}
