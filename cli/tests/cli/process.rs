//! The command under test as a process, and a look at others.

use std::io::Read;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ChildStdin, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use leasehold_conformance::harness::ChildProcess;
use rustix::process::{Pid, Signal, kill_process};

use crate::store::Store;

/// How long anything may take that takes a moment: only a hang is longer, whatever else the machine does.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// `env` with this runs a program with no signal ignored: a shell ignores some for what it starts in the background, and whoever
/// runs these tests like that would have them ignored here too.
pub(crate) const NO_SIGNAL_IGNORED: &str = "--default-signal";

/// `leasehold` with a store and arguments.
pub(crate) fn leasehold(store: &Store, args: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.args([NO_SIGNAL_IGNORED, env!("CARGO_BIN_EXE_leasehold")]);
    command.args(args).env("LEASEHOLD_STORE", store.url()).current_dir(store.folder());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs it to its end, which comes in time.
#[track_caller]
pub(crate) fn output(command: &mut Command) -> Output {
    Running::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped())).output()
}

/// What it wrote, with its exit code as a shell gives it, 128+n when signal n ended it: `code|standard output|standard error`.
pub(crate) fn outcome_of(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    let code = output.status.code().or_else(|| Some(128 + output.status.signal()?)).unwrap_or(-1);
    (code, text(&output.stdout), text(&output.stderr))
}

/// Runs it to its end and says how it ended and what it wrote.
pub(crate) fn outcome(store: &Store, args: &[&str]) -> (i32, String, String) {
    outcome_of(&output(&mut leasehold(store, args)))
}

/// A run that goes on while the test looks. Whatever happens to the test, it does not outlive it.
pub(crate) struct Running {
    process: ChildProcess,
    input: Option<ChildStdin>,
    /// Read from the beginning: a full pipe must not hold up the run.
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

    /// −9.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
    }

    /// Stops it, and only it.
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

    /// Waits for its end: how it ended and what it wrote.
    #[track_caller]
    pub(crate) fn end(self) -> (i32, String, String) {
        outcome_of(&self.output())
    }

    /// Waits for its end, and for that of whoever has its output.
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

/// Reads to the end on a thread of its own, so that whoever waits for it can give up.
fn all_of(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if pipe.read_to_end(&mut bytes).is_ok() {
            // Whoever asked may have given up.
            let _ = sender.send(bytes);
        }
    });
    receiver
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn until(what: &str, is_so: impl FnMut() -> bool) {
    until_within(BOUND, what, is_so);
}

/// Waits until something is so, for a time.
#[track_caller]
pub(crate) fn until_within(bound: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < bound, "after {bound:?} not yet: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What a file holds once it holds a whole line.
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

/// Whether a process runs. A zombie does not: it does nothing any more.
pub(crate) fn is_running(id: u32) -> bool {
    state(id).is_some_and(|state| state != 'Z' && state != 'X')
}

/// The state of a process as the system names it: R, S, T, Z.
pub(crate) fn state(id: u32) -> Option<char> {
    field(id, 0)?.chars().next()
}

/// Its process group.
pub(crate) fn group(id: u32) -> u32 {
    field(id, 2).unwrap().parse().unwrap()
}

/// The processes that it started, by name.
pub(crate) fn children(id: u32, name: &str) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_child = |&child: &u32| {
        field(child, 1) == Some(id.to_string())
            && std::fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    all.filter(is_child).collect()
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
