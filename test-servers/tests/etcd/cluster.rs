//! Three members.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use leasehold_conformance::Data;
use leasehold_conformance::harness::Fault;
use leasehold_test_servers::{EtcdAccess, EtcdCluster, EtcdKeys, EtcdSettings, EtcdSide};

use super::support::{wait_until, within};

/// A start usually takes half a second, and ten seconds beside a hundred other servers.
const START: Duration = Duration::from_secs(20);

/// A new leader is usually elected within one second.
const ELECTION: Duration = Duration::from_secs(20);

fn cluster() -> EtcdCluster {
    EtcdSettings::new().start_cluster().unwrap()
}

/// The members except one.
fn others(member: usize) -> impl Iterator<Item = usize> {
    (0..EtcdCluster::MEMBERS).filter(move |other| *other != member)
}

fn value(side: &EtcdSide) -> Vec<u8> {
    side.get("a").unwrap().unwrap().value
}

#[test]
fn a_write_is_read_at_every_member() {
    let cluster = within(START, cluster);
    cluster.side().unwrap().put("a", "1", 0).unwrap();
    for index in 0..EtcdCluster::MEMBERS {
        assert_eq!(value(cluster.member(index).side()), b"1");
    }
    let mut urls = [cluster.urls(), cluster.proxied_urls()].concat();
    urls.sort();
    urls.dedup();
    assert_eq!(urls.len(), 6);
    let revision = cluster.side().unwrap().revision().unwrap();
    cluster.side().unwrap().compact(revision).unwrap();
    cluster.member(0).side().defragment().unwrap();
}

#[test]
fn the_leader_is_moved() {
    let cluster = cluster();
    let leader = cluster.leader().unwrap();
    for to in others(leader).chain([leader]) {
        within(ELECTION, || cluster.move_leader(to)).unwrap();
        assert_eq!(cluster.leader().unwrap(), to);
        cluster.move_leader(to).unwrap();
    }
}

#[test]
fn a_killed_leader_is_replaced_and_returns() {
    let mut cluster = cluster();
    let leader = cluster.leader().unwrap();
    cluster.member_mut(leader).kill().unwrap();
    let next = within(ELECTION, || cluster.leader()).unwrap();
    assert_ne!(next, leader);
    cluster.side().unwrap().put("a", "1", 0).unwrap();
    within(START, || cluster.start_again(leader)).unwrap();
    within(START, || cluster.await_members()).unwrap();
    assert_eq!(value(cluster.member(leader).side()), b"1");
}

#[test]
fn a_paused_leader_is_replaced() {
    let mut cluster = cluster();
    let leader = cluster.leader().unwrap();
    cluster.member_mut(leader).pause().unwrap();
    let next = within(ELECTION, || cluster.leader()).unwrap();
    assert_ne!(next, leader);
    cluster.member(next).side().put("a", "1", 0).unwrap();
    cluster.member_mut(leader).resume().unwrap();
    within(START, || cluster.await_members()).unwrap();
    assert_eq!(value(cluster.member(leader).side()), b"1");
}

#[test]
fn a_leader_that_is_cut_off_is_replaced_and_writes_nothing() {
    let mut cluster = cluster();
    let leader = cluster.leader().unwrap();
    let old = cluster.member(leader).side();
    old.put("a", "1", 0).unwrap();
    cluster.cut(leader);
    let next = within(ELECTION, || cluster.other_leader(leader)).unwrap();
    cluster.member(next).side().put("a", "2", 0).unwrap();
    assert!(within(Duration::from_secs(6), || old.put("a", "3", 0)).is_err());
    wait_until(ELECTION, || !old.status().unwrap().leads());
    cluster.heal();
    within(ELECTION, || cluster.await_members()).unwrap();
    assert_eq!(value(cluster.member(leader).side()), b"2");
}

#[test]
fn a_follower_that_is_cut_off_stops_to_serve_and_the_others_do_not() {
    let mut cluster = cluster();
    let leader = cluster.leader().unwrap();
    let follower = others(leader).next().unwrap();
    cluster.cut(follower);
    let start = Instant::now();
    assert!(within(Duration::from_secs(6), || cluster.member(follower).side().get("a")).is_err());
    assert!(start.elapsed() > Duration::from_millis(500));
    cluster.member(leader).side().put("a", "1", 0).unwrap();
    cluster.heal();
    within(ELECTION, || cluster.await_members()).unwrap();
    assert_eq!(value(cluster.member(follower).side()), b"1");
}

