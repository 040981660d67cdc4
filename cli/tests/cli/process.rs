//! The command under test as a process, and the state of other processes.

use std::io::Read;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ChildStdin, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use leasehold_conformance::harness::ChildProcess;
use rustix::process::{Pid, Signal, kill_process};

use crate::store::Store;

/// The bound for every wait: even on a busy machine, only a hang takes longer.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// With this option `env` runs a program that ignores no signal. These tests may run in the background of a shell,
/// which ignores some.
pub(crate) const NO_SIGNAL_IGNORED: &str = "--default-signal";

/// `leasehold` with a store and arguments.
pub(crate) fn leasehold(store: &Store, args: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.args([NO_SIGNAL_IGNORED, env!("CARGO_BIN_EXE_leasehold")]);
    command.args(args).env("LEASEHOLD_STORE", store.url()).current_dir(store.folder());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the command to its end, with a bound.
#[track_caller]
pub(crate) fn output(command: &mut Command) -> Output {
    Running::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped())).output()
}

/// The exit code, as in a shell 128+n after signal n, and the output: `code|standard output|standard error`.
pub(crate) fn outcome_of(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    let code = output.status.code().or_else(|| Some(128 + output.status.signal()?)).unwrap_or(-1);
    (code, text(&output.stdout), text(&output.stderr))
}

/// Runs the command to its end. Returns its exit code and output.
pub(crate) fn outcome(store: &Store, args: &[&str]) -> (i32, String, String) {
    outcome_of(&output(&mut leasehold(store, args)))
}

/// What a command prints with `--json`.
pub(crate) fn json(store: &Store, args: &[&str]) -> serde_json::Value {
    let (code, stdout, stderr) = outcome(store, args);
    assert_eq!((code, &*stderr), (0, ""));
    serde_json::from_str(&stdout).unwrap()
}

/// A run in the background. It does not outlive the test, even if the test panics.
pub(crate) struct Running {
    process: ChildProcess,
    input: Option<ChildStdin>,
    /// Read by a thread from the start: a full pipe must not block the run.
    stdout: Option<Receiver<Vec<u8>>>,
    stderr: Option<Receiver<Vec<u8>>>,
}

impl Running {
    pub(crate) fn start(store: &Store, args: &[&str]) -> Self {
        Self::spawn(&mut leasehold(store, args))
    }

    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut process = ChildProcess::spawn(command).unwrap();
        let (input, stdout, stderr) = process.take_pipes();
        Self { process, input, stdout: stdout.map(all_of), stderr: stderr.map(all_of) }
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(pid(self.id()), signal).unwrap();
    }

    /// Sends KILL.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
    }

    /// Sends STOP to this process alone.
    pub(crate) fn pause(&mut self) {
        self.process.pause().unwrap();
    }

    pub(crate) fn resume(&mut self) {
        self.process.resume().unwrap();
    }

    /// Its standard input, if it is a pipe.
    pub(crate) fn input(&mut self) -> ChildStdin {
        self.input.take().expect("its standard input is a pipe")
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    /// Waits for its end. Returns its exit code and output.
    #[track_caller]
    pub(crate) fn end(self) -> (i32, String, String) {
        outcome_of(&self.output())
    }

    /// Waits for its end, and for the end of every process that has its output open.
    #[track_caller]
    pub(crate) fn output(mut self) -> Output {
        let (id, stdout, stderr) = (self.id(), self.stdout.take(), self.stderr.take());
        let status = self.process.wait(BOUND).unwrap_or_else(|error| panic!("{error}"));
        let text = |bytes: Option<Receiver<Vec<u8>>>, what: &str| {
            bytes.map_or_else(Vec::new, |bytes| {
                bytes.recv_timeout(BOUND).unwrap_or_else(|_| {
                    panic!("process {} has ended ({status}), and {BOUND:?} later another still has its {what}", id)
                })
            })
        };
        Output { status, stdout: text(stdout, "standard output"), stderr: text(stderr, "standard error") }
    }
}

/// Reads to the end on its own thread, so that a wait for it can have a bound.
fn all_of(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if pipe.read_to_end(&mut bytes).is_ok() {
            // The receiver may have given up.
            let _ = sender.send(bytes);
        }
    });
    receiver
}

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn until(what: &str, is_so: impl FnMut() -> bool) {
    until_within(BOUND, what, is_so);
}

/// Waits until a condition holds, with a bound.
#[track_caller]
pub(crate) fn until_within(bound: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < bound, "after {bound:?} not yet: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The content of a file, once it contains a whole line.
#[track_caller]
pub(crate) fn line_of(file: &Path) -> String {
    let mut text = String::new();
    until(&format!("a line in {}", file.display()), || {
        text = std::fs::read_to_string(file).unwrap_or_default();
        text.ends_with('\n')
    });
    text.trim_end().to_owned()
}

/// The process id that a command wrote into a file.
#[track_caller]
pub(crate) fn id_of(file: &Path) -> u32 {
    line_of(file).parse().unwrap()
}

/// Whether a process runs. A zombie does not.
pub(crate) fn is_running(id: u32) -> bool {
    state(id).is_some_and(|state| state != 'Z' && state != 'X')
}

/// The state of a process as the kernel names it: R, S, T, Z.
pub(crate) fn state(id: u32) -> Option<char> {
    field(id, 0)?.chars().next()
}

/// Its process group.
pub(crate) fn group(id: u32) -> u32 {
    field(id, 2).unwrap().parse().unwrap()
}

/// Its child processes with this name.
pub(crate) fn children(id: u32, name: &str) -> Vec<u32> {
    let has_name =
        |&child: &u32| std::fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|comm| comm.trim_end() == name);
    all_children(id).into_iter().filter(has_name).collect()
}

/// All its child processes, including zombies.
pub(crate) fn all_children(id: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.filter(|&child| field(child, 1) == Some(id.to_string())).collect()
}

/// The watcher of a run.
#[track_caller]
pub(crate) fn watcher(run: u32) -> u32 {
    let mut found = Vec::new();
    until("the run has one watcher", || {
        found = children(run, "lockwatch");
        found.len() == 1
    });
    found[0]
}

/// A field of `/proc/ID/stat` after the name: state, parent, group, session.
fn field(id: u32, index: usize) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(index).map(str::to_owned)
}

/// Its session.
pub(crate) fn session(id: u32) -> u32 {
    field(id, 3).unwrap().parse().unwrap()
}

pub(crate) fn pid(id: u32) -> Pid {
    Pid::from_raw(i32::try_from(id).unwrap()).unwrap()
}
