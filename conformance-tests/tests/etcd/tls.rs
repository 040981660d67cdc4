//! TLS to a real server, with a private authority and a client's certificate.

use std::time::Duration;

use leasehold::ErrorKind;
use leasehold_conformance::harness::{Fault, FaultProxy};
use leasehold_conformance::{DEADLINE, Data, run};
use leasehold_test_servers::{EtcdSettings, EtcdTls, certificates};

use super::common::{eventually, hold};
use super::wrong_tls::ends_a_wait;

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
            let missing = connect("etcds", "ca=nowhere.pem").await.expect_err("there is no such file");
            assert!(
                missing.kind() == ErrorKind::InvalidInput && missing.to_string().contains("nowhere.pem"),
                "{missing}"
            );
        }
    });
}

/// Each row ends a wait: waiting cures none of it.
#[test]
fn wrong_tls_ends_a_wait() {
    run(DEADLINE, || async {
        let [folder, others] = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
        for folder in [&folder, &others] {
            certificates(folder.path()).unwrap_or_else(|error| panic!("{error}"));
        }
        let file = |name: &str| format!("{}/{name}", folder.path().display());
        let other = |name: &str| format!("{}/{name}", others.path().display());
        let (ca, other_ca) = (file("ca.pem"), other("ca.pem"));
        let other_files = format!("cert={}&key={}", other("own.pem"), other("own.key"));
        let start = |settings: EtcdSettings| settings.start().unwrap_or_else(|error| panic!("{error}"));
        let secure = |clients_need_certificates| {
            let tls = EtcdTls { folder: folder.path().to_owned(), clients_need_certificates };
            start(EtcdSettings::new().tls(tls))
        };
        let (plain, tls, strict) = (start(EtcdSettings::new()), secure(false), secure(true));
        let [plain, tls, strict] = [&plain, &tls, &strict].map(|server| server.addr().port());
        let timeout = "timeout=5s";
        for (url, kind, advice) in [
            (format!("etcds://localhost:{plain}/?ca={ca}&{timeout}"), ErrorKind::Unsupported, "no TLS"),
            (format!("etcd://localhost:{tls}/?{timeout}"), ErrorKind::Unsupported, "`etcds://`"),
            (format!("etcd://user:word@localhost:{strict}/?{timeout}"), ErrorKind::Unsupported, "`etcds://`"),
            // An authority that is not one of the world's, and one that has the same name.
            (format!("etcds://localhost:{tls}/?{timeout}"), ErrorKind::Unsupported, "`ca=`"),
            (format!("etcds://localhost:{tls}/?ca={other_ca}&{timeout}"), ErrorKind::Unsupported, "`ca=`"),
            (format!("etcds://127.0.0.1:{tls}/?ca={ca}&{timeout}"), ErrorKind::Unsupported, "host name"),
            (format!("etcds://localhost:{strict}/?ca={ca}&{timeout}"), ErrorKind::Auth, "`cert=` and `key=`"),
            (format!("etcds://localhost:{strict}/?ca={ca}&{other_files}&{timeout}"), ErrorKind::Auth, "`cert=`"),
            // Several members, none of which can be used.
            (format!("etcd://localhost:{tls},localhost:{strict}/?{timeout}"), ErrorKind::Unsupported, "`etcds://`"),
        ] {
            ends_a_wait(&url, kind, advice).await;
        }
        // One member that cannot be used keeps nobody from the other one.
        let url = format!("etcd://localhost:{tls},localhost:{plain}/?{timeout}");
        let client = leasehold::connect_lazy(&url).expect("a URL");
        hold(&client, "job").await.release().await.expect("a release");
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
