//! What a client reports about a server that accepts no session.

use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use leasehold::zk::ZkBackend;
use leasehold_conformance::harness::Port;
use leasehold_conformance::{DEADLINE, run};
use leasehold_core::{ErrorKind, LockClient};
use leasehold_test_servers::ZooKeeperSettings;

use super::common::eventually;

/// Asserts that a connect and the first acquire name each address and each cause, and do not say that anything may have
/// taken effect.
async fn says(addresses: &[&str], causes: &[&str]) {
    let url = format!("zk://{}/?tick=100ms", addresses.join(","));
    let connected = ZkBackend::connect(&url).await.map(drop).expect_err("no server takes a session");
    let client = LockClient::new(ZkBackend::connect_lazy(&url).expect("a backend"));
    let acquired = client.lock("job").try_acquire().await.expect_err("no server takes a session");
    for error in [connected, acquired] {
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{text}");
        for part in addresses.iter().chain(causes) {
            assert!(text.contains(part), "no {part:?} in {text:?}");
        }
        assert!(!text.contains("taken effect"), "{text}");
    }
}

#[test]
fn a_client_names_the_address_and_the_cause() {
    run(DEADLINE, || async {
        let port = Port::free().expect("a port");
        let (nobody, unknown) = (format!("127.0.0.1:{}", port.number()), "nowhere.invalid:2181");
        says(&[&nobody], &["refused"]).await;
        says(&[unknown], &["unknown host name"]).await;
        says(&[&nobody, unknown], &["refused", "unknown host name"]).await;
    });
}

#[test]
fn a_client_names_the_limit_of_connections() {
    run(DEADLINE, || async {
        let server = ZooKeeperSettings::new().line("maxClientCnxns=2").start().expect("a server");
        let connect = || TcpStream::connect(server.addr()).expect("a connection");
        let others = [connect(), connect()];
        // The server counts a connection a moment later.
        eventually("the server takes no more connections", || {
            let mut third = connect();
            third.set_read_timeout(Some(Duration::from_millis(50))).expect("a socket");
            matches!(third.read(&mut [0]), Ok(0))
        })
        .await;
        says(&[&server.addr().to_string()], &["maxClientCnxns"]).await;
        drop(others);
    });
}
