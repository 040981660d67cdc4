//! One server of three fails, or the leader, while a client acquires, waits, holds or releases. The client only notices
//! a delay.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use leasehold::zk::ZkBackend;
use leasehold_conformance::{DEADLINE, Data, Fixture, Route, run};
use leasehold_core::{LockClient, LockName};
use leasehold_test_servers::ZooKeeperEnsemble;

use super::common::{SOON, Stopwatch, eventually, hold};
use super::fixture::ROOT;
use super::stored::Stored;
use super::three_servers::ThreeServers;

/// Longer than any election of three busy servers, most of which take some seconds.
const TTL: Duration = Duration::from_secs(45);

/// The time after a leader serves again: calls that get no reply, and the pauses between them.
const AFTER: Duration = Duration::from_secs(6);

/// A fault of one server.
#[derive(Clone, Copy, Debug)]
enum ServerFault {
    Kill,
    Pause,
    /// Its traffic with the other servers is cut. Clients still reach it, and it replies to reads and pings until it
    /// notices that the others are gone.
    Cut,
}

impl ServerFault {
    fn apply(self, ensemble: &mut ZooKeeperEnsemble, server: usize) -> io::Result<()> {
        match self {
            Self::Kill => ensemble.server_mut(server).kill(),
            Self::Pause => ensemble.server_mut(server).pause(),
            Self::Cut => {
                ensemble.cut(server);
                Ok(())
            }
        }
    }

    fn end(self, ensemble: &mut ZooKeeperEnsemble, server: usize) -> io::Result<()> {
        match self {
            Self::Kill => ensemble.start_again(server, Data::Kept),
            Self::Pause => ensemble.server_mut(server).resume(),
            Self::Cut => {
                ensemble.heal();
                Ok(())
            }
        }?;
        ensemble.await_servers()?;
        // Otherwise the next fault could meet the former leader.
        ensemble.await_one_leader()
    }
}

/// Which server fails.
#[derive(Clone, Copy, Debug)]
enum Which {
    AFollower,
    TheLeader,
}

async fn client(fixture: &ThreeServers) -> LockClient {
    LockClient::builder(fixture.backend(Route::Clear).await).ttl(TTL).wait(SOON * 3).build().expect("a client")
}

/// The number of nodes of a lock, as soon as it can be read.
fn places(fixture: &ThreeServers, name: &str) -> Option<usize> {
    let deployment = fixture.deployment();
    let side = deployment.side().ok()?;
    Stored { side, root: ROOT }.try_queue(&LockName::new(name).expect("a name")).ok().map(|queue| queue.len())
}

/// Injects a fault, and returns the server that has it.
fn inject(fixture: &ThreeServers, fault: ServerFault, which: Which) -> usize {
    let mut deployment = fixture.deployment();
    let leader = deployment.leader().expect("a leader");
    let server = match which {
        Which::AFollower => (leader + 1) % ZooKeeperEnsemble::SERVERS,
        Which::TheLeader => leader,
    };
    fault.apply(&mut deployment, server).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
    server
}

/// Awaits `does` during a fault, and ends the fault. `does` must end soon after the other servers have a leader.
async fn during<T>(
    fixture: &Arc<ThreeServers>,
    (fault, which): (ServerFault, Which),
    what: &str,
    does: impl Future<Output = T>,
) -> T {
    let server = inject(fixture, fault, which);
    let others = fixture.clone();
    let elected = tokio::task::spawn_blocking(move || {
        others.deployment().other_leader(server).expect("the others elect a leader");
        Stopwatch::start()
    });
    let done = does.await;
    elected.await.expect("no panic").within(AFTER, what);
    let others = fixture.clone();
    let ended = tokio::task::spawn_blocking(move || fault.end(&mut others.deployment(), server));
    ended.await.expect("no panic").unwrap_or_else(|error| panic!("{fault:?} does not end: {error}"));
    done
}

