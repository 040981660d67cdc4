//! The folder that a test server, or a file of locks, writes to.

use std::io;
use std::path::Path;

use tempfile::{Builder, TempDir};

/// File systems that live in memory.
const IN_MEMORY: &[&str] = &["/dev/shm"];

/// A temporary folder for the files of a store, in memory if the system has such a file system.
///
/// The cases test whether a store keeps its acknowledged data when its process dies, which memory proves as well as a
/// disk. A shared disk stalls for parts of a second when it syncs, and the cases would then measure the disk.
///
/// # Errors
/// Those of the system.
pub fn folder(prefix: &str) -> io::Result<TempDir> {
    let mut builder = Builder::new();
    builder.prefix(prefix);
    let in_memory = IN_MEMORY.iter().filter(|place| Path::new(place).is_dir());
    in_memory.filter_map(|place| builder.tempdir_in(place).ok()).next().map_or_else(|| builder.tempdir(), Ok)
}
