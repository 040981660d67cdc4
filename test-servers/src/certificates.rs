//! Certificates for servers with TLS.

use std::io;
use std::path::Path;
use std::process::Command;

/// Creates `ca.pem`, a private authority, and `own.pem` and `own.key`, its certificate for `localhost`, in a folder.
///
/// # Errors
/// If there is no openssl, or it fails.
pub fn certificates(folder: &Path) -> io::Result<()> {
    let openssl = |args: &[&str]| {
        let done = Command::new("openssl").args(args).current_dir(folder).output();
        let done = done.map_err(|error| {
            io::Error::other(format!("openssl cannot be started ({error}): get it by `apt-get install openssl`"))
        })?;
        match done.status.success() {
            true => Ok(()),
            false => Err(io::Error::other(format!("openssl {args:?}: {}", String::from_utf8_lossy(&done.stderr)))),
        }
    };
    let new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let ca = ["-x509", "-days", "2", "-subj", "/CN=test authority", "-keyout", "ca.key", "-out", "ca.pem"];
    openssl(&[&new[..], &ca].concat())?;
    openssl(&[&new[..], &["-subj", "/CN=localhost", "-keyout", "own.key", "-out", "own.csr"]].concat())?;
    std::fs::write(folder.join("own.ext"), "subjectAltName=DNS:localhost\n")?;
    let sign = ["x509", "-req", "-in", "own.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"];
    openssl(&[&sign[..], &["-extfile", "own.ext", "-out", "own.pem"]].concat())
}
