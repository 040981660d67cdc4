//! One member of three fails, or the leader, while a client acquires, waits, holds or releases. The client only notices
//! a short delay.

use std::io;
use std::time::{Duration, Instant};

use leasehold_conformance::harness::Port;
use leasehold_conformance::{DEADLINE, Direct, Fixture, PathFault, Route, run};
use leasehold_core::backend::{AcquireOutcome, Delivery, Event, RenewReply, RenewRequest};
use leasehold_core::{ErrorKind, LockClient, LockGuard, LockName};
use leasehold_test_servers::{EtcdCluster, EtcdSettings};

use super::common::{SOON, Stopwatch, eventually, hold};
use super::fixture::PREFIX;
use super::stored::Stored;
use super::three_members::ThreeMembers;

/// Longer than an election, the bound of two calls and the pauses between them.
const TTL: Duration = Duration::from_secs(12);

/// A hold of more than the ttl.
const HOLD: Duration = Duration::from_secs(15);

/// How long a leader is paused during a hold. Servers before 3.4.31 and 3.5.13 have a defect: a leader that was paused
/// for longer than the ttl may end the lease as it resumes, before it knows that another one leads. Debian's 3.4.23 did
/// in one of ten tries.
const LEADER_PAUSE: Duration = Duration::from_secs(6);

/// One call without a reply, an election, and the calls after it.
const DELAY: Duration = Duration::from_secs(6);

/// A fault of one member.
#[derive(Clone, Copy, Debug)]
enum MemberFault {
    Kill,
    Pause,
    /// Its traffic with the other members is cut. Clients still reach it.
    Cut,
    /// Another member becomes the leader.
    MoveLeader,
}

impl MemberFault {
    fn apply(self, cluster: &mut EtcdCluster, member: usize) -> io::Result<()> {
        match self {
            Self::Kill => cluster.member_mut(member).kill(),
            Self::Pause => cluster.member_mut(member).pause(),
            Self::Cut => {
                cluster.cut(member);
                Ok(())
            }
            Self::MoveLeader => cluster.move_leader((member + 1) % EtcdCluster::MEMBERS),
        }
    }

    fn end(self, cluster: &mut EtcdCluster, member: usize) -> io::Result<()> {
        match self {
            Self::Kill => cluster.start_again(member),
            Self::Pause => cluster.member_mut(member).resume(),
            Self::Cut => {
                cluster.heal();
                Ok(())
            }
            Self::MoveLeader => Ok(()),
        }?;
        cluster.await_members()
    }
}

/// Which member fails. A client begins with the first one of its URL.
#[derive(Clone, Copy, Debug)]
enum Which {
    TheClients,
    TheLeader,
}

fn case<C, F>(case: C)
where
    C: FnOnce(ThreeMembers) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    run(DEADLINE * 3, || async { case(ThreeMembers::new().await).await });
}

async fn client(fixture: &ThreeMembers) -> LockClient {
    LockClient::builder(fixture.backend(Route::Clear).await).ttl(TTL).wait(SOON).build().expect("a client")
}

fn waits(client: &LockClient, name: &str) -> tokio::task::JoinHandle<LockGuard> {
    let lock = client.lock(name);
    tokio::spawn(async move { lock.acquire().await.expect("the lock is granted") })
}

fn places(fixture: &ThreeMembers, name: &str) -> usize {
    let deployment = fixture.deployment();
    let side = deployment.side().expect("a leader");
    Stored { side, prefix: PREFIX }.queue(&LockName::new(name).expect("a name")).len()
}

/// Injects a fault. Returns the member that has it, and how long the fault may last.
fn inject(fixture: &ThreeMembers, fault: MemberFault, which: Which) -> (usize, Duration) {
    let mut deployment = fixture.deployment();
    let leader = deployment.leader().expect("a leader");
    let member = match which {
        Which::TheClients => 0,
        Which::TheLeader => leader,
    };
    fault.apply(&mut deployment, member).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
    let is_leader_paused = matches!(fault, MemberFault::Pause) && member == leader;
    (member, if is_leader_paused { LEADER_PAUSE } else { HOLD })
}

