//! TLS to a real server, with a private authority and a client's certificate.

use std::net::TcpStream;

use leasehold::ErrorKind;
use leasehold_conformance::harness::Port;
use leasehold_conformance::{DEADLINE, Data, run};
use leasehold_test_servers::{ZooKeeperSettings, certificates};

use super::common::eventually;
use super::wrong_tls::ends_a_wait;

#[test]
fn a_lock_over_tls() {
    run(DEADLINE, || async {
        let [folder, others] = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
        for folder in [&folder, &others] {
            certificates(folder.path()).unwrap_or_else(|error| panic!("{error}"));
        }
        let file = |name: &str| folder.path().join(name).display().to_string();
        let other = |name: &str| others.path().join(name).display().to_string();
        let (ca, cert, key) = (file("ca.pem"), file("own.pem"), file("own.key"));
        // The server reads both from one file.
        let both = [&key, &cert].map(|path| std::fs::read_to_string(path).expect("a file")).concat();
        std::fs::write(file("server.pem"), both).expect("a file");
        // A server that was just started may need longer for its first handshake than the default.
        let authority = format!("timeout=10s&ca={ca}");
        let own = format!("{authority}&cert={cert}&key={key}");
        for clients_need_certificates in [false, true] {
            let port = Port::free().expect("a port").number();
            let server = ZooKeeperSettings::new()
                .line("serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory")
                .line(format!("secureClientPort={port}"))
                .line("secureClientPortAddress=127.0.0.1")
                .line(format!("ssl.keyStore.location={}", file("server.pem")))
                .line("ssl.keyStore.type=PEM")
                .line(format!("ssl.trustStore.location={ca}"))
                .line("ssl.trustStore.type=PEM")
                .line(format!("ssl.clientAuth={}", if clients_need_certificates { "need" } else { "none" }));
            let server = server.start().unwrap_or_else(|error| panic!("{error}"));
            // The server listens on that port a moment later.
            eventually("the server takes TLS", || TcpStream::connect(("127.0.0.1", port)).is_ok()).await;
            let connect = async |scheme: &str, more: &str| {
                leasehold::connect(&format!("{scheme}://localhost:{port}/?{more}")).await
            };
            let locks = async |scheme: &str, more: &str| {
                let client = connect(scheme, more).await?;
                client.lock("job").acquire().await?.release().await?;
                client.shutdown().await
            };
            locks("zks", &own).await.expect("the client has a certificate");
            // A file alone means TLS, too.
            locks("zk", &own).await.expect("the client has a certificate");
            let anonymous = locks("zks", &authority).await;
            assert_eq!(anonymous.is_ok(), !clients_need_certificates, "{anonymous:?}");
            let no_tls = server.addr().port();
            let other_files = format!("cert={}&key={}", other("own.pem"), other("own.key"));
            let mut wrong = vec![
                (format!("zk://localhost:{port}/?timeout=10s"), ErrorKind::Unsupported, "`zks://`"),
                (format!("zks://localhost:{no_tls}/?{own}"), ErrorKind::Unsupported, "`zk://`"),
                // An authority with the same name.
                (
                    format!("zks://localhost:{port}/?timeout=10s&ca={}", other("ca.pem")),
                    ErrorKind::Unsupported,
                    "`ca=`",
                ),
                (format!("zks://127.0.0.1:{port}/?{own}"), ErrorKind::Unsupported, "host name"),
                // Several servers, none of which can be used.
                (format!("zks://127.0.0.1:{port},127.0.0.1:{port}/?{own}"), ErrorKind::Unsupported, "host name"),
            ];
            if clients_need_certificates {
                let url = format!("zks://localhost:{port}/?{authority}");
                wrong.push((format!("{url}&{other_files}"), ErrorKind::Auth, "`cert=` and `key=`"));
                wrong.push((url, ErrorKind::Auth, "`cert=` and `key=`"));
            }
            for (url, kind, advice) in wrong {
                ends_a_wait(&url, kind, advice).await;
            }
            // One server that cannot be used keeps nobody from the other one.
            let client = leasehold::connect_lazy(&format!("zk://localhost:{port},localhost:{no_tls}/?timeout=10s"));
            let client = client.expect("a URL");
            client.lock("job").acquire().await.expect("free").release().await.expect("a release");
            let missing = connect("zks", "ca=nowhere.pem").await.expect_err("there is no such file");
            assert!(
                missing.kind() == ErrorKind::InvalidInput && missing.to_string().contains("nowhere.pem"),
                "{missing}"
            );
        }
    });
}

/// The authority, the server's and the client's certificate are replaced at their paths while the server restarts: the
/// client reads them again, and its session continues.
#[test]
fn rotated_certificates_are_read_for_the_next_connection() {
    run(DEADLINE, || async {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = |name: &str| folder.path().join(name).display().to_string();
        let (ca, cert, key) = (file("ca.pem"), file("own.pem"), file("own.key"));
        let rotate = || {
            certificates(folder.path()).unwrap_or_else(|error| panic!("{error}"));
            let both = [&key, &cert].map(|path| std::fs::read_to_string(path).expect("a file")).concat();
            std::fs::write(file("server.pem"), both).expect("a file");
        };
        rotate();
        let port = Port::free().expect("a port").number();
        let server = ZooKeeperSettings::new()
            .line("serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory")
            .line(format!("secureClientPort={port}"))
            .line("secureClientPortAddress=127.0.0.1")
            .line(format!("ssl.keyStore.location={}", file("server.pem")))
            .line("ssl.keyStore.type=PEM")
            .line(format!("ssl.trustStore.location={ca}"))
            .line("ssl.trustStore.type=PEM")
            .line("ssl.clientAuth=need");
        let mut server = server.start().unwrap_or_else(|error| panic!("{error}"));
        let listens = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        eventually("the server takes TLS", listens).await;
        let url = format!("zks://localhost:{port}/?timeout=10s&ca={ca}&cert={cert}&key={key}");
        let client = leasehold::connect(&url).await.expect("a client");
        let guard = client.lock("held").acquire().await.expect("free");
        server.stop().expect("it runs");
        rotate();
        server.start_again(Data::Kept).expect("it starts");
        client.lock("other").acquire().await.expect("free").release().await.expect("a release");
        assert!(guard.is_held());
        guard.release().await.expect("a release");
    });
}
