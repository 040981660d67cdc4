//! Internal subcommands, which `run` starts this program with. They are not part of the interface.

use std::io;
use std::process::Command;

/// The watcher of a run.
pub(crate) const WATCHER: &str = "__watch";

/// The launcher, which becomes the command.
pub(crate) const LAUNCHER: &str = "__start";

/// A command that starts this program again.
pub(crate) fn own_program() -> io::Result<Command> {
    // The link leads to this file even after an upgrade has replaced it.
    #[cfg(target_os = "linux")]
    let path = std::path::Path::new("/proc/self/exe");
    #[cfg(not(target_os = "linux"))]
    let path = std::env::current_exe()?;
    Ok(Command::new(path))
}
