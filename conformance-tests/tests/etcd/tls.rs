//! TLS to a real server, with a private authority and a client's certificate.

use std::time::Duration;

use leasehold::ErrorKind;
use leasehold_conformance::harness::{Fault, FaultProxy};
use leasehold_conformance::{DEADLINE, Data, run};
use leasehold_test_servers::{EtcdSettings, EtcdTls, certificates};

use super::common::{eventually, hold};

#[test]
fn a_lock_over_tls() {
    run(DEADLINE, || async {
        let folder = tempfile::tempdir().expect("a temporary folder");
        certificates(folder.path()).unwrap_or_else(|error| panic!("{error}"));
        let file = |name: &str| folder.path().join(name).display().to_string();
        let (ca, cert, key) = (file("ca.pem"), file("own.pem"), file("own.key"));
        // A server that was just started may need longer for its first handshake than the default.
        let authority = format!("timeout=10s&ca={ca}");
        let own = format!("{authority}&cert={cert}&key={key}");
        for clients_need_certificates in [false, true] {
            let tls = EtcdTls { folder: folder.path().to_owned(), clients_need_certificates };
            let server = EtcdSettings::new().tls(tls).start().unwrap_or_else(|error| panic!("{error}"));
            let connect = async |scheme: &str, more: &str| {
                leasehold::connect(&format!("{scheme}://localhost:{}/?{more}", server.addr().port())).await
            };
            let locks = async |scheme: &str, more: &str| {
                let client = connect(scheme, more).await?;
                client.lock("job").acquire().await?.release().await?;
                client.shutdown().await
            };
            locks("etcds", &own).await.expect("the client has a certificate");
            // A file alone means TLS, too.
            locks("etcd", &own).await.expect("the client has a certificate");
            let anonymous = locks("etcds", &authority).await;
            assert_eq!(anonymous.is_ok(), !clients_need_certificates, "{anonymous:?}");
            for (scheme, more) in [("etcd", ""), ("etcds", "")] {
                let refused =
                    locks(scheme, more).await.expect_err("plain text, or an authority that is not one of the world's");
                assert!(matches!(refused.kind(), ErrorKind::Unavailable | ErrorKind::Indeterminate), "{refused:?}");
            }
            let missing = connect("etcds", "ca=nowhere.pem").await.expect_err("there is no such file");
            assert!(
                missing.kind() == ErrorKind::InvalidInput && missing.to_string().contains("nowhere.pem"),
                "{missing}"
            );
        }
    });
}

const TTL: Duration = Duration::from_secs(15);

/// The authority and the server's certificate are replaced at their paths: a new connection reads them again, and the
/// lease goes on. This server reads its own for each connection.
#[test]
fn rotated_certificates_are_read_for_the_next_connection() {
    run(DEADLINE, || async {
        let folder = tempfile::tempdir().expect("a temporary folder");
        certificates(folder.path()).unwrap_or_else(|error| panic!("{error}"));
        let tls = EtcdTls { folder: folder.path().to_owned(), clients_need_certificates: false };
        let server = EtcdSettings::new().tls(tls).start().unwrap_or_else(|error| panic!("{error}"));
        let proxy = FaultProxy::start(server.addr()).unwrap_or_else(|error| panic!("no fault proxy: {error}"));
        let ca = folder.path().join("ca.pem").display().to_string();
        let url = format!("etcds://localhost:{}/?timeout=5s&ca={ca}", proxy.addr().port());
        let client = leasehold::connect(&url).await.expect("a client");
        let guard = client.lock("held").ttl(TTL).acquire().await.expect("free");
        for _ in 0..2 {
            certificates(folder.path()).unwrap_or_else(|error| panic!("{error}"));
            let renewed = client.stats().renewed;
            proxy.apply(Fault::Disconnect);
            hold(&client, "other").await.release().await.expect("a release");
            eventually("the lease is renewed", || client.stats().renewed > renewed).await;
        }
        assert!(guard.is_held());
        guard.release().await.expect("a release");
    });
}

/// The same for the client's certificate and its key. This server reads the authority of clients when it starts.
#[test]
fn a_rotated_certificate_of_the_client_is_read_for_the_next_connection() {
    run(DEADLINE, || async {
        let folder = tempfile::tempdir().expect("a temporary folder");
        certificates(folder.path()).unwrap_or_else(|error| panic!("{error}"));
        let tls = EtcdTls { folder: folder.path().to_owned(), clients_need_certificates: true };
        let mut server = EtcdSettings::new().tls(tls).start().unwrap_or_else(|error| panic!("{error}"));
        let file = |name: &str| folder.path().join(name).display().to_string();
        let files = format!("ca={}&cert={}&key={}", file("ca.pem"), file("own.pem"), file("own.key"));
        let url = format!("etcds://localhost:{}/?timeout=5s&{files}", server.addr().port());
        let client = leasehold::connect(&url).await.expect("a client");
        let guard = client.lock("held").ttl(TTL).acquire().await.expect("free");
        for _ in 0..2 {
            server.kill().expect("it runs");
            certificates(folder.path()).unwrap_or_else(|error| panic!("{error}"));
            let renewed = client.stats().renewed;
            server.start_again(Data::Kept).expect("it starts");
            hold(&client, "other").await.release().await.expect("a release");
            eventually("the lease is renewed", || client.stats().renewed > renewed).await;
        }
        assert!(guard.is_held());
        guard.release().await.expect("a release");
    });
}
