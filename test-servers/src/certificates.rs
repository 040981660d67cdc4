//! Certificates for servers with TLS.

use std::io;
use std::path::Path;
use std::process::Command;

/// The arguments that create a private key and a request for its certificate.
const NEW: [&str; 6] = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];

/// Creates `ca.pem`, a private authority, and `own.pem` and `own.key`, its certificate for `localhost`, in a folder.
///
/// # Errors
/// If there is no openssl, or it fails.
pub fn certificates(folder: &Path) -> io::Result<()> {
    let ca = ["-x509", "-days", "2", "-subj", "/CN=test authority", "-keyout", "ca.key", "-out", "ca.pem"];
    openssl(folder, &[&NEW[..], &ca].concat())?;
    signed(folder, "own", "localhost", "subjectAltName=DNS:localhost\n")
}

/// Creates `{user}.pem` and `{user}.key`, a certificate of the authority of [`certificates`] for a client with this
/// name.
///
/// # Errors
/// The same.
pub fn client_certificate(folder: &Path, user: &str) -> io::Result<()> {
    signed(folder, user, user, "extendedKeyUsage=clientAuth\n")
}

/// Creates a private key and its certificate by the authority.
fn signed(folder: &Path, file: &str, name: &str, extensions: &str) -> io::Result<()> {
    let [key, request, extension, certificate] = ["key", "csr", "ext", "pem"].map(|end| format!("{file}.{end}"));
    openssl(folder, &[&NEW[..], &["-subj", &format!("/CN={name}"), "-keyout", &key, "-out", &request]].concat())?;
    std::fs::write(folder.join(&extension), extensions)?;
    let sign = ["x509", "-req", "-in", &request, "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"];
    openssl(folder, &[&sign[..], &["-extfile", &extension, "-out", &certificate]].concat())
}

fn openssl(folder: &Path, args: &[&str]) -> io::Result<()> {
    let done = Command::new("openssl").args(args).current_dir(folder).output();
    let done = done.map_err(|error| {
        io::Error::other(format!("openssl cannot be started ({error}): get it by `apt-get install openssl`"))
    })?;
    match done.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("openssl {args:?}: {}", String::from_utf8_lossy(&done.stderr)))),
    }
}
