//! Whether there is such a command, before a lock is taken for it.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{Access, access};

use crate::exit::{Exit, Failure};

/// Finds a command as the system will, so that a typing error neither waits nor holds a lock.
pub(crate) fn check(program: &OsStr) -> Result<(), Failure> {
    let Some(path) = std::env::var_os("PATH") else {
        // The system has its own list then.
        return Ok(());
    };
    check_in(program, &path)
}

fn check_in(program: &OsStr, path: &OsStr) -> Result<(), Failure> {
    let executable = |file: &Path| match file.metadata()? {
        folder if folder.is_dir() => Err(io::ErrorKind::PermissionDenied.into()),
        _ => access(file, Access::EXEC_OK).map_err(io::Error::from),
    };
    let result = if program.is_empty() {
        Err(io::ErrorKind::NotFound.into())
    } else if program.as_bytes().contains(&b'/') {
        executable(Path::new(program))
    } else {
        let tries = std::env::split_paths(path).map(|folder| executable(&folder.join(program)));
        // One that is there and cannot be executed says more than ten that are not there.
        tries
            .reduce(|best, next| match (&best, &next) {
                (Ok(()), _) => best,
                (Err(error), Err(_)) if error.kind() == io::ErrorKind::PermissionDenied => best,
                _ => next,
            })
            .unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))
    };
    result.map_err(|error| failure(program, &error))
}

/// The failure to execute a command, with the codes that shells use.
pub(crate) fn failure(program: &OsStr, error: &io::Error) -> Failure {
    let program = crate::report::shown(&program.to_string_lossy());
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            Failure::new(Exit::Command(127), format!("there is no command `{program}`"))
        }
        _ => Failure::new(Exit::Command(126), format!("the command `{program}` cannot be executed: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn finds_what_the_system_will_find() {
        let folder = tempfile::tempdir().unwrap();
        let (empty, full) = (folder.path().join("empty"), folder.path().join("full"));
        for folder in [&empty, &full] {
            std::fs::create_dir(folder).unwrap();
        }
        for (name, mode) in [("tool", 0o755), ("text", 0o644)] {
            std::fs::write(full.join(name), "").unwrap();
            std::fs::set_permissions(full.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let path = std::env::join_paths([&empty, &full]).unwrap();
        let code = |program: &OsStr| check_in(program, &path).err().map_or(0, |failure| failure.exit.code());
        assert_eq!(code("tool".as_ref()), 0);
        assert_eq!(code("text".as_ref()), 126);
        assert_eq!(code("none".as_ref()), 127);
        assert_eq!(code(full.join("tool").as_ref()), 0);
        assert_eq!(code(full.join("text").as_ref()), 126);
        assert_eq!(code(full.join("none").as_ref()), 127);
        assert_eq!(code(full.join("tool/x").as_ref()), 127);
        assert_eq!(code(full.as_ref()), 126);
        assert_eq!(code("".as_ref()), 127);
    }
}
