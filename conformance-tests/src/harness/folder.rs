//! Where a server of a test, or a file of locks, writes.

use std::io;
use std::path::Path;

use tempfile::{Builder, TempDir};

/// File systems that live in memory.
const IN_MEMORY: &[&str] = &["/dev/shm"];

/// A temporary folder for what a store writes, in memory where the system has a place for that.
///
/// What is tested is whether a store keeps its word when its process dies, which memory proves as well as a disk. A disk
/// that others use too stands still for parts of a second when it is told to write at once, and then the times of the cases
/// would be the disk's.
///
/// # Errors
/// Those of the system.
pub fn folder(prefix: &str) -> io::Result<TempDir> {
    let mut builder = Builder::new();
    builder.prefix(prefix);
    let in_memory = IN_MEMORY.iter().filter(|place| Path::new(place).is_dir());
    in_memory.filter_map(|place| builder.tempdir_in(place).ok()).next().map_or_else(|| builder.tempdir(), Ok)
}
