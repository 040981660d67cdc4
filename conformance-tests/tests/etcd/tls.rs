//! TLS to a real server, with a private authority and a client's certificate.

use leasehold::ErrorKind;
use leasehold_conformance::harness::{Fault, FaultProxy};
use leasehold_conformance::{DEADLINE, run};
use leasehold_test_servers::{EtcdSettings, EtcdTls, certificates};

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

/// The authority and the server's certificate are replaced at their paths: a new connection reads them again. This
/// server reads its own for each connection.
#[test]
fn rotated_certificates_are_read_for_the_next_connection() {
    run(DEADLINE, || async {
        let folder = tempfile::tempdir().expect("a temporary folder");
        certificates(folder.path()).unwrap_or_else(|error| panic!("{error}"));
        let tls = EtcdTls { folder: folder.path().to_owned(), clients_need_certificates: false };
        let server = EtcdSettings::new().tls(tls).start().unwrap_or_else(|error| panic!("{error}"));
        let proxy = FaultProxy::start(server.addr()).unwrap_or_else(|error| panic!("no fault proxy: {error}"));
        let ca = folder.path().join("ca.pem").display().to_string();
        let url = format!("etcds://localhost:{}/?timeout=10s&ca={ca}", proxy.addr().port());
        let client = leasehold::connect(&url).await.expect("a client");
        for _ in 0..2 {
            client.lock("job").acquire().await.expect("free").release().await.expect("a release");
            certificates(folder.path()).unwrap_or_else(|error| panic!("{error}"));
            proxy.apply(Fault::Disconnect);
        }
        client.lock("job").acquire().await.expect("free").release().await.expect("a release");
    });
}
