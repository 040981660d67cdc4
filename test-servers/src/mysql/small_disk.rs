//! A disk of some megabytes for the data folder of one server: a file system in memory, mounted where only that server
//! sees it.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Mounts the disk at `$1`, copies the folder `$2` to it, and becomes the program in the other arguments.
const MOUNT: &str = r#"data=$1 template=$2 size=$3; shift 3
mount -t tmpfs -o "size=$size" tmpfs "$data" && cp -r "$template/." "$data/" && exec "$@""#;

/// The file that uses up what is left.
const FILLER: &str = "filler";

const BLOCK: [u8; 4096] = [1; 4096];

/// The ways to have mounts of one's own: as root, or as another user if the kernel allows it.
const WAYS: [&[&str]; 2] = [&["--mount"], &["--user", "--map-root-user", "--mount"]];

/// The way that works here.
///
/// # Errors
/// If a process cannot have a file system of its own here. Containers often forbid it.
fn way() -> io::Result<&'static [&'static str]> {
    for way in WAYS {
        let mut command = Command::new("unshare");
        command.args(way).args(["mount", "-t", "tmpfs", "tmpfs", "/mnt"]).stdin(Stdio::null()).stderr(Stdio::null());
        if command.status().is_ok_and(|status| status.success()) {
            return Ok(way);
        }
    }
    Err(io::Error::new(ErrorKind::Unsupported, "this system lets no process mount a file system of its own"))
}

/// Whether a server can have a small disk here.
///
/// # Errors
/// If a process cannot have a file system of its own here. Containers often forbid it.
pub fn can_have_small_disks() -> io::Result<()> {
    way().map(drop)
}

/// A command that runs a program with such a disk at the folder `data`, with the contents of `template`.
pub(super) fn command(program: &Path, data: &Path, template: &Path, mebibytes: u32) -> io::Result<Command> {
    let mut command = Command::new("unshare");
    command.args(way()?).args(["sh", "-c", MOUNT, "sh"]);
    command.arg(data).arg(template).arg(format!("{mebibytes}m")).arg(program);
    Ok(command)
}

fn filler(process: u32, data: &Path) -> PathBuf {
    let inside = data.strip_prefix("/").unwrap_or(data);
    Path::new("/proc").join(process.to_string()).join("root").join(inside).join(FILLER)
}

/// Uses up what is left on the disk of a process.
pub(super) fn fill(process: u32, data: &Path) -> io::Result<()> {
    let mut file = File::options().append(true).create(true).open(filler(process, data))?;
    loop {
        match file.write_all(&BLOCK) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Makes room again.
pub(super) fn empty(process: u32, data: &Path) -> io::Result<()> {
    std::fs::remove_file(filler(process, data))
}