fn end(fixture: &ThreeMembers, fault: MemberFault, member: usize) {
    fault.end(&mut fixture.deployment(), member).unwrap_or_else(|error| panic!("{fault:?} does not end: {error}"));
}

/// A fault during each phase of a lock, one after the other.
fn shows_as_a_delay(fault: MemberFault, which: Which) {
    case(async move |fixture| {
        let (ann, bob) = (client(&fixture).await, client(&fixture).await);
        hold(&ann, "warm").await.release().await.expect("a release");
        hold(&bob, "warm").await.release().await.expect("a release");

        // While it acquires.
        let ((member, _), stopwatch) = (inject(&fixture, fault, which), Stopwatch::start());
        let guard = hold(&ann, "acquired").await;
        stopwatch.within(DELAY, "an acquire is delayed");
        end(&fixture, fault, member);

        // While it holds: until more than the ttl is over.
        let ((member, lasts), begin) = (inject(&fixture, fault, which), Instant::now());
        let mut lasts = Some(lasts);
        while begin.elapsed() < HOLD {
            assert!(guard.is_held(), "the lease was lost after {:?}", begin.elapsed());
            if lasts.take_if(|lasts| begin.elapsed() >= *lasts).is_some() {
                end(&fixture, fault, member);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if lasts.is_some() {
            end(&fixture, fault, member);
        }

        // While another client waits.
        let waiter = waits(&bob, "acquired");
        eventually("bob waits", || places(&fixture, "acquired") == 2).await;
        let ((member, _), stopwatch) = (inject(&fixture, fault, which), Stopwatch::start());
        // If no reply arrives, the client repeats the release in the background.
        let _ = guard.release().await;
        let next = waiter.await.expect("no panic");
        stopwatch.within(DELAY, "a handoff is delayed");
        end(&fixture, fault, member);

        // While it releases.
        let ((member, _), stopwatch) = (inject(&fixture, fault, which), Stopwatch::start());
        let _ = next.release().await;
        let again = hold(&ann, "acquired").await;
        stopwatch.within(DELAY, "a release is delayed");
        end(&fixture, fault, member);
        again.release().await.expect("a release");
        assert_eq!((ann.stats().lost, bob.stats().lost), (0, 0), "a lease was lost");
    });
}

macro_rules! faults {
    ($($name:ident: $fault:ident, $which:ident;)*) => {
        $(#[test]
        fn $name() {
            shows_as_a_delay(MemberFault::$fault, Which::$which);
        })*
    };
}

faults! {
    the_clients_member_is_killed: Kill, TheClients;
    the_clients_member_is_paused: Pause, TheClients;
    the_clients_member_is_cut_off: Cut, TheClients;
    the_leader_is_killed: Kill, TheLeader;
    the_leader_is_paused: Pause, TheLeader;
    the_leader_is_cut_off: Cut, TheLeader;
    the_leader_moves: MoveLeader, TheLeader;
}

/// A request that is stuck on the way to one member arrives after the claim was withdrawn by another member.
#[test]
fn a_late_transaction_after_a_withdraw_has_no_effect() {
    case(async |fixture| {
        let ann = Direct::warm(&fixture, Route::Faulty).await;
        let bob = Direct::warm(&fixture, Route::Clear).await;
        for round in 0..3 {
            let name = LockName::new(format!("late {round}")).expect("a name");
            // Sessions with both ttls are open, so the requests that are held are those that create the key, one in
            // each session.
            let (claim, ttl, other_ttl) = (ann.claim(&name), fixture.ttl() * 20, fixture.ttl() * 5);
            let other = LockName::new(format!("other {round}")).expect("a name");
            ann.granted(&ann.claim(&other), other_ttl).await;
            fixture.path(PathFault::Hold).await;
            let replies = tokio::join!(ann.acquire(&claim, ttl), ann.acquire(&claim, other_ttl));
            assert!(replies.0.is_err() && replies.1.is_err(), "the requests were held");
            fixture.heal().await;
            // The next member serves it.
            ann.release(&claim, Delivery::InDoubt).await.expect("a withdraw");
            fixture.deliver().await;
            assert_eq!(places(&fixture, name.as_str()), 0, "the late request took effect");
            let reply = bob.acquire(&bob.claim(&name), ttl).await;
            assert!(matches!(reply, Ok(AcquireOutcome::Granted(_))), "{reply:?}");
        }
    });
}

/// A claim out of the queue attaches its key to a session with the whole ttl. That request arrives after its release.
#[test]
fn a_late_attachment_after_a_release_creates_no_key() {
    case(async |fixture| {
        let ann = Direct::warm(&fixture, Route::Faulty).await;
        let bob = Direct::warm(&fixture, Route::Clear).await;
        let (name, ttl) = (LockName::new("attached").expect("a name"), fixture.ttl() * 20);
        let (claim, former) = (ann.claim(&name), bob.claim(&name));
        bob.granted(&former, ttl).await;
        let place = ann.not_granted(&claim, ttl).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        bob.release(&former, Delivery::Confirmed).await.expect("a release");
        eventually("ann is told", || ann.take_events().iter().any(|event| matches!(event, Event::Granted { .. })))
            .await;
        // Its session is open and fresh.
        ann.granted(&ann.claim(&LockName::new("other").expect("a name")), ttl).await;
        fixture.path(PathFault::Hold).await;
        let reply = ann.renew(RenewRequest::new(claim.clone(), place, ttl)).await;
        assert!(matches!(reply, RenewReply::Unknown(_)), "{reply:?}");
        fixture.heal().await;
        ann.release(&claim, Delivery::Confirmed).await.expect("a release");
        fixture.deliver().await;
        assert_eq!(places(&fixture, name.as_str()), 0, "the late request created a key");
    });
}

/// The client's member no longer replies. The next one deletes the key, and the late request to the first one deletes
/// nothing else.
#[test]
fn a_release_does_not_wait_for_a_silent_member() {
    case(async |fixture| {
        // A leader that falls silent would be replaced first: that is an election of up to a second.
        fixture.deployment().move_leader(1).expect("it leads");
        let ann = client(&fixture).await;
        let guard = hold(&ann, "released").await;
        let next = hold(&ann, "next").await;
        inject(&fixture, MemberFault::Pause, Which::TheClients);
        let stopwatch = Stopwatch::start();
        guard.release().await.expect("another member has released it");
        // A third of the bound, and a connection to the next member.
        stopwatch.within(Duration::from_millis(700), "a release");
        assert_eq!(places(&fixture, "released"), 0);
        // The next claim has the same key.
        let again = hold(&ann, "released").await;
        end(&fixture, MemberFault::Pause, 0);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(again.is_held() && places(&fixture, "released") == 1, "the late request deleted the next claim");
        again.release().await.expect("a release");
        next.release().await.expect("a release");
    });
}

/// The client's member dies, and the next one lags behind: it does not know the newest keys and etcd leases of the
/// client yet, and delivers changes that its watches should have delivered long ago. Without users: a log-in would wait
/// until the member has caught up.
#[test]
fn a_client_that_moves_to_a_lagging_member_keeps_its_leases() {
    const LOCKS: usize = 8;
    const WRITES: usize = 500;
    run(DEADLINE * 3, || async {
        let mut cluster = EtcdSettings::new().start_cluster().unwrap_or_else(|error| panic!("{error}"));
        let hosts: Vec<_> = cluster.members().iter().map(|member| member.addr().to_string()).collect();
        let url = format!("etcd://{}/", hosts.join(","));
        let client = async || {
            let backend = leasehold::etcd::EtcdBackend::connect(&url).await.expect("a backend");
            LockClient::builder(backend).ttl(TTL).wait(SOON).build().expect("a client")
        };
        let (ann, bob) = (client().await, client().await);
        cluster.move_leader(2).expect("it leads");
        // Its keys are used again, so late changes are about the keys of later claims.
        let cycles = async |client: &LockClient| {
            for lock in 0..LOCKS {
                hold(client, &format!("held {lock}")).await.release().await.expect("a release");
            }
        };
        cycles(&ann).await;
        cluster.member_mut(1).pause().expect("it pauses");
        let writes = |cluster: &EtcdCluster| {
            for index in 0..WRITES {
                cluster.member(2).side().put(format!("other/{index}"), vec![b'x'; 20_000], 0).expect("a write");
            }
        };
        writes(&cluster);
        for _ in 0..5 {
            cycles(&ann).await;
        }
        let (mut held, mut bobs, mut waiters) = (Vec::new(), Vec::new(), Vec::new());
        for lock in 0..LOCKS {
            held.push(hold(&ann, &format!("held {lock}")).await);
            bobs.push(hold(&bob, &format!("waited {lock}")).await);
            waiters.push(waits(&ann, &format!("waited {lock}")));
        }
        let keys = |cluster: &EtcdCluster, name: &str| {
            let side = cluster.side().expect("a leader");
            Stored { side, prefix: "leasehold/" }.queue(&LockName::new(name).expect("a name")).len()
        };
        for lock in 0..LOCKS {
            eventually("ann waits", || keys(&cluster, &format!("waited {lock}")) == 2).await;
        }
        writes(&cluster);
        cluster.member_mut(0).kill().expect("it is killed");
        cluster.member_mut(1).resume().expect("it goes on");
        let begin = Instant::now();
        while begin.elapsed() < TTL / 3 {
            assert!(held.iter().all(LockGuard::is_held), "a lease was lost after {:?}", begin.elapsed());
            assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "a waiter overtook the holder");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for (guard, waiter) in bobs.into_iter().zip(waiters) {
            guard.release().await.expect("a release");
            waiter.await.expect("no panic").release().await.expect("a release");
        }
        for guard in held {
            guard.release().await.expect("a release");
        }
        for lock in 0..LOCKS {
            let left = ["held", "waited"].map(|name| keys(&cluster, &format!("{name} {lock}")));
            assert_eq!(left, [0, 0], "keys are left");
        }
        assert_eq!((ann.stats().lost, bob.stats().lost), (0, 0), "a lease was lost");
    });
}

/// A member without a leader delivers nothing, but still replies to the test of its stream. It must end the stream.
#[test]
fn a_holder_on_a_member_that_is_cut_off_learns_of_its_loss() {
    case(async |fixture| {
        let ann = LockClient::builder(fixture.backend(Route::Clear).await).ttl(TTL * 10).build().expect("a client");
        fixture.deployment().move_leader(2).expect("it leads");
        let guard = hold(&ann, "cut off").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        inject(&fixture, MemberFault::Cut, Which::TheClients);
        {
            let deployment = fixture.deployment();
            let side = deployment.member(2).side();
            let queue = Stored { side, prefix: PREFIX }.queue_prefix(&LockName::new("cut off").expect("a name"));
            assert_eq!(side.delete_all(queue).expect("it is deleted"), 1);
        }
        // No renewal is due for half a minute.
        let stopwatch = Stopwatch::start();
        guard.lost().await;
        stopwatch.within(DELAY * 2, "ann learns of her loss");
        end(&fixture, MemberFault::Cut, 0);
    });
}

/// A wait that is as long as a call ends just after the call, which knows that nothing was sent.
#[test]
fn a_cluster_that_is_down_is_unavailable() {
    run(DEADLINE, || async {
        let ports = [(); 3].map(|()| Port::free().expect("a port"));
        let hosts: Vec<_> = ports.iter().map(|port| port.addr().to_string()).collect();
        let url = format!("etcd://{}/?timeout=1s", hosts.join(","));
        let mut acquires = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let lock = leasehold::connect_lazy(&url).expect("a client").lock("down").wait(Duration::from_secs(1));
            acquires.spawn(async move { lock.acquire().await.expect_err("nobody listens").kind() });
        }
        assert_eq!(acquires.join_all().await, [ErrorKind::Unavailable; 20]);
    });
}
