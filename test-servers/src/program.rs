//! The program of a server.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

/// A program, and where it comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// Debian's package that contains it.
    pub(crate) package: &'static str,
    /// The environment variable that names another program.
    pub(crate) variable: &'static str,
}

impl Program {
    /// Finds it.
    ///
    /// # Errors
    /// If it is not installed. The text says how to install it.
    pub(crate) fn find(&self) -> io::Result<PathBuf> {
        self.find_in(std::env::var_os(self.variable), std::env::var_os("PATH").unwrap_or_default())
    }

    fn find_in(&self, named: Option<OsString>, path: OsString) -> io::Result<PathBuf> {
        let Self { name, package, variable } = self;
        let found = match named {
            Some(program) => Some(PathBuf::from(program)),
            None => {
                // The last two folders are not in every user's search path.
                let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from));
                folders.map(|folder| folder.join(name)).find(|program| program.is_file())
            }
        };
        found.filter(|program| program.is_file()).ok_or_else(|| {
            let text = format!(
                "{name} was not found: install it (`apt-get install {package}`, or `cargo xtask test --install`), or \
                 name one in {variable}"
            );
            io::Error::new(io::ErrorKind::NotFound, text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_server_is_an_error_that_says_how_to_get_it() {
        let empty = tempfile::tempdir().unwrap();
        let program = Program { name: "some-server", package: "some-package", variable: "SOME_SERVER" };
        let error = program.find_in(Some(empty.path().join("absent").into()), "".into()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("apt-get install some-package"), "{error}");
        assert!(error.to_string().contains("cargo xtask test --install"), "{error}");
    }
}
