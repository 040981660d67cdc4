//! Keys, leases and statistics of a server.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use leasehold_test_servers::{EtcdServer, EtcdSettings};

use super::support::wait_until;

const SOON: Duration = Duration::from_secs(2);

/// Watches a key as a client that uses the JSON gateway. The watch is on a stream of its own, and ends with the
/// connection.
fn watch(server: &EtcdServer, key: &str) -> TcpStream {
    let body = format!(r#"{{"create_request":{{"key":"{}"}}}}"#, base64(key));
    let mut stream = TcpStream::connect(server.addr()).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    write!(stream, "POST /v3/watch HTTP/1.1\r\nHost: etcd\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains(r#""created":true"#) {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        read.extend(byte);
    }
    stream
}

/// Sends a request as a client that uses the JSON gateway, and returns the reply.
pub(crate) fn request(server: &EtcdServer, path: &str, token: Option<&str>, body: &str) -> String {
    let mut request = minreq::post(format!("{}/v3/{path}", server.url())).with_timeout(5).with_body(body);
    if let Some(token) = token {
        request = request.with_header("Authorization", token);
    }
    request.send().unwrap().as_str().unwrap().to_owned()
}

pub(crate) fn base64(text: &str) -> String {
    use base64::Engine as _;

    base64::engine::general_purpose::STANDARD.encode(text)
}

#[test]
fn keys_are_read_with_their_revisions_and_raw_bytes() {
    let server = EtcdSettings::new().start().unwrap();
    let side = server.side();
    let raw = [0, 255, b'"', 0x80];
    let lease = side.grant(Duration::from_secs(60)).unwrap();
    let first = side.put([b"a/", &raw[..]].concat(), raw, lease).unwrap();
    side.put("a/b", "old", 0).unwrap();
    let last = side.put("a/b", "new", 0).unwrap();
    side.put("a0", "after all keys with the prefix", 0).unwrap();
    assert_eq!(side.revision().unwrap(), last + 1);

    let keys = side.keys("a/").unwrap();
    let [one, other] = &keys[..] else { panic!("{keys:?}") };
    assert_eq!((&one.key[2..], &one.value[..], one.lease), (&raw[..], &raw[..], lease));
    assert_eq!((one.create_revision, one.mod_revision, one.version), (first, first, 1));
    assert_eq!((&other.key[..], &other.value[..], other.lease), (&b"a/b"[..], &b"new"[..], 0));
    assert_eq!((other.create_revision, other.mod_revision, other.version), (last - 1, last, 2));
    assert!(!format!("{keys:?}").contains("key:"), "a key may contain an owner token");

    assert!(side.delete("a/b").unwrap());
    assert!(!side.delete("a/b").unwrap());
    assert_eq!(side.get("a/b").unwrap(), None);
    side.put([255, 255], "", 0).unwrap();
    assert_eq!(side.keys([255]).unwrap().len(), 1);
    assert_eq!(side.keys("").unwrap().len(), 3);
    assert_eq!(side.delete_all("").unwrap(), 3);
}

#[test]
fn leases_are_listed_with_their_keys_and_end_when_revoked() {
    let server = EtcdSettings::new().start().unwrap();
    let side = server.side();
    let [one, other] = [20, 60].map(|seconds| side.grant(Duration::from_secs(seconds)).unwrap());
    side.put("a", "", one).unwrap();
    side.put("b", "", one).unwrap();
    let mut leases = side.leases().unwrap();
    leases.sort_unstable();
    assert!(leases == [one, other] || leases == [other, one], "{leases:?}");
    let found = side.lease(one).unwrap().unwrap();
    assert_eq!((found.id, found.ttl, found.keys.len()), (one, Duration::from_secs(20), 2));
    assert!((Duration::from_secs(15)..=Duration::from_secs(20)).contains(&found.left), "{found:?}");
    side.revoke(one).unwrap();
    assert_eq!((side.lease(one).unwrap(), side.get("a").unwrap()), (None, None));
    assert!(side.revoke(one).unwrap_err().to_string().contains("lease not found"));
    assert_eq!(side.leases().unwrap(), [other]);
}

#[test]
fn the_shortest_lease_is_one_second() {
    let server = EtcdSettings::new().start().unwrap();
    let lease = server.side().grant(Duration::from_secs(1)).unwrap();
    assert_eq!(server.side().lease(lease).unwrap().unwrap().ttl, Duration::from_secs(1));
    server.side().put("a", "", lease).unwrap();
    wait_until(Duration::from_secs(3), || server.side().get("a").unwrap().is_none());
}

#[test]
fn requests_and_streams_of_clients_are_counted_without_those_of_the_test() {
    let server = EtcdSettings::new().start().unwrap();
    let side = server.side();
    side.put("a", "", 0).unwrap();
    side.keys("").unwrap();
    assert_eq!(side.statistics().unwrap().requests(), BTreeMap::new());
    let key = base64("a");
    for _ in 0..3 {
        request(&server, "kv/range", None, &format!(r#"{{"key":"{key}"}}"#));
    }
    let watches = ["a", "b"].map(|key| watch(&server, key));
    let statistics = side.statistics().unwrap();
    let counts = |counts: &[(&str, u64)]| counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    assert_eq!(statistics.requests(), counts(&[("Range", 3), ("Watch", 2)]));
    assert_eq!((statistics.open_streams(), statistics.watches()), (counts(&[("Watch", 2)]), 2));
    drop(watches);
    wait_until(SOON, || side.statistics().unwrap().open_streams().is_empty());
    assert_eq!(side.statistics().unwrap().watches(), 0);
}
