//! Three servers.

use std::time::{Duration, Instant};

use leasehold_conformance::Data;
use leasehold_conformance::harness::Fault;
use leasehold_test_servers::{ZooKeeperEnsemble, ZooKeeperLife, ZooKeeperSettings, ZooKeeperSide};

use super::support::{wait_until, within};

/// A start usually takes two seconds, most of them work of processors. Beside seven other runs of these tests it took
/// 37 s.
const START: Duration = Duration::from_secs(60);

/// A new leader usually serves within three seconds, two of which it takes to miss the old one.
const ELECTION: Duration = Duration::from_secs(30);

const ALL: [usize; ZooKeeperEnsemble::SERVERS] = [0, 1, 2];

fn ensemble() -> ZooKeeperEnsemble {
    ZooKeeperSettings::new().start_ensemble().unwrap()
}

/// The servers except one.
fn others(server: usize) -> impl Iterator<Item = usize> {
    ALL.into_iter().filter(move |other| *other != server)
}

fn write(side: &ZooKeeperSide, path: &str) -> std::io::Result<()> {
    side.create(path, "", ZooKeeperLife::Persistent).map(drop)
}

/// Writes after an election. A leader that has few followers may lose its place again before it serves.
fn write_soon(side: &ZooKeeperSide, path: &str) {
    wait_until(ELECTION, || match write(side, path) {
        Ok(()) => true,
        // The reply to an earlier attempt was lost.
        Err(error) => error.to_string() == "node exists",
    });
}

/// Waits until a follower has the node too.
fn is_at(side: &ZooKeeperSide, path: &str) {
    wait_until(ELECTION, || side.get(path).is_ok_and(|node| node.is_some()));
}

#[test]
fn a_write_reaches_every_server() {
    let ensemble = within(START, ensemble);
    write(ensemble.side().unwrap(), "/a").unwrap();
    for index in ALL {
        is_at(ensemble.server(index).side(), "/a");
    }
    let mut addrs = [ensemble.addrs(), ensemble.proxied_addrs()].concat();
    addrs.sort();
    addrs.dedup();
    assert_eq!(addrs.len(), 6);
}

#[test]
fn a_killed_leader_is_replaced_and_returns() {
    let mut ensemble = ensemble();
    let leader = ensemble.leader().unwrap();
    ensemble.server_mut(leader).kill().unwrap();
    let next = within(ELECTION, || ensemble.leader()).unwrap();
    assert_ne!(next, leader);
    write_soon(ensemble.server(next).side(), "/a");
    within(START, || ensemble.start_again(leader, Data::Kept)).unwrap();
    within(ELECTION, || ensemble.await_servers()).unwrap();
    is_at(ensemble.server(leader).side(), "/a");
}

#[test]
fn a_paused_leader_is_replaced() {
    let mut ensemble = ensemble();
    let leader = ensemble.leader().unwrap();
    ensemble.server_mut(leader).pause().unwrap();
    let next = within(ELECTION, || ensemble.leader()).unwrap();
    assert_ne!(next, leader);
    write_soon(ensemble.server(next).side(), "/a");
    ensemble.server_mut(leader).resume().unwrap();
    is_at(ensemble.server(leader).side(), "/a");
}

#[test]
fn a_leader_that_is_cut_off_is_replaced_and_writes_nothing() {
    let mut ensemble = ensemble();
    let leader = ensemble.leader().unwrap();
    write(ensemble.server(leader).side(), "/a").unwrap();
    ensemble.cut(leader);
    let next = within(ELECTION, || ensemble.other_leader(leader)).unwrap();
    write_soon(ensemble.server(next).side(), "/b");
    assert!(within(Duration::from_secs(12), || write(ensemble.server(leader).side(), "/c")).is_err());
    // It is not elected again while it is cut off.
    assert_eq!(ensemble.other_leader(leader).unwrap(), next);
    ensemble.heal();
    within(ELECTION, || ensemble.await_servers()).unwrap();
    is_at(ensemble.server(leader).side(), "/b");
    assert_eq!(ensemble.server(leader).side().get("/c").unwrap(), None);
}

