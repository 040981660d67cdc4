//! An archive of the classes that a server loads. With it, a server starts in half of the processor time. Starts are
//! most of the work in the tests of ZooKeeper, because each test starts servers of its own.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::side::OwnSessions;
use super::{ZooKeeperServer, ZooKeeperSettings};

/// The option of the virtual machine that uses the archive. The first server that needs the archive makes it. It lies
/// beside the test program, in cargo's target folder, so that all programs share it.
///
/// # Errors
/// If it cannot be made.
pub(super) fn option(java: &Path, library: &Path) -> io::Result<String> {
    static MAKES: Mutex<()> = Mutex::new(());
    let _one = MAKES.lock().unwrap_or_else(PoisonError::into_inner);
    let archive = path(java, library)?;
    if !archive.exists() {
        // Another program may be making it at this time.
        let made = archive.with_extension(std::process::id().to_string());
        let make = format!("-XX:ArchiveClassesAtExit={}", made.display());
        let mut server = ZooKeeperServer::new(ZooKeeperSettings::new(), OwnSessions::default())?;
        server.start_with(make)?;
        server.stop()?;
        std::fs::rename(made, &archive)?;
    }
    Ok(format!("-XX:SharedArchiveFile={}", archive.display()))
}

/// Another Java or ZooKeeper has another archive. One that does not fit would be ignored.
fn path(java: &Path, library: &Path) -> io::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    for file in [java, library] {
        let file = file.canonicalize()?;
        (file.metadata()?.modified()?, file).hash(&mut hasher);
    }
    Ok(std::env::current_exe()?.with_file_name(format!("zookeeper-{:016x}.jsa", hasher.finish())))
}
