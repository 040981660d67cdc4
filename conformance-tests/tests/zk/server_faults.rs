//! One server of three fails, or the leader, while a client acquires, waits, holds or releases: it shows as a delay.

use std::io;
use std::time::{Duration, Instant};

use leasehold_conformance::{DEADLINE, Data, Fixture, Route, run};
use leasehold_core::{LockClient, LockGuard, LockName};
use leasehold_test_servers::ZooKeeperEnsemble;

use super::common::{SOON, Stopwatch, eventually, hold};
use super::fixture::ROOT;
use super::stored::Stored;
use super::three_servers::ThreeServers;

/// Longer than an election, the bound of two calls and the pauses between them.
const TTL: Duration = Duration::from_secs(18);

/// A call that gets no reply, an election, and the calls after it.
const DELAY: Duration = Duration::from_secs(12);

/// A fault of one server.
#[derive(Clone, Copy, Debug)]
enum ServerFault {
    Kill,
    Pause,
    /// Its traffic with the other servers is cut. Clients still reach it, and until it misses them it replies to reads and pings.
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
        ensemble.await_servers()
    }
}

/// Which server fails.
#[derive(Clone, Copy, Debug)]
enum Which {
    AFollower,
    TheLeader,
}

fn case<C, F>(case: C)
where
    C: FnOnce(ThreeServers) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    run(DEADLINE * 4, || async { case(ThreeServers::new().await).await });
}

async fn client(fixture: &ThreeServers) -> LockClient {
    LockClient::builder(fixture.backend(Route::Clear).await).ttl(TTL).wait(SOON * 2).build().expect("a client")
}

fn waits(client: &LockClient, name: &str) -> tokio::task::JoinHandle<LockGuard> {
    let lock = client.lock(name);
    tokio::spawn(async move { lock.acquire().await.expect("the lock is granted") })
}

fn places(fixture: &ThreeServers, name: &str) -> usize {
    let deployment = fixture.deployment();
    let side = deployment.side().expect("a leader");
    Stored { side, root: ROOT }.queue(&LockName::new(name).expect("a name")).len()
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

fn end(fixture: &ThreeServers, fault: ServerFault, server: usize) {
    fault.end(&mut fixture.deployment(), server).unwrap_or_else(|error| panic!("{fault:?} does not end: {error}"));
}

/// A fault during each phase of a lock, one after the other.
fn shows_as_a_delay(fault: ServerFault, which: Which) {
    case(async move |fixture| {
        let (ann, bob) = (client(&fixture).await, client(&fixture).await);
        hold(&ann, "warm").await.release().await.expect("a release");
        hold(&bob, "warm").await.release().await.expect("a release");

        // While it acquires.
        let (server, stopwatch) = (inject(&fixture, fault, which), Stopwatch::start());
        let guard = hold(&ann, "acquired").await;
        stopwatch.within(DELAY, "an acquire is delayed");
        end(&fixture, fault, server);

        // While it holds: until more than the ttl is over.
        let (server, begin) = (inject(&fixture, fault, which), Instant::now());
        while begin.elapsed() < TTL * 5 / 4 {
            assert!(guard.is_held(), "the lease was lost after {:?}", begin.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        end(&fixture, fault, server);

        // While another client waits.
        let waiter = waits(&bob, "acquired");
        eventually("bob waits", || places(&fixture, "acquired") == 2).await;
        let (server, stopwatch) = (inject(&fixture, fault, which), Stopwatch::start());
        // Without a reply, the client goes on to release.
        let _ = guard.release().await;
        let next = waiter.await.expect("no panic");
        stopwatch.within(DELAY, "a handoff is delayed");
        end(&fixture, fault, server);

        // While it releases.
        let (server, stopwatch) = (inject(&fixture, fault, which), Stopwatch::start());
        let _ = next.release().await;
        let again = hold(&ann, "acquired").await;
        stopwatch.within(DELAY, "a release is delayed");
        end(&fixture, fault, server);
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
