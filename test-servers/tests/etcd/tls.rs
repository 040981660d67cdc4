//! Servers with TLS.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use leasehold_test_servers::{EtcdServer, EtcdSettings, EtcdTls, certificates, client_certificate};

/// What `openssl s_client` with these arguments receives of the page about the server's health.
fn health(server: &EtcdServer, folder: &Path, args: &[&str]) -> String {
    let mut client = Command::new("openssl");
    client.args(["s_client", "-quiet", "-verify_return_error", "-verify_hostname", "localhost", "-CAfile", "ca.pem"]);
    client.args(["-connect", &server.addr().to_string()]).args(args).current_dir(folder);
    client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut client = client.spawn().unwrap();
    // The write fails if the handshake has failed.
    let _ = client.stdin.take().unwrap().write_all(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n");
    String::from_utf8(client.wait_with_output().unwrap().stdout).unwrap()
}

fn server(folder: &Path, clients_need_certificates: bool) -> EtcdServer {
    certificates(folder).unwrap();
    let tls = EtcdTls { folder: folder.to_owned(), clients_need_certificates };
    EtcdSettings::new().tls(tls).start().unwrap()
}

#[test]
fn clients_use_tls_and_the_test_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path(), false);
    assert_eq!(server.url(), format!("https://localhost:{}", server.addr().port()));
    assert!(health(&server, folder.path(), &[]).contains(r#""health":"true""#));
    assert!(
        minreq::get(format!("http://{}/health", server.addr()))
            .with_timeout(5)
            .send()
            .map_or(true, |reply| reply.status_code != 200)
    );
    server.side().put("a", "1", 0).unwrap();
}

#[test]
fn clients_need_a_certificate_of_the_authority() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path(), true);
    client_certificate(folder.path(), "locker").unwrap();
    assert_eq!(health(&server, folder.path(), &[]), "");
    assert!(
        health(&server, folder.path(), &["-cert", "locker.pem", "-key", "locker.key"]).contains(r#""health":"true""#)
    );
    let other = tempfile::tempdir().unwrap();
    certificates(other.path()).unwrap();
    let [cert, key] = ["own.pem", "own.key"].map(|file| other.path().join(file).display().to_string());
    assert_eq!(health(&server, folder.path(), &["-cert", &cert, "-key", &key]), "");
    server.side().put("a", "1", 0).unwrap();
}
