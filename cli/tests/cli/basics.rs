//! Holding, waiting, taking turns, and exit codes.

use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::process::{Running, id_of, is_running, leasehold, outcome, outcome_of, output, until};
use crate::store::Store;

on_every_store!(
    commands_take_turns,
    the_command_gets_its_token_its_input_and_its_arguments,
    the_exit_code_is_passed_through,
    a_held_lock_has_its_own_exit_code,
    a_wait_ends_in_time_or_with_the_lock,
    a_short_job_keeps_the_lock_for_its_shortest_hold,
    a_command_that_cannot_be_executed_holds_no_lock,
    a_command_that_fails_to_execute_releases_the_lock,
    different_names_are_different_locks,
);

fn commands_take_turns(store: &Store) {
    // A folder that already exists shows that two commands ran at once.
    let script =
        "mkdir held || echo overlap >> overlaps; sleep 0.02; rmdir held; echo $LEASEHOLD_FENCING_TOKEN >> tokens";
    let runs: Vec<_> = (0..6).map(|_| Running::start(store, &["run", "turns", "--", "sh", "-c", script])).collect();
    for run in runs {
        assert_eq!(run.end(), (0, String::new(), String::new()));
    }
    assert!(!store.file("overlaps").exists());
    let tokens = std::fs::read_to_string(store.file("tokens")).unwrap();
    let tokens: Vec<u64> = tokens.lines().map(|token| token.parse().unwrap()).collect();
    assert_eq!(tokens.len(), 6);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

fn the_command_gets_its_token_its_input_and_its_arguments(store: &Store) {
    let script =
        r#"printf '%s|' "$LEASEHOLD_FENCING_TOKEN" "$LEASEHOLD_NAME" "$LEASEHOLD_STORE" "$@"; cat; cat <&1 >&2"#;
    let mut command =
        leasehold(store, &["run", "a name/with {all} sorts", "--", "sh", "-c", script, "sh", "--ttl", ""]);
    command.arg(std::ffi::OsStr::from_bytes(b"\xff")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut run = Running::spawn(command.stderr(Stdio::null()));
    run.input().write_all(b"input").unwrap();
    let bytes = run.output().stdout;
    let parts: Vec<&[u8]> = bytes.split(|&byte| byte == b'|').collect();
    assert!(std::str::from_utf8(parts[0]).unwrap().parse::<u64>().unwrap() > 0);
    let rest: [&[u8]; 6] = [b"a name/with {all} sorts", store.url().as_bytes(), b"--ttl", b"", b"\xff", b"input"];
    assert_eq!(parts[1..], rest, "{}", String::from_utf8_lossy(&bytes));
}

fn the_exit_code_is_passed_through(store: &Store) {
    for (script, code) in
        [("true", 0), ("exit 1", 1), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
    {
        let result = outcome(store, &["run", "codes", "--", "sh", "-c", script]);
        assert_eq!(result, (code, String::new(), String::new()), "{script}");
    }
}

fn a_held_lock_has_its_own_exit_code(store: &Store) {
    let args = ["run", "held", "--label", "nightly", "--", "sh", "-c", "echo $$ > id; sleep 600"];
    let mut holder = Running::start(store, &args);
    id_of(&store.file("id"));
    for (args, how) in [
        (&["run", "held", "--no-wait", "--", "touch", "ran"][..], "--no-wait"),
        (&["run", "held", "--wait", "2s", "--", "touch", "ran"], "2s"),
    ] {
        let (code, stdout, stderr) = outcome(store, args);
        assert_eq!((code, &*stdout), (120, ""), "{stderr}");
        assert!(stderr.contains(how) && stderr.contains("nightly"), "{stderr}");
        assert!(stderr.contains(&format!("process {}", holder.id())) && stderr.lines().count() == 1, "{stderr}");
    }
    let (code, _, stderr) = outcome(store, &["run", "held", "--json", "-n", "--", "touch", "ran"]);
    assert_eq!(code, 120);
    assert!(stderr.starts_with(r#"{"level":"error","kind":"held","message":""#), "{stderr}");
    assert!(stderr.ends_with(r#","exit_code":120}"#), "{stderr}");
    assert!(!store.file("ran").exists());
    holder.kill();
}

fn a_wait_ends_in_time_or_with_the_lock(store: &Store) {
    let gate = store.gate();
    let mut holder = Running::start(store, &["run", "wait", "--", "sh", "-c", "echo $$ > id; read line < gate"]);
    id_of(&store.file("id"));
    let begin = Instant::now();
    let (code, ..) = outcome(store, &["run", "wait", "--wait", "2s", "--", "touch", "early"]);
    assert_eq!(code, 120);
    assert!(begin.elapsed() >= Duration::from_secs(2));
    let waiter = Running::start(store, &["run", "wait", "--wait", "forever", "--", "touch", "ran"]);
    std::thread::sleep(Duration::from_millis(200));
    assert!(!store.file("ran").exists() && !store.file("early").exists() && !holder.has_ended());
    gate.open();
    assert_eq!(waiter.end(), (0, String::new(), String::new()));
    assert!(store.file("ran").exists());
    assert_eq!(holder.end().0, 0);
}

fn a_short_job_keeps_the_lock_for_its_shortest_hold(store: &Store) {
    let begin = Instant::now();
    let job = Running::start(store, &["run", "cron", "--min-hold", "2s", "--", "sh", "-c", "echo $$ > id"]);
    let command = id_of(&store.file("id"));
    until("the command has ended", || !is_running(command));
    // If the hold ends with its process, the run itself waits.
    let stays = if store.ends_holds_with_processes() {
        Some(job)
    } else {
        assert_eq!(job.end(), (0, String::new(), String::new()));
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(2), "the run itself does not wait: {took:?}");
        None
    };
    let (code, ..) = outcome(store, &["run", "cron", "--no-wait", "--", "touch", "ran"]);
    // If the machine has paused for that long, the exit code proves nothing.
    assert!(code == 120 || begin.elapsed() > Duration::from_secs(2), "{code}");
    assert_eq!(outcome(store, &["run", "cron", "--", "true"]).0, 0);
    assert!(begin.elapsed() >= Duration::from_millis(1900), "{:?}", begin.elapsed());
    if let Some(job) = stays {
        assert_eq!(job.end(), (0, String::new(), String::new()));
    }
}

fn a_command_that_cannot_be_executed_holds_no_lock(store: &Store) {
    std::fs::write(store.file("text"), "#!/nowhere/interpreter\n").unwrap();
    let (code, _, stderr) = outcome(store, &["run", "x", "--", "no such command"]);
    assert_eq!((code, &*stderr), (127, "leasehold: command `no such command` not found"));
    let (code, _, stderr) = outcome(store, &["run", "x", "--", "./text"]);
    assert_eq!(code, 126, "{stderr}");
    let mut chmod = std::process::Command::new("chmod");
    assert!(output(chmod.arg("+x").arg(store.file("text"))).status.success());
    let (code, _, stderr) = outcome(store, &["run", "x", "--", "./text"]);
    assert_eq!((code, stderr.lines().count()), (126, 1), "{stderr}");
    assert!(stderr.contains("its interpreter, `/nowhere/interpreter`, is missing"), "{stderr}");
    let (_, stdout, _) = outcome(store, &["status", "x", "--json"]);
    assert!(stdout.contains(r#""last_token":null"#), "nothing was ever granted: {stdout}");
}

fn a_command_that_fails_to_execute_releases_the_lock(store: &Store) {
    // A program without its loader, on any processor.
    let mut program = std::fs::read("/bin/true").unwrap();
    let at = program.windows(4).position(|bytes| bytes == b"/ld-").expect("it has a loader");
    program[at + 1] = b'-';
    std::fs::write(store.file("program"), program).unwrap();
    let mut chmod = std::process::Command::new("chmod");
    assert!(output(chmod.arg("+x").arg(store.file("program"))).status.success());
    let (code, _, stderr) = outcome(store, &["run", "x", "--", "./program"]);
    assert_eq!((code, stderr.lines().count()), (126, 1), "{stderr}");
    assert!(stderr.contains("its interpreter is missing"), "{stderr}");
    assert_eq!(outcome(store, &["run", "x", "--no-wait", "--", "true"]).0, 0);
}

fn different_names_are_different_locks(store: &Store) {
    let gate = store.gate();
    let run = Running::start(store, &["run", "one", "--", "sh", "-c", "echo $$ > id; read line < gate"]);
    id_of(&store.file("id"));
    assert_eq!(outcome(store, &["run", "other", "--no-wait", "--", "true"]).0, 0);
    assert_eq!(outcome(store, &["run", "One", "--no-wait", "--", "true"]).0, 0);
    gate.open();
    assert_eq!(run.end().0, 0);
    assert_eq!(outcome(store, &["run", "one", "--no-wait", "--", "true"]).0, 0);
}

/// A run that waits for the end of the shortest hold because the lease ends with its process.
#[test]
fn a_signal_ends_the_wait_for_the_shortest_hold() {
    let store = Store::mysql_for_update();
    let begin = Instant::now();
    let job = short_job(&store, "60s");
    job.signal(rustix::process::Signal::TERM);
    let (code, stdout, stderr) = job.end();
    assert_eq!((code, &*stdout), (3, ""), "{stderr}");
    assert!(stderr.contains("before the end of --min-hold"), "{stderr}");
    assert_eq!(outcome(&store, &["run", "cron", "--", "true"]).0, 0);
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
}

/// If a lease lasts for its whole ttl without its process, the run prints at the first signal when the lock will be
/// released.
#[test]
fn a_second_signal_leaves_a_lock_within_its_shortest_hold() {
    for store in [Store::etcd(), Store::zk()] {
        let begin = Instant::now();
        let job = short_job(&store, "6s");
        job.signal(rustix::process::Signal::TERM);
        let (code, _, stderr) = job.end();
        assert!(code == 3 && stderr.contains("is released in") && stderr.contains("as --min-hold says"), "{stderr}");
        assert_eq!(outcome(&store, &["run", "cron", "--no-wait", "--", "true"]).0, 0, "it is free");
        assert!(begin.elapsed() >= Duration::from_millis(5900), "{:?}", begin.elapsed());

        let mut job = short_job(&store, "60s");
        job.signal(rustix::process::Signal::TERM);
        std::thread::sleep(Duration::from_millis(200));
        assert!(!job.has_ended(), "it waits for the end of the shortest hold");
        job.signal(rustix::process::Signal::TERM);
        let (code, _, stderr) = job.end();
        assert!(code == 3 && stderr.contains("stays held until its lease ends, for up to 1m 1s"), "{stderr}");
        assert_eq!(outcome(&store, &["run", "cron", "--no-wait", "--", "true"]).0, 120);
    }
}

/// A run whose command has ended with 3, within the shortest hold.
fn short_job(store: &Store, shortest: &str) -> Running {
    let args = ["run", "cron", "--min-hold", shortest, "--", "sh", "-c", "echo $$ > id; exit 3"];
    let _ = std::fs::remove_file(store.file("id"));
    let job = Running::start(store, &args);
    let command = id_of(&store.file("id"));
    until("the command has ended", || !is_running(command));
    assert_eq!(outcome(store, &["run", "cron", "--no-wait", "--", "true"]).0, 120);
    job
}

/// A server has a limit that the client learns from it.
#[test]
#[cfg(feature = "zk")]
fn a_shortest_hold_beyond_the_limit_of_the_server_is_wrong_input() {
    let store = Store::zk_with_longest_session(Duration::from_secs(3));
    let run = |more: &[&str]| outcome(&store, &[&["run", "x", "--ttl", "2s"], more, &["--", "touch", "ran"]].concat());
    for wait in ["--wait=forever", "--no-wait"] {
        let (code, stdout, stderr) = run(&["--min-hold", "1m", wait]);
        assert_eq!((code, &*stdout, stderr.lines().count()), (2, "", 1), "{stderr}");
        for hint in ["2.8s", "maxSessionTimeout", "--min-hold raises the ttl to 1m"] {
            assert!(stderr.contains(hint), "no {hint} in {stderr}");
        }
        assert!(!store.file("ran").exists());
    }
    assert_eq!(run(&["--no-wait"]), (0, String::new(), String::new()), "nothing was acquired");
}

#[test]
fn wrong_input_is_reported_in_one_line_and_nothing_runs() {
    // Nothing listens there, and nothing is sent.
    const QUORUM: &str = "redis+quorum://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3";
    let store = Store::any();
    for (args, hint) in [
        (&["run", "x", "--store", "consul://u:hunter2@host", "--", "touch", "ran"][..], "consul://"),
        (&["run", "x", "--store", "nonsense hunter2", "--", "touch", "ran"], "sqlite:///path/locks.db"),
        (&["run", "x", "--store", "memory://", "--", "touch", "ran"], "inside one process"),
        (&["run", "x"], "CMD"),
        (&["run", "x", "touch", "ran"], "touch"),
        (&["run", "--", "touch", "ran"], "NAME"),
        (&["run", "", "--", "touch", "ran"], "empty"),
        (&["run", "x", "--ttl", "soon", "--", "touch", "ran"], "30s"),
        (&["run", "x", "--ttl", "0s", "--", "touch", "ran"], "zero"),
        (&["run", "x", "--ttl", "1ms", "--", "touch", "ran"], "ttl"),
        (&["run", "x", "--ttl", "3s", "--grace", "1s", "--", "touch", "ran"], "--grace"),
        (&["run", "x", "--max-hold", "1s", "--min-hold", "2s", "--", "touch", "ran"], "min_hold"),
        (&["run", "x", "--min-hold", "25h", "--", "touch", "ran"], "--min-hold raises the ttl to 1day 1h"),
        (&["run", "x", "--store", QUORUM, "--min-hold", "2m", "--", "touch", "ran"], "--min-hold raises the ttl to 2m"),
        (&["run", "x", "--no-wait", "--wait", "1s", "--", "touch", "ran"], "--wait"),
        (&["run", "x", "-c", "touch ran", "--", "touch", "ran"], "--command"),
        (&["run", "x", "-E", "256", "--", "touch", "ran"], "256"),
        (&["run", "x", "--label", "a\nb", "--", "touch", "ran"], "label"),
        (&["frobnicate"], "frobnicate"),
    ] {
        let (code, stdout, stderr) = outcome(&store, args);
        assert_eq!((code, &*stdout), (2, ""), "{args:?}: {stderr}");
        assert!(stderr.starts_with("leasehold: ") && stderr.lines().count() == 1, "{args:?}: {stderr}");
        assert!(stderr.contains(hint) && !stderr.contains("hunter2"), "{args:?}: {stderr}");
        assert!(!store.file("ran").exists(), "{args:?}");
    }
}

#[test]
fn an_unreachable_store_has_its_own_exit_code() {
    let store = Store::any();
    for wait in ["--no-wait", "--wait=300ms"] {
        let args = ["run", "x", "--store", "redis://:hunter2@127.0.0.1:1", wait, "--", "touch", "ran"];
        let (code, _, stderr) = outcome(&store, &args);
        assert_eq!((code, stderr.lines().count()), (122, 1), "{stderr}");
        assert!(!store.file("ran").exists() && !stderr.contains("hunter2"), "{stderr}");
    }
}

/// A signal to `leasehold` would end the calling script as well.
#[test]
fn an_interrupt_that_the_command_sends_itself_is_an_exit_code() {
    let store = Store::any();
    let result = output(&mut leasehold(&store, &["run", "x", "--", "sh", "-c", "kill -INT $$"]));
    assert_eq!(result.status.code(), Some(130), "{}", result.status);
}

#[test]
fn a_launcher_whose_run_is_gone_runs_nothing() {
    let store = Store::any();
    // The state after a run was killed between the creation of the group and the start message.
    let (start_socket, stdin) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut command = leasehold(&store, &["__start", "touch", "ran"]);
    let child = Running::spawn(command.stdin(std::os::fd::OwnedFd::from(stdin)));
    drop(command);
    std::thread::sleep(Duration::from_millis(50));
    assert!(!store.file("ran").exists());
    drop(start_socket);
    let (code, _, stderr) = child.end();
    assert_eq!(code, 125, "{stderr}");
    assert!(!store.file("ran").exists());
}

#[test]
fn the_default_store_needs_nothing_but_a_home() {
    let store = Store::any();
    let mut command = leasehold(&store, &["run", "x", "--", "sh", "-c", "echo ran"]);
    command.env_remove("LEASEHOLD_STORE").env_remove("XDG_STATE_HOME").env("HOME", store.folder());
    assert_eq!(outcome_of(&output(&mut command)), (0, "ran".to_owned(), String::new()));
    assert!(store.file(".local/state/leasehold").exists());
}

#[test]
fn a_json_message_is_one_object() {
    let store = Store::any();
    let (code, _, stderr) = outcome(&store, &["run", "x", "--ttl", "soon", "--json", "--", "true"]);
    assert_eq!(code, 2);
    let message: serde_json::Value = serde_json::from_str(&stderr).unwrap();
    assert_eq!((&message["level"], &message["kind"]), (&"error".into(), &"bad_input".into()));
    assert_eq!(message["exit_code"], 2);
}
