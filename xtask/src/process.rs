//! Starts other programs, always from the workspace's root and always with the command in the error.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use wait4::Wait4;

thread_local! {
    static PROCESSOR_TIME: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// The processor time of all commands that this thread has waited for, including the processes that these have waited
/// for.
pub(crate) fn processor_time() -> Duration {
    PROCESSOR_TIME.get()
}

fn wait(child: &mut Child) -> Result<ExitStatus> {
    let used = child.wait4().context("cannot wait for a process")?;
    PROCESSOR_TIME.set(PROCESSOR_TIME.get() + used.rusage.utime + used.rusage.stime);
    Ok(used.status)
}

fn spawn(command: &mut Command) -> Result<Child> {
    command.stdin(Stdio::null()).spawn().with_context(|| format!("cannot start `{}`", text(command)))
}

/// The workspace's root: the parent of this package's folder.
pub(crate) fn root() -> PathBuf {
    let package =
        std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    package.parent().map_or_else(|| package.clone(), Path::to_path_buf)
}

/// The cargo that runs this program.
pub(crate) fn cargo<I: AsRef<OsStr>>(args: impl IntoIterator<Item = I>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // `cargo run` sets these variables for this program. Some build scripts read them, and would run again after a
    // cargo that was started by hand.
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_this_package(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    command.current_dir(root()).args(args);
    command
}

fn is_of_this_package(variable: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| variable.starts_with(prefix))
}

/// The same command at the lowest priority, in a session of its own. Linux may group processes by session
/// (`sched_autogroup_enabled`): a priority counts only within its group then, and a busy process of low priority was seen
/// to keep those of other sessions waiting for half a minute. The priority of the group is set too.
pub(crate) fn niced(command: &Command) -> Command {
    let mut niced = Command::new("setsid");
    niced.args(["sh", "-c", "{ echo 19 >/proc/self/autogroup; } 2>/dev/null; exec nice -n 19 \"$0\" \"$@\""]);
    niced.arg(command.get_program()).args(command.get_args());
    niced.current_dir(command.get_current_dir().map_or_else(root, Path::to_path_buf));
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => niced.env(name, value),
            None => niced.env_remove(name),
        };
    }
    niced
}

/// The command as a person types it.
pub(crate) fn text(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let program = program.file_stem().unwrap_or(program.as_os_str());
    std::iter::once(program)
        .chain(command.get_args())
        .map(|part| part.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs a command and shows what it prints.
pub(crate) fn show(command: &mut Command) -> Result<()> {
    eprintln!("$ {}", text(command));
    let status = wait(&mut spawn(command)?)?;
    if !status.success() {
        bail!("`{}` failed: {status}", text(command));
    }
    Ok(())
}

/// Runs a command and returns its standard output. Its standard error is shown.
pub(crate) fn read(command: &mut Command) -> Result<String> {
    let mut child = spawn(command.stdout(Stdio::piped()))?;
    let mut output = Vec::new();
    child.stdout.take().context("its output is a pipe")?.read_to_end(&mut output)?;
    let status = wait(&mut child)?;
    if !status.success() {
        bail!("`{}` failed: {status}", text(command));
    }
    String::from_utf8(output).with_context(|| format!("`{}` printed no UTF-8", text(command)))
}

/// How a watched command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Success,
    Failure,
    /// It was killed at its bound.
    TooLong,
}

/// Runs a command for at most `bound`, and passes every line of both outputs to `line`.
pub(crate) fn watch(command: &mut Command, bound: Duration, mut line: impl FnMut(&str)) -> Result<End> {
    let (reader, writer) = std::io::pipe()?;
    let mut child = spawn(command.stdout(writer.try_clone()?).stderr(writer))?;
    // `command` keeps its own copies of the pipe's writer. If they stayed open, the pipe would never close.
    command.stdout(Stdio::null()).stderr(Stdio::null());

    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
            if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
        }
    });
    let deadline = Instant::now() + bound;
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(text) => line(&text),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                child.kill()?;
                wait(&mut child)?;
                return Ok(End::TooLong);
            }
        }
    }
    Ok(if wait(&mut child)?.success() { End::Success } else { End::Failure })
}
