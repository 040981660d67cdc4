//! TLS to a real server, with a private authority and a client's certificate.

mod support;

use std::time::{Duration, Instant};

use leasehold_core::backend::LockBackend;
use leasehold_core::{ErrorKind, LockClient};
use leasehold_redis::{QuorumBackend, RedisBackend};
use leasehold_test_servers::{RedisSettings, certificates};
use support::Redis;

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port()
}

#[tokio::test]
async fn a_lock_over_tls() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    certificates(folder.path()).unwrap_or_else(|error| panic!("{error}"));
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (port, ca, cert, key) = (free_port().to_string(), file("ca.pem"), file("own.pem"), file("own.key"));
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
        let port = free_port().to_string();
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
    waits_in_vain(QuorumBackend::connect_lazy(&plain).expect("a URL"), ErrorKind::Auth, "`cert=`").await;
    drop(servers);
}

/// The Sentinel names the server by its host name, for which the certificate is valid.
#[tokio::test]
async fn a_lock_over_tls_behind_a_sentinel() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    certificates(folder.path()).unwrap_or_else(|error| panic!("{error}"));
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (ca, cert, key) = (file("ca.pem"), file("own.pem"), file("own.key"));
    let start = |settings: RedisSettings, port: u16| {
        let lines = [
            format!("tls-port {port}"),
            format!("tls-cert-file {cert}"),
            format!("tls-key-file {key}"),
            format!("tls-ca-cert-file {ca}"),
            "tls-replication yes".to_owned(),
        ];
        lines.into_iter().fold(settings, RedisSettings::line).start().unwrap_or_else(|error| panic!("{error}"))
    };
    let (port, sentinel_port) = (free_port(), free_port());
    let _server = start(RedisSettings::new(), port);
    let names = ["sentinel resolve-hostnames yes", "sentinel announce-hostnames yes"];
    let sentinel = names.into_iter().fold(RedisSettings::new().sentinel(), RedisSettings::line);
    let sentinel = start(sentinel, sentinel_port);
    sentinel.command(&["SENTINEL", "MONITOR", "mymaster", "localhost", &port.to_string(), "1"]).expect("a primary");

    let files = format!("timeout=5s&ca={ca}&cert={cert}&key={key}");
    let plain = sentinel.addr();
    for url in [
        format!("rediss+sentinel://localhost:{sentinel_port}/mymaster?{files}"),
        format!("rediss+sentinel://{plain}/mymaster?sentinel_tls=off&{files}"),
    ] {
        let client =
            LockClient::new(RedisBackend::connect(&url).await.unwrap_or_else(|error| panic!("{url}: {error:?}")));
        client.lock("job").acquire().await.expect("a lock").release().await.expect("a release");
        client.shutdown().await.expect("an end");
    }
    let of_sentinel = format!("{sentinel_port}/mymaster?timeout=5s");
    for (url, hint) in [
        (format!("rediss+sentinel://localhost:{of_sentinel}"), "`ca=`"),
        (format!("redis+sentinel://localhost:{of_sentinel}"), "sentinel_tls=on"),
        (format!("rediss+sentinel://{plain}/mymaster?{files}"), "sentinel_tls=off"),
        // The Sentinel, and not the server.
        (format!("redis+sentinel://{plain}/mymaster?timeout=5s"), "`rediss`"),
    ] {
        waits_in_vain(RedisBackend::connect_lazy(&url).expect("a URL"), ErrorKind::Unsupported, hint).await;
    }
}

/// An acquire that may wait for a minute ends soon, with this kind of error and this advice.
async fn waits_in_vain(backend: impl LockBackend, kind: ErrorKind, hint: &str) {
    let (client, begin) = (LockClient::new(backend), Instant::now());
    let error = client.lock("job").wait(Duration::from_secs(60)).acquire().await.expect_err("TLS is wrong");
    assert!(error.kind() == kind && error.to_string().contains(hint), "{hint}: {error:?}");
    assert!(begin.elapsed() < Duration::from_secs(20), "{hint}: {:?}", begin.elapsed());
}

#[tokio::test]
async fn wrong_tls_ends_a_wait_at_once() {
    let (folder, other) = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder")).into();
    let file = |folder: &tempfile::TempDir, name: &str| folder.path().join(name).display().to_string();
    for folder in [&folder, &other] {
        certificates(folder.path()).unwrap_or_else(|error| panic!("{error}"));
    }
    let (ca, cert, key) = (file(&folder, "ca.pem"), file(&folder, "own.pem"), file(&folder, "own.key"));
    let files = ["--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
    let start = |auth: &str| {
        let (port, plain) = (free_port().to_string(), free_port().to_string());
        let options = ["--tls-port", &port, "--port", &plain, "--bind", "127.0.0.1", "--tls-auth-clients", auth];
        (Redis::start(&[&options[..], &files].concat()), port, plain)
    };
    let (_server, port, plain) = start("no");
    let (_strict, strict, _) = start("yes");
    let (other_ca, other_cert, other_key) = (file(&other, "ca.pem"), file(&other, "own.pem"), file(&other, "own.key"));
    let unknown = format!("cert={other_cert}&key={other_key}");
    use ErrorKind::{Auth, Unsupported};
    for (url, kind, hint) in [
        (format!("rediss://localhost:{plain}?ca={ca}"), Unsupported, "no TLS"),
        (format!("redis://localhost:{port}"), Unsupported, "`rediss`"),
        (format!("redis://localhost:{strict}"), Unsupported, "`rediss`"),
        (format!("rediss://localhost:{port}"), Unsupported, "`ca=`"),
        (format!("rediss://localhost:{port}?ca={other_ca}"), Unsupported, "`ca=`"),
        (format!("rediss://127.0.0.1:{port}?ca={ca}"), Unsupported, "host name"),
        (format!("rediss://localhost:{strict}?ca={ca}"), Auth, "`cert=` and `key=`"),
        (format!("rediss://localhost:{strict}?ca={ca}&{unknown}"), Auth, "`cert=` and `key=`"),
    ] {
        waits_in_vain(RedisBackend::connect_lazy(&url).expect("a URL"), kind, hint).await;
    }
}
