//! TLS to a real server, with a private authority and a client's certificate.

mod support;

use leasehold_core::{ErrorKind, LockClient};
use leasehold_redis::{QuorumBackend, RedisBackend};
use leasehold_test_servers::certificates;
use support::Redis;

#[tokio::test]
async fn a_lock_over_tls() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    certificates(folder.path()).unwrap_or_else(|error| panic!("{error}"));
    let file = |name: &str| folder.path().join(name).display().to_string();
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
    let (port, ca, cert, key) = (port.to_string(), file("ca.pem"), file("own.pem"), file("own.key"));
    let files = ["--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
    let options = ["--tls-port", &port, "--bind", "127.0.0.1", "--tls-auth-clients", "yes"];
    let _server = Redis::start(&[&options[..], &files].concat());

    let plain = format!("rediss://localhost:{port}/?ca={ca}");
    let whole = format!("{plain}&cert={cert}&key={key}");
    let backend = RedisBackend::connect(&whole).await.expect("a connection");
    let client = LockClient::new(backend);
    let guard = client.lock("job").acquire().await.expect("a lock");
    guard.release().await.expect("a release");
    client.shutdown().await.expect("an end");

    // Without the client's certificate, and with an authority that is not the server's.
    assert!(RedisBackend::connect(&plain).await.is_err());
    assert!(RedisBackend::connect(&format!("rediss://localhost:{port}")).await.is_err());
    let half = RedisBackend::connect(&format!("{plain}&cert={cert}")).await.unwrap_err();
    assert_eq!(half.kind(), ErrorKind::InvalidInput);
    let none = RedisBackend::connect(&format!("rediss://localhost:{port}/?ca=nowhere.pem")).await.unwrap_err();
    assert!(none.kind() == ErrorKind::InvalidInput && none.to_string().contains("nowhere.pem"), "{none}");
}

#[tokio::test]
async fn a_quorum_over_tls() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    certificates(folder.path()).unwrap_or_else(|error| panic!("{error}"));
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (ca, cert, key) = (file("ca.pem"), file("own.pem"), file("own.key"));
    let start = |_| {
        let port =
            std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
        let port = port.to_string();
        let files = ["--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
        let options = ["--tls-port", &port, "--bind", "127.0.0.1", "--tls-auth-clients", "yes"];
        (Redis::start(&[&options[..], &files].concat()), format!("localhost:{port}"))
    };
    let (servers, hosts): (Vec<_>, Vec<_>) = (0..3).map(start).unzip();
    let plain = format!("rediss+quorum://{}/?ca={ca}", hosts.join(","));
    let backend = QuorumBackend::connect(&format!("{plain}&cert={cert}&key={key}")).await.expect("a quorum");
    let client = LockClient::new(backend);
    let guard = client.lock("job").acquire().await.expect("a lock");
    guard.release().await.expect("a release");
    client.shutdown().await.expect("an end");
    // Without the client's certificate.
    let error = QuorumBackend::connect(&plain).await.expect_err("a certificate is missing");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    drop(servers);
}