#[test]
fn two_members_that_are_cut_off_from_each_other_both_reach_the_third() {
    let mut cluster = cluster();
    let leader = cluster.leader().unwrap();
    let mut followers = others(leader);
    let (one, other) = (followers.next().unwrap(), followers.next().unwrap());
    cluster.cut_between(one, other);
    for (index, text) in [(one, "1"), (other, "2"), (leader, "3")] {
        within(ELECTION, || cluster.member(index).side().put("a", text, 0)).unwrap();
    }
    assert_eq!(cluster.leader().unwrap(), leader);
    cluster.heal();
    within(ELECTION, || cluster.await_members()).unwrap();
}

#[test]
fn two_of_three_that_are_gone_leave_no_leader() {
    let mut cluster = cluster();
    let leader = cluster.leader().unwrap();
    let gone: Vec<_> = others(leader).collect();
    cluster.side().unwrap().put("a", "1", 0).unwrap();
    for &member in &gone {
        cluster.member_mut(member).kill().unwrap();
    }
    let last = cluster.member(leader).side();
    wait_until(ELECTION, || !last.is_healthy().unwrap());
    assert!(within(Duration::from_secs(6), || last.put("a", "2", 0)).is_err());
    within(START, || cluster.start_again(gone[0])).unwrap();
    within(ELECTION, || cluster.await_members()).unwrap();
    cluster.side().unwrap().put("a", "3", 0).unwrap();
    assert_eq!(cluster.member(gone[1]).side().get("a").unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn all_members_start_again_with_and_without_their_data() {
    let mut cluster = cluster();
    cluster.side().unwrap().put("a", "1", 0).unwrap();
    for (data, value) in [(Data::Kept, Some(b"1".to_vec())), (Data::Lost, None)] {
        for index in 0..EtcdCluster::MEMBERS {
            cluster.member_mut(index).kill().unwrap();
        }
        within(START, || cluster.start_all_again(data)).unwrap();
        assert_eq!(cluster.side().unwrap().get("a").unwrap().map(|key| key.value), value);
    }
}

#[test]
fn clients_reach_each_member_through_a_proxy() {
    let cluster = cluster();
    let urls = cluster.proxied_urls();
    let is_healthy = |index: usize| {
        let reply = minreq::get(format!("{}/health", urls[index])).with_timeout(3).send();
        reply.is_ok_and(|reply| reply.as_str().unwrap().contains(r#""health":"true""#))
    };
    assert!((0..EtcdCluster::MEMBERS).all(is_healthy));
    cluster.proxy(1).apply(Fault::DropTraffic);
    assert_eq!([0, 1, 2].map(is_healthy), [true, false, true]);
    cluster.proxy(1).heal();
    assert!(is_healthy(1));
}

#[test]
fn users_log_in_at_every_member() {
    let mut cluster = cluster();
    // This member learns later that users must log in.
    let late = others(cluster.leader().unwrap()).next().unwrap();
    cluster.member_mut(late).pause().unwrap();
    let side = cluster.side().unwrap();
    side.enable_users().unwrap();
    side.set_user("locker", "pass-word", &[(EtcdAccess::ReadWrite, EtcdKeys::with_prefix("locks/"))]).unwrap();
    cluster.member_mut(late).resume().unwrap();
    for index in [late, (late + 1) % 3, (late + 2) % 3] {
        cluster.member(index).side().put("a", "1", 0).unwrap();
    }
    cluster.member_mut(late).kill().unwrap();
    cluster.start_again(late).unwrap();
    cluster.await_members().unwrap();
    assert_eq!(value(cluster.member(late).side()), b"1");
}

#[test]
fn six_start_at_the_same_time() {
    std::thread::scope(|scope| {
        let starts: Vec<_> = (0..6).map(|_| scope.spawn(cluster)).collect();
        for start in starts {
            start.join().unwrap().side().unwrap().put("a", "1", 0).unwrap();
        }
    });
}
