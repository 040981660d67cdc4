//! Real etcd servers: every function of the starter has its effect.

use std::time::Duration;

use leasehold_conformance::Data;
use leasehold_test_servers::EtcdSettings;

#[test]
fn a_server_keeps_its_keys_over_kill_and_start() {
    let mut server = EtcdSettings::new().start().unwrap();
    let lease = server.side().grant(Duration::from_secs(60)).unwrap();
    let revision = server.side().put("a", "1", lease).unwrap();
    let key = server.side().get("a").unwrap().unwrap();
    assert_eq!((key.lease, key.create_revision, &key.value[..]), (lease, revision, &b"1"[..]));
    let found = server.side().lease(lease).unwrap().unwrap();
    assert_eq!((found.ttl, found.keys), (Duration::from_secs(60), vec![b"a".to_vec()]));
    server.kill().unwrap();
    server.start_again(Data::Kept).unwrap();
    assert_eq!(server.side().get("a").unwrap(), Some(key));
    server.stop().unwrap();
    server.start_again(Data::Lost).unwrap();
    assert_eq!(server.side().get("a").unwrap(), None);
}