/// A fault during each phase of a lock, one after the other.
fn shows_as_a_delay(fault: ServerFault, which: Which) {
    run(DEADLINE * 4, move || async move {
        let fixture = Arc::new(ThreeServers::new().await);
        let (ann, bob) = (client(&fixture).await, client(&fixture).await);
        hold(&ann, "warm").await.release().await.expect("a release");
        hold(&bob, "warm").await.release().await.expect("a release");

        let guard = during(&fixture, (fault, which), "an acquire is delayed", hold(&ann, "acquired")).await;

        // While it holds: until the lease was renewed.
        let renewed = ann.stats().renewed;
        let renews = async {
            while ann.stats().renewed == renewed {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let server = inject(&fixture, fault, which);
        let stopwatch = Stopwatch::start();
        tokio::select! {
            () = renews => {}
            loss = guard.lost() => panic!("the lease was lost after {:?}: {loss:?}", stopwatch.elapsed()),
        }
        let others = fixture.clone();
        let ended = tokio::task::spawn_blocking(move || fault.end(&mut others.deployment(), server)).await;
        ended.expect("no panic").unwrap_or_else(|error| panic!("{fault:?} does not end: {error}"));
        assert!(guard.is_held(), "the lease was lost");

        // While another client waits. If no reply arrives, the client repeats the release in the background.
        let lock = bob.lock("acquired");
        let waiter = tokio::spawn(async move { lock.acquire().await.expect("the lock is granted") });
        eventually("bob waits", || places(&fixture, "acquired") == Some(2)).await;
        let handoff = async {
            let _ = guard.release().await;
            waiter.await.expect("no panic")
        };
        let next = during(&fixture, (fault, which), "a handoff is delayed", handoff).await;

        // While it releases.
        let release = async {
            let _ = next.release().await;
            hold(&ann, "acquired").await
        };
        let again = during(&fixture, (fault, which), "a release is delayed", release).await;
        again.release().await.expect("a release");
        assert_eq!((ann.stats().lost, bob.stats().lost), (0, 0), "a lease was lost");
    });
}

macro_rules! faults {
    ($($name:ident: $fault:ident, $which:ident;)*) => {
        $(#[test]
        fn $name() {
            shows_as_a_delay(ServerFault::$fault, Which::$which);
        })*
    };
}

faults! {
    a_follower_is_killed: Kill, AFollower;
    a_follower_is_paused: Pause, AFollower;
    a_follower_is_cut_off: Cut, AFollower;
    the_leader_is_killed: Kill, TheLeader;
    the_leader_is_paused: Pause, TheLeader;
    the_leader_is_cut_off: Cut, TheLeader;
}

/// A waiter sends no request that would show that its server is silent.
#[test]
fn a_waiter_moves_to_another_server_when_its_own_is_paused() {
    run(DEADLINE, || async {
        let fixture = ThreeServers::new().await;
        let leader = fixture.deployment().leader().expect("a leader");
        let paused = (leader + 1) % ZooKeeperEnsemble::SERVERS;
        let sessions = || fixture.deployment().server(paused).side().connected_sessions().expect("its sessions").len();
        let backend = ZkBackend::connect(&url_of(&fixture, leader)).await.expect("a backend");
        let ann = LockClient::builder(backend).ttl(TTL).build().expect("a client");
        // A client may begin with any server.
        let bob = loop {
            let (bob, before) = (client(&fixture).await, sessions());
            hold(&bob, "warm").await.release().await.expect("a release");
            if sessions() > before {
                break bob;
            }
        };
        let guard = hold(&ann, "silent").await;
        let lock = bob.lock("silent");
        let waiter = tokio::spawn(async move { lock.acquire().await.expect("the lock is granted") });
        eventually("bob waits", || places(&fixture, "silent") == Some(2)).await;
        fixture.deployment().server_mut(paused).pause().expect("a pause");
        let stopwatch = Stopwatch::start();
        guard.release().await.expect("a release");
        waiter.await.expect("no panic").release().await.expect("a release");
        stopwatch.within(AFTER, "the waiter holds");
    });
}

/// A URL whose only host is this server.
fn url_of(fixture: &ThreeServers, server: usize) -> String {
    let url = fixture.url(Route::Clear, "");
    let (user, rest) = url.split_once('@').expect("a user");
    let (hosts, root) = rest.split_once('/').expect("a root");
    let host = hosts.split(',').nth(server).expect("a host of each server");
    format!("{user}@{host}/{root}")
}

/// A follower that is cut off from the leader still replies to pings and reads. They confirm no lease: the holder loses
/// it before the leader gives the lock to another client.
#[test]
fn a_follower_that_is_cut_off_confirms_no_lease() {
    const SHORT: Duration = Duration::from_secs(2);
    run(DEADLINE, || async {
        let fixture = ThreeServers::new().await;
        let follower = (fixture.deployment().leader().expect("a leader") + 1) % ZooKeeperEnsemble::SERVERS;
        let url = url_of(&fixture, follower);
        let ann = leasehold::connect_builder(&url).await.expect("a follower").ttl(SHORT).build().expect("a client");
        let bob = client(&fixture).await;
        hold(&bob, "warm").await.release().await.expect("a release");
        let guard = hold(&ann, "cut off").await;
        tokio::time::sleep(SHORT).await;
        assert!(guard.is_held() && ann.stats().renewed > 0, "the follower serves");
        // A session cannot be opened without the leader.
        fixture.deployment().server(follower).side().get("/").expect("a read");
        fixture.deployment().spoil();
        fixture.deployment().cut(follower);
        let (stopwatch, waiting) = (Stopwatch::start(), bob.lock("cut off"));
        let waiter = tokio::spawn(async move { waiting.acquire().await.expect("the leader ends the session") });
        guard.lost().await;
        stopwatch.within(SHORT, "the loss is reported");
        let read = fixture.deployment().server(follower).side().get("/");
        assert!(read.is_ok(), "the follower has already missed the leader, so this proved nothing: {read:?}");
        assert!(!waiter.is_finished(), "another client held before the loss was reported");
        let next = waiter.await.expect("no panic");
        assert!(next.fencing_token() > guard.fencing_token());
        fixture.deployment().heal();
    });
}
