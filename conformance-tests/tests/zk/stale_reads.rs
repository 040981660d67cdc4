//! Servers that do not know everything that other servers have confirmed.

use std::time::Duration;

use leasehold_conformance::harness::{Fault, Reach};
use leasehold_conformance::{DEADLINE, Data, run};
use leasehold_core::{LockClient, LockGuard, LockName};
use leasehold_test_servers::{ZooKeeperEnsemble, ZooKeeperSettings};

use super::common::{SOON, eventually, hold};
use super::stored::Stored;

/// Longer than the test.
const TTL: Duration = Duration::from_secs(60);

/// How many locks a client holds, and for how many it waits.
const LOCKS: usize = 5;

/// How often the session moves to the old leader.
const MOVES: usize = 2;

/// A client that reads there takes its leases for lost within a few milliseconds.
const HARM: Duration = Duration::from_millis(500);

/// A leader that is cut off from the others believes that it still leads until it notices that they are gone: it
/// accepts sessions, and replies to `sync` and to reads. A session that moves there loses nothing, although its nodes
/// were created when the others had another leader.
#[test]
fn a_session_that_moves_to_an_old_leader_loses_nothing() {
    run(DEADLINE * 2, || async {
        // A leader notices after a minute that the others are gone.
        let ensemble = ZooKeeperSettings::new().line("syncLimit=600").start_ensemble();
        let mut ensemble = ensemble.unwrap_or_else(|error| panic!("{error}"));
        let old = ensemble.leader().expect("a leader");
        let others = [1, 2].map(|step| (old + step) % ZooKeeperEnsemble::SERVERS);
        let new = others[0];
        let (ann, bob) = (client_of(&ensemble, &[new, old]).await, client_of(&ensemble, &[new]).await);
        // The old leader knows the sessions.
        hold(&ann, "warm").await.release().await.expect("a release");
        hold(&bob, "warm").await.release().await.expect("a release");
        ensemble.cut(old);
        close(&ensemble, old);
        for other in others {
            ensemble.server_mut(other).kill().expect("a kill");
        }
        for other in others {
            ensemble.start_again(other, Data::Kept).expect("a start");
        }
        let ensemble = tokio::task::spawn_blocking(move || ensemble.other_leader(old).map(|_| ensemble));
        let ensemble = ensemble.await.expect("no panic").expect("the others have another leader");

        let nodes = |name: String| {
            let stored = Stored { side: ensemble.server(new).side(), root: "/leasehold" };
            stored.try_queue(&LockName::new(name).expect("a name")).ok().map(|queue| queue.len())
        };
        let (held, awaited) = (|index| format!("held {index}"), |index| format!("awaited {index}"));
        let (mut guards, mut before, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..LOCKS {
            guards.push(hold(&ann, &held(index)).await);
            before.push(hold(&bob, &awaited(index)).await);
            let lock = ann.lock(awaited(index));
            waiting.push(tokio::spawn(async move { lock.acquire().await.expect("its turn comes") }));
            eventually("ann waits", || nodes(awaited(index)) == Some(2)).await;
        }

        let sessions = |server: usize| ensemble.server(server).side().connected_sessions().expect("its sessions").len();
        for _ in 0..MOVES {
            ensemble.proxy(old).heal();
            close(&ensemble, new);
            eventually("ann has moved to the old leader", || sessions(old) == 1).await;
            tokio::time::sleep(HARM).await;
            let state = |server: usize| ensemble.server(server).side().word("srvr").expect("a reply");
            let (behind, newest) = (state(old), state(new));
            assert!(behind.contains("Mode: leader") && zxid(&behind) < zxid(&newest), "{behind} {newest}");
            ensemble.proxy(new).heal();
            close(&ensemble, old);
            eventually("ann and bob have moved back", || sessions(new) == 2).await;
            for index in 0..LOCKS {
                assert_eq!(nodes(held(index)), Some(1), "a lease and no other node");
                assert_eq!(nodes(awaited(index)), Some(2), "the lease of bob and the place of ann");
            }
        }
        assert!(guards.iter().all(LockGuard::is_held), "leases that live were taken for lost");

        for guard in before {
            guard.release().await.expect("a release");
        }
        for waiter in waiting {
            guards.push(waiter.await.expect("no panic"));
        }
        for guard in guards {
            guard.release().await.expect("a release");
        }
        assert_eq!((ann.stats().lost, bob.stats().lost), (0, 0));
        for index in 0..LOCKS {
            assert_eq!((nodes(held(index)), nodes(awaited(index))), (Some(0), Some(0)), "a node is left");
        }
    });
}

/// A follower learns of each release a moment later than the leader. Its clients see that the lock is free, and who
/// holds it.
#[test]
fn a_client_of_a_follower_that_is_behind_sees_the_newest_state() {
    const BEHIND: Duration = Duration::from_millis(200);
    run(DEADLINE, || async {
        let ensemble = ZooKeeperSettings::new().start_ensemble().unwrap_or_else(|error| panic!("{error}"));
        let leader = ensemble.leader().expect("a leader");
        let follower = (leader + 1) % ZooKeeperEnsemble::SERVERS;
        let (ann, bob) = (client_of(&ensemble, &[leader]).await, client_of(&ensemble, &[follower]).await);
        hold(&ann, "behind").await.release().await.expect("a release");
        hold(&bob, "behind").await.release().await.expect("a release");
        ensemble.delay(follower, BEHIND);
        for _ in 0..3 {
            let guard = hold(&ann, "behind").await;
            let seen = bob.inspect("behind").await.expect("a lock").expect("it is held");
            assert_eq!(seen.last_token, Some(guard.fencing_token()), "the follower shows an old state");
            guard.release().await.expect("a release");
            let next = bob.lock("behind").try_acquire().await.expect("an attempt");
            next.expect("the lock is free").release().await.expect("a release");
        }
    });
}

/// Closes a server to all clients.
pub(super) fn close(ensemble: &ZooKeeperEnsemble, server: usize) {
    ensemble.proxy(server).apply(Fault::Refuse);
    ensemble.proxy(server).apply_to(Fault::Disconnect, Reach::Open);
}

/// A client of these servers.
async fn client_of(ensemble: &ZooKeeperEnsemble, servers: &[usize]) -> LockClient {
    let addrs = ensemble.proxied_addrs();
    let hosts: Vec<_> = servers.iter().map(|server| addrs[*server].to_string()).collect();
    let url = format!("zk://{}/?timeout=1s&tick=200ms", hosts.join(","));
    leasehold::connect_builder(&url).await.expect("a server").ttl(TTL).wait(SOON * 3).build().expect("a client")
}

/// The newest transaction that a server has: `Zxid: 0x100000002`.
fn zxid(state: &str) -> u64 {
    let number = state.lines().find_map(|line| line.strip_prefix("Zxid: 0x")).expect("a transaction");
    u64::from_str_radix(number, 16).expect("a number")
}
