//! The process of one server.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use leasehold_conformance::Data;
use leasehold_test_servers::{ZooKeeperLife, ZooKeeperServer, ZooKeeperSettings};

use super::support::within;

/// A start usually takes half a second, most of it work of a processor.
const START: Duration = Duration::from_secs(10);

pub(crate) fn server() -> ZooKeeperServer {
    ZooKeeperSettings::new().start().unwrap()
}

#[test]
fn it_keeps_its_nodes_over_kill_and_start() {
    let mut server = within(START, server);
    let addr = server.addr();
    server.side().create("/a", "1", ZooKeeperLife::Persistent).unwrap();
    let node = server.side().get("/a").unwrap();
    server.kill().unwrap();
    let error = server.side().get("/a").unwrap_err();
    assert!(
        [ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof, ErrorKind::BrokenPipe].contains(&error.kind()),
        "{error:?}"
    );
    assert_eq!(server.side().get("/a").unwrap_err().kind(), ErrorKind::ConnectionRefused);
    within(START, || server.start_again(Data::Kept)).unwrap();
    assert_eq!(server.side().get("/a").unwrap(), node);
    within(START, || server.stop()).unwrap();
    within(START, || server.start_again(Data::Lost)).unwrap();
    assert_eq!((server.side().get("/a").unwrap(), server.addr()), (None, addr));
    assert!(server.start_again(Data::Kept).is_err(), "it still runs");
}

#[test]
fn paused_it_accepts_connections_and_does_not_reply() {
    let mut server = server();
    server.side().create("/a", "1", ZooKeeperLife::Persistent).unwrap();
    server.pause().unwrap();
    TcpStream::connect(server.addr()).unwrap();
    let start = Instant::now();
    let error = within(Duration::from_secs(6), || server.side().get("/a")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    assert!(start.elapsed() > Duration::from_secs(4), "{error}");
    server.resume().unwrap();
    assert_eq!(server.side().get("/a").unwrap().unwrap().data, b"1");
}

#[test]
fn six_start_at_the_same_time() {
    std::thread::scope(|scope| {
        let starts: Vec<_> = (0..6).map(|_| scope.spawn(server)).collect();
        let servers: Vec<_> = starts.into_iter().map(|start| start.join().unwrap()).collect();
        for (index, server) in servers.iter().enumerate() {
            server.side().create("/a", index.to_string(), ZooKeeperLife::Persistent).unwrap();
        }
        for (index, server) in servers.iter().enumerate() {
            assert_eq!(server.side().get("/a").unwrap().unwrap().data, index.to_string().as_bytes());
        }
    });
}

#[test]
fn the_numbers_of_sequential_nodes_can_be_near_their_end() {
    let mut server = server();
    let create = |server: &ZooKeeperServer| server.side().create("/a/n-", "data", ZooKeeperLife::Sequential).unwrap();
    server.side().create("/a", "data", ZooKeeperLife::Persistent).unwrap();
    server.side().create("/b", "data", ZooKeeperLife::Persistent).unwrap();
    assert_eq!(create(&server), "/a/n-0000000000");
    server.kill().unwrap();
    server.set_counter("/a", i32::MAX - 1).unwrap();
    assert!(server.set_counter("/c", 1).unwrap_err().to_string().contains("/c"));
    server.start_again(Data::Kept).unwrap();
    assert_eq!(create(&server), "/a/n-2147483646");
    assert_eq!(create(&server), "/a/n-2147483647");
    // ZooKeeper 3.8 then gives every node the last number.
    let again = server.side().create("/a/n-", "data", ZooKeeperLife::Sequential);
    assert!(again.unwrap_err().to_string().contains("node exists"));
    assert_eq!(server.side().create("/a/m-", "data", ZooKeeperLife::Sequential).unwrap(), "/a/m-2147483647");
    let tree = server.side().tree("/a").unwrap();
    assert!(tree.iter().all(|node| node.data == b"data"), "{tree:?}");
    assert_eq!(server.side().get("/b").unwrap().unwrap().children_version, 0);
}
