//! Checks of the path before SQLite opens the file.

use std::path::Path;

use leasehold_core::{Error, ErrorKind, Result};

/// Checks the folder and the file system of a path, and the permission to write there.
///
/// # Errors
/// - `InvalidInput`: the folder does not exist, or the path is a folder.
/// - `Auth`: the user has no permission to write.
/// - `Unsupported`: other machines share the file system, as far as this can be detected, or the file has a second
///   path.
pub(crate) fn check(path: &Path) -> Result<()> {
    let folder = folder_of(path);
    match std::fs::metadata(folder) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return Err(Error::invalid(format!("{} is not a folder", folder.display()))),
        Err(error) => {
            let text = format!("the folder {} cannot be used: create it, or use another path", folder.display());
            return Err(Error::new(kind_of_folder_error(&error), text).with_source(error));
        }
    }
    if path.is_dir() {
        return Err(Error::invalid(format!("{} is a folder: name a file in it", path.display())));
    }
    if let Some(name) = shared_file_system(folder) {
        let text = format!(
            "{} is on {name}, which other machines may share: SQLite's locks do not reach them. Use a local file \
             system, or a store on the network",
            folder.display()
        );
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    if let Some(why) = second_path(path) {
        let text = format!("{} {why}", path.display());
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    let (what, may_write) = match std::fs::metadata(path) {
        Ok(_) => (path, allows(path, WRITE)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => (folder, allows(folder, WRITE)),
        Err(error) => (path, Err(error)),
    };
    may_write.map_err(|error| refused(what, "written", error))
}

/// The kind of an error that concerns the folder. Waiting creates no folder.
pub(crate) fn kind_of_folder_error(error: &std::io::Error) -> ErrorKind {
    use std::io::ErrorKind::{AlreadyExists, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
    match error.kind() {
        AlreadyExists | NotADirectory | NotFound => ErrorKind::InvalidInput,
        PermissionDenied | ReadOnlyFilesystem => ErrorKind::Auth,
        _ => ErrorKind::Unavailable,
    }
}

/// Checks the permission to read a file.
///
/// # Errors
/// `Auth` without the permission.
pub(crate) fn check_readable(path: &Path) -> Result<()> {
    allows(path, READ).map_err(|error| refused(path, "read", error))
}

/// Checks the permission to create files in the folder of a file.
///
/// # Errors
/// `Auth` without the permission.
pub(crate) fn check_folder(path: &Path) -> Result<()> {
    let folder = folder_of(path);
    allows(folder, WRITE).map_err(|error| refused(folder, "written", error))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn refused(what: &Path, verb: &str, error: std::io::Error) -> Error {
    let text = format!("{} may not be {verb}: check its permissions and the user that you run as", what.display());
    Error::new(ErrorKind::Auth, text).with_source(error)
}

/// Creates the file if it does not exist. The group may write to it if the folder's group may write to the folder,
/// whatever the umask of the first user is. SQLite gives `-wal` and `-shm` the permissions of the file. Opening the
/// file reports errors.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn create(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, chmod, mknodat, stat};
    const GROUP_WRITES: u32 = 0o020;
    let readable = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
    // This opens nothing. Closing a file that SQLite has open too would drop SQLite's locks.
    if mknodat(CWD, path, FileType::RegularFile, readable, 0).is_err() {
        return;
    }
    let Some(folder) = path.parent().and_then(|folder| stat(folder).ok()) else { return };
    let Ok(made) = stat(path) else { return };
    if folder.st_mode & GROUP_WRITES != 0 && folder.st_gid == made.st_gid {
        let _ = chmod(path, Mode::from_raw_mode(made.st_mode) | Mode::RGRP | Mode::WGRP);
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn create(_path: &Path) {}

/// Describes a second path of the file. SQLite would keep another `-wal` and `-shm` beside it, so each path would have
/// its own locks.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn second_path(path: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let links = std::fs::metadata(path).ok()?.nlink();
    if links > 1 {
        return Some(format!("has {links} hard links, and each would have its own locks: remove the others"));
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    is_mount_point(&mounts, &path.canonicalize().ok()?).then(|| {
        "is a mount point, and another path to the file would have its own locks: mount its folder instead".to_owned()
    })
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn second_path(_path: &Path) -> Option<String> {
    None
}

/// Whether a canonical path is a mount point, according to the text of `/proc/self/mountinfo`.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_mount_point(mounts: &str, path: &Path) -> bool {
    mounts.lines().filter_map(|line| line.split(' ').nth(4)).any(|point| Path::new(&unescape(point)) == path)
}

/// Asks the system for a permission, without opening the file: closing a file that SQLite has open too would drop
/// SQLite's locks. SQLite itself opens a file it may not write as read-only, and reports a folder only as "unable to
/// open".
#[cfg(any(target_os = "linux", target_os = "android"))]
fn allows(path: &Path, access: rustix::fs::Access) -> std::io::Result<()> {
    use rustix::io::Errno;
    match rustix::fs::access(path, access) {
        Err(error @ (Errno::ACCESS | Errno::PERM | Errno::ROFS)) => Err(error.into()),
        // Opening the file reports any other error.
        _ => Ok(()),
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn allows(_path: &Path, _access: ()) -> std::io::Result<()> {
    Ok(())
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const READ: rustix::fs::Access = rustix::fs::Access::READ_OK;
#[cfg(any(target_os = "linux", target_os = "android"))]
const WRITE: rustix::fs::Access = READ.union(rustix::fs::Access::WRITE_OK);
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const READ: () = ();
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const WRITE: () = ();

/// The name of the folder's file system if other machines may share it.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn shared_file_system(folder: &Path) -> Option<String> {
    let magic = rustix::fs::statfs(folder).ok()?.f_type;
    // The magic number has 32 bits, whatever the type of the field is.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "only the low 32 bits are the number")]
    let magic = magic as u32;
    shared_by_number(magic).map(str::to_owned).or_else(|| {
        let folder = if magic == FUSE { folder.canonicalize().ok()? } else { return None };
        shared_by_mount(&std::fs::read_to_string("/proc/self/mountinfo").ok()?, &folder)
    })
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn shared_by_number(magic: u32) -> Option<&'static str> {
    SHARED.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn shared_by_mount(mounts: &str, folder: &Path) -> Option<String> {
    let kind = kind_of_mount(mounts, folder)?;
    SHARED_FUSE.iter().any(|shared| kind.contains(shared)).then_some(kind)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn shared_file_system(_folder: &Path) -> Option<String> {
    None
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const FUSE: u32 = 0x6573_5546;

/// File systems that several machines can mount at once, by their magic numbers in `statfs(2)`.
#[cfg(any(target_os = "linux", target_os = "android"))]
const SHARED: &[(u32, &str)] = &[
    (0x0000_6969, "NFS"),
    (0x0000_517B, "SMB"),
    (0xFE53_4D42, "SMB 2"),
    (0xFF53_4D42, "CIFS"),
    (0x0102_1997, "9P (a folder of the host)"),
    (0x00C3_6400, "Ceph"),
    (0x5346_414F, "AFS"),
    (0x6B41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x0000_564C, "NCP"),
    (0x0BD0_0BD0, "Lustre"),
    (0x0116_1970, "GFS2"),
    (0x7461_636F, "OCFS2"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x786F_4256, "vboxsf (a folder of the host)"),
    (0xBACB_ACBC, "vmhgfs (a folder of the host)"),
];

/// Parts of the names of FUSE file systems that several machines can mount at once.
#[cfg(any(target_os = "linux", target_os = "android"))]
const SHARED_FUSE: &[&str] = &[
    "virtiofs",
    "sshfs",
    "s3fs",
    "rclone",
    "gcsfuse",
    "goofys",
    "mountpoint-s3",
    "juicefs",
    "gluster",
    "ceph",
    "davfs",
    "curlftpfs",
    "gvfsd",
    "osxfs",
    "grpcfuse",
    "vmhgfs",
    "moosefs",
    "mfs",
    "seaweedfs",
    "blobfuse",
    "nfs",
    "smb",
];

/// The type of the file system that contains a canonical path, according to the text of `/proc/self/mountinfo`.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn kind_of_mount(mounts: &str, path: &Path) -> Option<String> {
    let mut best: Option<(usize, &str)> = None;
    for line in mounts.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let (Some(point), Some(kind)) = (left.split(' ').nth(4), right.split(' ').next()) else { continue };
        let point = unescape(point);
        // A later mount on the same point hides an earlier one.
        if path.starts_with(&point) && best.is_none_or(|(length, _)| point.len() >= length) {
            best = Some((point.len(), kind));
        }
    }
    best.map(|(_, kind)| kind.to_owned())
}

/// Decodes a mount point, in which spaces, tabs, newlines and backslashes are octal.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn unescape(point: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(point.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(result: Result<()>) -> ErrorKind {
        result.unwrap_err().kind()
    }

    #[test]
    fn a_path_is_a_file_in_an_existing_folder() {
        let folder = tempfile::tempdir().unwrap();
        assert!(check(&folder.path().join("locks.db")).is_ok());
        assert_eq!(kind_of(check(folder.path())), ErrorKind::InvalidInput);
        assert_eq!(kind_of(check(&folder.path().join("none/locks.db"))), ErrorKind::InvalidInput);
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(kind_of(check(&file.join("locks.db"))), ErrorKind::InvalidInput);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_kind_of_a_mount_is_that_of_the_innermost_one() {
        let mounts = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n\
             30 22 0:40 / /mnt/my\\040share rw - fuse.sshfs host:/ rw\n\
             31 22 0:41 / /mnt/local rw - fuse.gocryptfs x rw\n\
             32 31 0:42 / /mnt/local/over rw - tmpfs t rw\n\
             33 31 0:43 / /mnt/local/over rw shared:3 master:1 - virtiofs v rw\n";
        let kind = |path: &str| kind_of_mount(mounts, Path::new(path));
        assert_eq!(kind("/srv/a").as_deref(), Some("ext4"));
        assert_eq!(kind("/mnt/my share/a").as_deref(), Some("fuse.sshfs"));
        assert_eq!(kind("/mnt/locally").as_deref(), Some("ext4"));
        assert_eq!(kind("/mnt/local/a").as_deref(), Some("fuse.gocryptfs"));
        assert_eq!(kind("/mnt/local/over/a").as_deref(), Some("virtiofs"));
        assert_eq!(kind_of_mount("nonsense\n", Path::new("/")), None);
        let shared = |path: &str| shared_by_mount(mounts, Path::new(path));
        assert_eq!(shared("/mnt/my share/a").as_deref(), Some("fuse.sshfs"));
        assert_eq!(shared("/mnt/local/over/a").as_deref(), Some("virtiofs"));
        assert_eq!(shared("/mnt/local/a"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_file_with_a_second_path_is_refused() {
        let mounts =
            "22 1 8:1 / / rw - ext4 /dev/root rw\n30 22 8:1 /srv/l.db /my\\040locks.db rw - ext4 /dev/root rw\n";
        assert!(is_mount_point(mounts, Path::new("/my locks.db")));
        assert!(!is_mount_point(mounts, Path::new("/my")) && !is_mount_point(mounts, Path::new("/srv/l.db")));
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("locks.db"), folder.path().join("link.db"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(check(&file).is_ok() && check(&link).is_ok(), "SQLite follows symbolic links");
        std::fs::remove_file(&link).unwrap();
        std::fs::hard_link(&file, &link).unwrap();
        assert_eq!(kind_of(check(&file)), ErrorKind::Unsupported);
        assert_eq!(kind_of(check(&link)), ErrorKind::Unsupported);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn only_shared_file_systems_are_refused() {
        // The numbers of the kernel's `magic.h`: NFS, CIFS, 9P; ext4, xfs, btrfs, tmpfs, overlayfs, zfs.
        for magic in [0x6969, 0xFF53_4D42, 0x0102_1997] {
            assert!(shared_by_number(magic).is_some(), "{magic:x}");
        }
        for magic in [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x794C_7630, 0x2FC1_2FC1, FUSE] {
            assert_eq!(shared_by_number(magic), None, "{magic:x}");
        }
    }
}
