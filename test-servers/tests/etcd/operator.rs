//! What an operator does with a server.

use leasehold_test_servers::EtcdSettings;

#[test]
fn old_revisions_are_compacted() {
    let server = EtcdSettings::new().start().unwrap();
    let side = server.side();
    let revision = (0..5).map(|_| side.put("a", "", 0).unwrap()).last().unwrap();
    side.compact(revision).unwrap();
    let compacted = side.statistics().unwrap().number("etcd_debugging_mvcc_compact_revision");
    assert!((compacted - revision as f64).abs() < 0.5, "{compacted} {revision}");
    assert!(side.compact(revision).unwrap_err().to_string().contains("has been compacted"));
    assert!(side.compact(revision + 1).unwrap_err().to_string().contains("future revision"));
    assert_eq!(side.get("a").unwrap().unwrap().version, 5);
}

#[test]
fn a_full_server_refuses_writes_until_it_has_room() {
    let server = EtcdSettings::new().option("quota-backend-bytes=4000000").start().unwrap();
    let side = server.side();
    side.put("a", "1", 0).unwrap();
    side.fill("fill/").unwrap();
    assert_eq!(side.alarms().unwrap()[0].kind, "NOSPACE");
    assert_eq!(side.alarms().unwrap()[0].member, side.status().unwrap().member());
    assert!(side.put("a", "2", 0).unwrap_err().to_string().contains("space exceeded"));
    assert_eq!(side.get("a").unwrap().unwrap().value, b"1");
    let full = side.status().unwrap();
    side.make_room("fill/").unwrap();
    assert!(side.status().unwrap().size * 4 < full.size, "{full:?} {:?}", side.status());
    assert_eq!((side.alarms().unwrap(), side.keys("fill/").unwrap()), (vec![], vec![]));
    side.put("a", "2", 0).unwrap();
}

#[test]
fn a_server_without_a_quota_cannot_be_filled() {
    let server = EtcdSettings::new().start().unwrap();
    let error = server.side().fill("fill/").unwrap_err();
    assert!(error.to_string().contains("quota-backend-bytes"), "{error}");
}

#[test]
fn the_alarm_alone_makes_a_server_refuse_writes() {
    let server = EtcdSettings::new().start().unwrap();
    let side = server.side();
    let lease = side.grant(std::time::Duration::from_secs(60)).unwrap();
    side.put("a", "", lease).unwrap();
    side.raise_no_space().unwrap();
    assert!(side.put("a", "2", 0).unwrap_err().to_string().contains("space exceeded"));
    assert!(side.grant(std::time::Duration::from_secs(60)).unwrap_err().to_string().contains("space exceeded"));
    assert!(side.delete("a").unwrap());
    side.revoke(lease).unwrap();
    side.disarm().unwrap();
    side.disarm().unwrap();
    side.put("a", "2", 0).unwrap();
}

#[test]
fn unused_space_is_returned() {
    let server = EtcdSettings::new().start().unwrap();
    let side = server.side();
    side.put("a", vec![0; 1 << 20], 0).unwrap();
    side.delete("a").unwrap();
    side.compact(side.revision().unwrap()).unwrap();
    let before = side.status().unwrap();
    assert!(before.size > 1 << 20 && before.revision() == side.revision().unwrap(), "{before:?}");
    side.defragment().unwrap();
    assert!(side.status().unwrap().size < 1 << 20, "{:?}", side.status());
}