#[test]
fn a_follower_that_is_cut_off_from_the_leader_stops_to_serve() {
    let mut ensemble = ensemble();
    let leader = ensemble.leader().unwrap();
    let follower = others(leader).next().unwrap();
    write(ensemble.server(follower).side(), "/a").unwrap();
    let start = Instant::now();
    ensemble.cut(follower);
    write(ensemble.server(leader).side(), "/b").unwrap();
    wait_until(ELECTION, || ensemble.server(follower).side().get("/a").is_err());
    assert!(start.elapsed() > Duration::from_millis(500), "it serves reads until it misses the leader");
    assert_eq!(ensemble.leader().unwrap(), leader);
    ensemble.heal();
    within(ELECTION, || ensemble.await_servers()).unwrap();
    is_at(ensemble.server(follower).side(), "/b");
}

#[test]
fn two_servers_that_are_cut_off_from_each_other_do_not_harm_the_third() {
    let mut ensemble = ensemble();
    let leader = ensemble.leader().unwrap();
    let followers: Vec<_> = others(leader).collect();
    ensemble.cut_between(followers[0], followers[1]);
    for index in ALL {
        write(ensemble.server(index).side(), &format!("/{index}")).unwrap();
    }
    assert_eq!(ensemble.leader().unwrap(), leader);
    ensemble.heal();
    within(ELECTION, || ensemble.await_servers()).unwrap();
}

#[test]
fn two_of_three_that_are_gone_leave_no_leader() {
    let mut ensemble = ensemble();
    let leader = ensemble.leader().unwrap();
    let gone: Vec<_> = others(leader).collect();
    for &server in &gone {
        ensemble.server_mut(server).kill().unwrap();
    }
    wait_until(ELECTION, || ensemble.server(leader).side().word("srvr").is_ok_and(|text| !text.contains("Mode:")));
    assert!(within(Duration::from_secs(12), || write(ensemble.server(leader).side(), "/a")).is_err());
    within(START, || ensemble.start_again(gone[0], Data::Lost)).unwrap();
    within(ELECTION, || ensemble.await_servers()).unwrap();
    write_soon(ensemble.side().unwrap(), "/b");
}

#[test]
fn every_server_returns_to_a_running_ensemble() {
    let mut ensemble = ensemble();
    for index in ALL {
        ensemble.server_mut(index).kill().unwrap();
        within(ELECTION, || ensemble.leader()).unwrap();
        within(START, || ensemble.start_again(index, Data::Kept)).unwrap();
        within(ELECTION, || ensemble.await_servers()).unwrap();
        write_soon(ensemble.server(index).side(), &format!("/{index}"));
    }
}

#[test]
fn all_servers_start_again_with_and_without_their_data() {
    let mut ensemble = ensemble();
    write(ensemble.side().unwrap(), "/a").unwrap();
    for (data, is_there) in [(Data::Kept, true), (Data::Lost, false)] {
        for index in ALL {
            ensemble.server_mut(index).kill().unwrap();
        }
        within(START, || ensemble.start_all_again(data)).unwrap();
        assert_eq!(ensemble.side().unwrap().get("/a").unwrap().is_some(), is_there);
    }
}

#[test]
fn clients_reach_each_server_through_a_proxy() {
    let ensemble = ensemble();
    let replies = |index: usize| {
        use std::io::{Read as _, Write as _};

        let mut stream = std::net::TcpStream::connect(ensemble.proxied_addrs()[index]).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
        stream.write_all(b"srvr").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).is_ok() && text.contains("Mode:")
    };
    assert_eq!(ALL.map(replies), [true; 3]);
    ensemble.proxy(1).apply(Fault::DropTraffic);
    assert_eq!(ALL.map(replies), [true, false, true]);
    ensemble.proxy(1).heal();
    assert!(replies(1));
}
