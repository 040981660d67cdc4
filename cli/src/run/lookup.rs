//! Checks that the command exists before the lock is acquired.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::exit::{Exit, Failure};
use crate::report::printable;

/// Looks the command up as `execvp` does, so that a misspelled command fails before it waits for the lock.
pub(crate) fn check(program: &OsStr) -> Result<(), Failure> {
    let Some(path) = std::env::var_os("PATH") else {
        // Without PATH the system uses its own default.
        return Ok(());
    };
    check_in(program, &path)
}

fn check_in(program: &OsStr, path: &OsStr) -> Result<(), Failure> {
    let executable = |file: &Path| match file.metadata()? {
        folder if folder.is_dir() => Err(io::ErrorKind::PermissionDenied.into()),
        _ => access(file, Access::EXEC_OK).map(|()| file.to_owned()).map_err(io::Error::from),
    };
    let found = if program.is_empty() {
        Err(io::ErrorKind::NotFound.into())
    } else if program.as_bytes().contains(&b'/') {
        executable(Path::new(program))
    } else {
        let tries = std::env::split_paths(path).map(|folder| executable(&folder.join(program)));
        // A file without permission explains more than the folders without the file.
        tries
            .reduce(|best, next| match (&best, &next) {
                (Ok(_), _) => best,
                (Err(error), Err(_)) if error.kind() == io::ErrorKind::PermissionDenied => best,
                _ => next,
            })
            .unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))
    };
    let file = found.map_err(|error| failure(program, &error))?;
    match interpreter(&file) {
        Some(interpreter) if access(&interpreter, Access::EXEC_OK).is_err() => {
            Err(no_interpreter(program, Some(&interpreter)))
        }
        _ => Ok(()),
    }
}

/// The interpreter that the first line of a script names. `None` if the file is no script or cannot be read.
fn interpreter(file: &Path) -> Option<PathBuf> {
    /// Longer than any system reads of that line.
    const LONGEST: u64 = 1024;
    let mut begin = Vec::new();
    File::open(file).ok()?.take(LONGEST).read_to_end(&mut begin).ok()?;
    let line = begin.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let path = line.split(|&byte| byte == b' ' || byte == b'\t').find(|word| !word.is_empty())?;
    Some(OsStr::from_bytes(path).into())
}

/// The failure for a command that exists while its interpreter or loader does not.
pub(crate) fn no_interpreter(program: &OsStr, interpreter: Option<&Path>) -> Failure {
    let name = interpreter.map(|path| format!(", `{}`,", printable(&path.to_string_lossy()))).unwrap_or_default();
    let text = format!(
        "cannot execute `{}`: its interpreter{name} is missing or not executable",
        printable(&program.to_string_lossy())
    );
    Failure::new(Exit::Command(126), text)
}

/// The failure to execute a command, with the exit codes of shells.
pub(crate) fn failure(program: &OsStr, error: &io::Error) -> Failure {
    let program = printable(&program.to_string_lossy());
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            Failure::new(Exit::Command(127), format!("command `{program}` not found"))
        }
        _ => Failure::new(Exit::Command(126), format!("cannot execute `{program}`: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn finds_the_program_that_the_system_will_execute() {
        let folder = tempfile::tempdir().unwrap();
        let (empty, full) = (folder.path().join("empty"), folder.path().join("full"));
        for folder in [&empty, &full] {
            std::fs::create_dir(folder).unwrap();
        }
        for (name, mode, begin) in [
            ("tool", 0o755, ""),
            ("text", 0o644, ""),
            ("script", 0o755, "#! /bin/sh -e\nfalse\n"),
            ("orphan", 0o755, "#!/nowhere/python -u\nprint()\n"),
        ] {
            std::fs::write(full.join(name), begin).unwrap();
            std::fs::set_permissions(full.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let path = std::env::join_paths([&empty, &full]).unwrap();
        let code = |program: &OsStr| check_in(program, &path).err().map_or(0, |failure| failure.exit.code());
        assert_eq!(code("tool".as_ref()), 0);
        assert_eq!(code("text".as_ref()), 126);
        assert_eq!(code("none".as_ref()), 127);
        assert_eq!(code("script".as_ref()), 0);
        assert_eq!(code("orphan".as_ref()), 126);
        let text = check_in("orphan".as_ref(), &path).unwrap_err().text;
        assert!(text.contains("its interpreter, `/nowhere/python`, is missing"), "{text}");
        assert_eq!(code(full.join("tool").as_ref()), 0);
        assert_eq!(code(full.join("text").as_ref()), 126);
        assert_eq!(code(full.join("none").as_ref()), 127);
        assert_eq!(code(full.join("tool/x").as_ref()), 127);
        assert_eq!(code(full.as_ref()), 126);
        assert_eq!(code("".as_ref()), 127);
    }
}
