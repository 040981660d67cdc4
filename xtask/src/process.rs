//! Starting other programs: always from the workspace's root, always with the command in the error.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The workspace's root: the parent of this package's folder.
pub(crate) fn root() -> PathBuf {
    let package =
        std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    package.parent().map_or_else(|| package.clone(), Path::to_path_buf)
}

/// The cargo that runs us.
pub(crate) fn cargo<I: AsRef<OsStr>>(args: impl IntoIterator<Item = I>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // `cargo run` sets them for this program. Some build scripts read them, and would run again after a cargo that was
    // started by hand.
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_this_package(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    command.current_dir(root()).args(args);
    command
}

fn is_of_this_package(variable: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| variable.starts_with(prefix))
}

/// The command as a person would type it.
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
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot start `{}`", text(command)))?;
    if !status.success() {
        bail!("`{}` failed: {status}", text(command));
    }
    Ok(())
}

/// Runs a command and returns what it printed on standard output; standard error goes through.
pub(crate) fn read(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{}`", text(command)))?;
    if !output.status.success() {
        bail!("`{}` failed: {}", text(command), output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{}` printed no UTF-8", text(command)))
}

/// How a watched command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Success,
    Failure,
    /// It was killed at its bound.
    TooLong,
}

/// Runs a command for at most `bound`, shows every line of both outputs and hands it to `line`.
pub(crate) fn watch(command: &mut Command, bound: Duration, mut line: impl FnMut(&str)) -> Result<End> {
    let (reader, writer) = std::io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("cannot start `{}`", text(command)))?;
    // The command keeps its own copies of the pipe's end; with them open the pipe would never close.
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
            Ok(text) => {
                println!("{text}");
                line(&text);
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                child.kill()?;
                child.wait()?;
                return Ok(End::TooLong);
            }
        }
    }
    Ok(if child.wait()?.success() { End::Success } else { End::Failure })
}
