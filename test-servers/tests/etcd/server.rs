//! The process of one member.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use leasehold_conformance::Data;
use leasehold_test_servers::{EtcdServer, EtcdSettings};

use super::support::{wait_until, within};

/// A start usually takes a tenth of a second.
const START: Duration = Duration::from_secs(5);

fn server() -> EtcdServer {
    EtcdSettings::new().start().unwrap()
}

#[test]
fn it_keeps_its_keys_over_kill_and_start() {
    let mut server = within(START, server);
    let (addr, url) = (server.addr(), server.url());
    server.side().put("a", "1", 0).unwrap();
    let key = server.side().get("a").unwrap();
    server.kill().unwrap();
    assert_eq!(server.side().get("a").unwrap_err().kind(), ErrorKind::ConnectionRefused);
    within(START, || server.start_again(Data::Kept)).unwrap();
    assert_eq!(server.side().get("a").unwrap(), key);
    server.stop().unwrap();
    within(START, || server.start_again(Data::Lost)).unwrap();
    assert_eq!(server.side().get("a").unwrap(), None);
    assert_eq!((server.addr(), server.url()), (addr, url));
    assert!(server.start_again(Data::Kept).is_err(), "it still runs");
}

#[test]
fn paused_it_accepts_connections_and_does_not_reply() {
    let mut server = server();
    server.side().put("a", "1", 0).unwrap();
    server.pause().unwrap();
    assert!(!server.is_running() && server.id().is_some());
    TcpStream::connect(server.addr()).unwrap();
    let start = Instant::now();
    let error = within(Duration::from_secs(6), || server.side().get("a")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(start.elapsed() > Duration::from_secs(4), "{error}");
    server.resume().unwrap();
    assert!(server.is_running());
    assert_eq!(server.side().get("a").unwrap().unwrap().value, b"1");
}

#[test]
fn an_orderly_stop_takes_no_longer_than_its_grace() {
    let mut server = server();
    // A paused server cannot react to the orderly stop.
    server.pause().unwrap();
    within(START, || server.stop_within(Duration::from_millis(200))).unwrap();
    assert_eq!(server.id(), None);
    within(START, || server.start_again(Data::Kept)).unwrap();
}

#[test]
fn connections_of_clients_are_counted_without_those_of_the_test() {
    let server = server();
    server.side().put("a", "1", 0).unwrap();
    assert_eq!(server.connections().unwrap(), 0);
    let clients = [0; 3].map(|_| TcpStream::connect(server.addr()).unwrap());
    wait_until(START, || server.connections().unwrap() == 3);
    drop(clients);
    wait_until(START, || server.connections().unwrap() == 0);
}

#[test]
fn twelve_start_at_the_same_time() {
    std::thread::scope(|scope| {
        let starts: Vec<_> = (0..12).map(|_| scope.spawn(server)).collect();
        let servers: Vec<_> = starts.into_iter().map(|start| start.join().unwrap()).collect();
        for (index, server) in servers.iter().enumerate() {
            server.side().put("a", index.to_string(), 0).unwrap();
        }
        for (index, server) in servers.iter().enumerate() {
            assert_eq!(server.side().get("a").unwrap().unwrap().value, index.to_string().as_bytes());
        }
    });
}
