//! The subcommands that `run` starts this program with, for itself. They are no part of the interface.

use std::io;
use std::process::Command;

/// Watches over a run.
pub(crate) const WATCHER: &str = "__watch";

/// Waits for the word to begin, and becomes the command.
pub(crate) const LAUNCHER: &str = "__start";

/// This program again.
pub(crate) fn own_program() -> io::Result<Command> {
    // The link finds this very file even after it was replaced by a newer one.
    #[cfg(target_os = "linux")]
    let path = std::path::Path::new("/proc/self/exe");
    #[cfg(not(target_os = "linux"))]
    let path = std::env::current_exe()?;
    Ok(Command::new(path))
}
