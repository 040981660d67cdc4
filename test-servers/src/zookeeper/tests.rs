//! Nodes, sessions and statistics of a server.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::session::Session;
use super::{ZooKeeperEnsemble, ZooKeeperLife, ZooKeeperServer, ZooKeeperSettings};

/// Longer than a test.
const LONG: Duration = Duration::from_secs(60);

/// How long a change may take that usually takes less than a second.
const BOUND: Duration = Duration::from_secs(20);

/// The flag of an ephemeral node.
const EPHEMERAL: i32 = 1;

fn server() -> ZooKeeperServer {
    ZooKeeperSettings::new().start().unwrap()
}

fn client(addr: SocketAddr) -> Session {
    Session::open(addr, LONG).unwrap()
}

fn create(client: &mut Session, path: &str, acl: (&str, &str), flags: i32) {
    let (scheme, user) = acl;
    let created = client.call(1, |request| {
        let request = request.text(path).text("secret");
        request.int(1).int(31).text(scheme).text(user).int(flags)
    });
    created.unwrap();
}

const ANYONE: (&str, &str) = ("world", "anyone");

fn read(client: &mut Session, path: &str, watch: bool) -> std::io::Result<()> {
    client.call(4, |request| request.text(path).bool(watch)).map(drop)
}

fn wait_until(condition: impl Fn() -> bool) {
    let until = Instant::now() + BOUND;
    while !condition() {
        assert!(Instant::now() < until, "it is not so within {BOUND:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_tree_is_read_with_data_and_transactions() {
    let server = server();
    let side = server.side();
    let raw = [0, 255, 0x80];
    side.create("/a", "", ZooKeeperLife::Container).unwrap();
    side.create("/a/b", raw, ZooKeeperLife::Persistent).unwrap();
    assert_eq!(side.create("/a/b/n-", "1", ZooKeeperLife::Sequential).unwrap(), "/a/b/n-0000000000");
    assert_eq!(side.create("/a/b/n-", "2", ZooKeeperLife::Sequential).unwrap(), "/a/b/n-0000000001");
    side.set("/a/b", raw).unwrap();
    let tree = side.tree("/a").unwrap();
    let paths: Vec<_> = tree.iter().map(|node| &*node.path).collect();
    assert_eq!(paths, ["/a", "/a/b", "/a/b/n-0000000000", "/a/b/n-0000000001"]);
    let [_, b, one, other] = &tree[..] else { panic!("{tree:?}") };
    assert_eq!((&b.data[..], b.version, b.children_version, b.children), (&raw[..], 1, 2, 2));
    assert_eq!((b.created + 1, b.changed), (one.created, one.created + 2));
    assert_eq!((one.created, &one.data[..], one.session), (one.changed, &b"1"[..], 0));
    assert_eq!(other.created, one.created + 1);
    assert!(!format!("{tree:?}").contains("n-"), "a name may contain an owner token");

    assert!(side.delete("/a/b").unwrap_err().to_string().contains("not empty"));
    assert!(side.delete("/a/b/n-0000000000").unwrap());
    assert!(!side.delete("/a/b/n-0000000000").unwrap());
    assert_eq!(side.children("/a/b").unwrap(), ["n-0000000001"]);
    side.delete_all("/a").unwrap();
    assert_eq!(
        (side.get("/a").unwrap(), side.children("/a").unwrap(), side.tree("/a").unwrap()),
        (None, vec![], vec![])
    );
    assert!(side.tree("/").unwrap().iter().any(|node| node.path == "/zookeeper/quota"));
    assert!(side.create("/x/y", "", ZooKeeperLife::Persistent).unwrap_err().to_string().contains("no node"));
}

#[test]
fn empty_containers_are_swept() {
    let server = ZooKeeperSettings::new().property("znode.container.checkIntervalMs=200").start().unwrap();
    let side = server.side();
    side.create("/a", "", ZooKeeperLife::Container).unwrap();
    side.create("/a/b", "", ZooKeeperLife::Persistent).unwrap();
    side.delete("/a/b").unwrap();
    wait_until(|| side.get("/a").unwrap().is_none());
}

#[test]
fn an_expired_session_loses_its_nodes_at_once() {
    let server = server();
    let side = server.side();
    assert!(side.sessions().unwrap().is_empty(), "those of the test do not count");
    let (mut one, other) = (client(server.addr()), client(server.addr()));
    create(&mut one, "/a", ANYONE, EPHEMERAL);
    assert_eq!(side.get("/a").unwrap().unwrap().session, one.id());
    assert_eq!(side.sessions().unwrap(), [one.id(), other.id()].into());
    assert_eq!(side.connected_sessions().unwrap().len(), 2);
    side.expire(one.id()).unwrap();
    assert_eq!(side.get("/a").unwrap(), None);
    assert_eq!(side.sessions().unwrap(), [other.id()].into());
    assert!(read(&mut one, "/", false).is_err(), "its session has ended");
    assert!(side.expire(one.id()).unwrap_err().to_string().contains("expired"));
    drop(other);
    wait_until(|| side.connected_sessions().unwrap().is_empty());
    assert_eq!(side.sessions().unwrap().len(), 1, "a session outlives its connection");
}

#[test]
fn a_session_of_another_server_expires_by_the_leader() {
    let ensemble = ZooKeeperSettings::new().start_ensemble().unwrap();
    let follower = ensemble.server((ensemble.leader().unwrap() + 1) % ZooKeeperEnsemble::SERVERS);
    let mut client = client(follower.addr());
    create(&mut client, "/a", ANYONE, EPHEMERAL);
    let side = ensemble.side().unwrap();
    wait_until(|| side.sessions().unwrap() == [client.id()].into());
    assert_eq!(follower.side().connected_sessions().unwrap(), [client.id()]);
    side.expire(client.id()).unwrap();
    wait_until(|| follower.side().get("/a").unwrap().is_none());
    wait_until(|| side.sessions().unwrap().is_empty());
}

#[test]
fn the_shortest_session_is_two_ticks() {
    let server = server();
    let start = Instant::now();
    let client = Session::open(server.addr(), Duration::from_millis(1)).unwrap();
    wait_until(|| !server.side().sessions().unwrap().contains(&client.id()));
    assert!(start.elapsed() > Duration::from_millis(200));
}

#[test]
fn the_test_may_read_and_delete_what_a_user_protects() {
    let server = server();
    let (mut owner, mut other) = (client(server.addr()), client(server.addr()));
    owner.authenticate("digest", "locker:pass-word").unwrap();
    create(&mut owner, "/a", ("auth", ""), 0);
    read(&mut owner, "/a", false).unwrap();
    assert!(read(&mut other, "/a", false).unwrap_err().to_string().contains("no authentication"));
    assert_eq!(server.side().get("/a").unwrap().unwrap().data, b"secret");
    server.side().delete_all("/a").unwrap();
}

#[test]
fn watches_and_requests_are_counted() {
    let server = server();
    let number = |name: &str| server.side().statistics().unwrap()[name];
    let mut client = client(server.addr());
    let (reads, writes) = (number("cnt_readlatency"), number("cnt_updatelatency"));
    assert!(number("watch_count").abs() < 0.5);
    read(&mut client, "/zookeeper", true).unwrap();
    create(&mut client, "/a", ANYONE, EPHEMERAL);
    assert!((number("watch_count") - 1.0).abs() < 0.5);
    assert!((number("cnt_readlatency") - reads - 1.0).abs() < 0.5);
    assert!((number("cnt_updatelatency") - writes - 1.0).abs() < 0.5);
    assert!(server.side().word("wchs").unwrap().contains("Total watches:1"));
}
