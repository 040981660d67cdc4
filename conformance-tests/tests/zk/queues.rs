//! Queues: what they cost and leave, their last numbers, and nodes that others delete or overtake.

use std::sync::Arc;
use std::time::Duration;

use leasehold::zk::ZkBackend;
use leasehold_conformance::{DEADLINE, Data, Direct, Fixture, PathFault, Route, run};
use leasehold_core::backend::{AcquireOutcome, Delivery};
use leasehold_core::{KeeperRuntime, LockClient, LockName};
use leasehold_test_servers::{ZooKeeperLife, ZooKeeperNode, ZooKeeperServer, ZooKeeperSettings};

use super::common::{SOON, Stopwatch, eventually, hold};
use super::fixture::ROOT;
use super::one_server::OneServer;
use super::stored::Stored;
use super::support::{case, client, name, patient, queue};

const TTL: Duration = Duration::from_secs(30);

/// Names that are used once leave no nodes after the server has swept its containers.
#[test]
fn ten_thousand_names_leave_no_nodes() {
    const NAMES: usize = 10_000;
    run(DEADLINE * 3, || async {
        let settings = ZooKeeperSettings::new()
            .property("znode.container.checkIntervalMs=1000")
            .property("znode.container.maxPerMinute=10000000");
        let server: ZooKeeperServer = settings.start().unwrap_or_else(|error| panic!("{error}"));
        let client = leasehold::connect(&format!("zk://{}/?timeout=10s", server.addr())).await.expect("a client");
        let tasks = (0..100).map(|task| {
            let client = client.clone();
            tokio::spawn(async move {
                for index in 0..NAMES / 100 {
                    let guard = hold(&client, &format!("once/{task}/{index}")).await;
                    guard.release().await.expect("a release");
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("no panic");
        }
        let left = || {
            let names = server.side().children("/leasehold").expect("the root");
            names.iter().filter(|name| !name.starts_with('.')).count()
        };
        assert!(left() > 0, "the server has swept before this was read");
        eventually("the server has deleted the nodes of all names", || left() == 0).await;
        // A name is used again after its node was deleted.
        hold(&client, "once/0/0").await.release().await.expect("a release");
    });
}

/// A handoff wakes one client, however many wait.
#[test]
fn a_handoff_costs_the_same_with_many_waiters() {
    const HANDOFFS: u64 = 20;
    case(async |fixture| {
        let mut costs = Vec::new();
        for waiters in [40, 1_000] {
            let name = name(&format!("{waiters} waiters"));
            let holder = client(&fixture, TTL).await;
            let guard = hold(&holder, name.as_str()).await;
            let mut waiting = Vec::new();
            // Many sessions, which are kept active as seldom as those of a server with the default tick.
            let url =
                fixture.url(Route::Clear, "").replace("tick=200ms", "tick=2s").replace("timeout=1s", "timeout=10s");
            for _ in 0..waiters {
                let builder =
                    LockClient::builder(ZkBackend::connect_lazy(&url).expect("a URL")).ttl(TTL * 20).wait(SOON * 20);
                let client = builder.keeper(KeeperRuntime::CurrentRuntime).build().expect("a client");
                waiting.push(tokio::spawn(async move {
                    let guard = client.lock(name_of(waiters)).acquire().await.expect("its turn comes");
                    (client, guard)
                }));
            }
            eventually("all wait", || queue(&fixture, &name) == waiters + 1).await;
            eventually("all watch", || fixture.statistic("watch_count") > waiters as u64).await;
            let before = requests(&fixture);
            let (mut guard, mut clients) = (guard, Vec::new());
            for _ in 0..HANDOFFS {
                guard.release().await.expect("a release");
                let done = next_of(&mut waiting).await;
                clients.push(done.0);
                guard = done.1;
            }
            costs.push(requests(&fixture) - before);
            waiting.iter().for_each(tokio::task::JoinHandle::abort);
            guard.release().await.expect("a release");
        }
        // The transaction that releases, and the watch of a node by its own client. The client behind the first holder
        // also lists the queue.
        assert!(costs.iter().all(|cost| *cost <= HANDOFFS * 2 + 4), "{HANDOFFS} handoffs cost {costs:?} requests");
    });
}

/// A creation, a list, a watch, and the transaction that releases. Ten thousand of them leave no watch behind.
#[test]
fn a_contended_acquire_and_release_cost_four_requests() {
    const CLIENTS: u64 = 5;
    const ROUNDS: u64 = 2_000;
    case(async |fixture| {
        let clients = clients(&fixture, CLIENTS).await;
        let watches = || fixture.statistic("watch_count");
        eventually("the watches of the first holds are gone", || watches() == 0).await;
        let before = requests(&fixture);
        contend(&clients, ROUNDS).await;
        let (cost, pairs) = (requests(&fixture) - before, CLIENTS * ROUNDS);
        // At the beginning and at the end, a client behind one that has not waited also lists the queue.
        assert!(cost <= pairs * 4 + pairs / 10, "{pairs} pairs cost {cost} requests");
        eventually("no watch is left", || watches() == 0).await;
    });
}

/// Clients that have held the contended lock once.
async fn clients(fixture: &OneServer, count: u64) -> Vec<LockClient> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let client = client(fixture, TTL).await;
        hold(&client, "contended").await.release().await.expect("a release");
        clients.push(client);
    }
    clients
}

/// Each client acquires and releases the contended lock this many times.
async fn contend(clients: &[LockClient], cycles: u64) {
    let tasks = clients.iter().cloned().map(|client| {
        tokio::spawn(async move {
            for _ in 0..cycles {
                hold(&client, "contended").await.release().await.expect("a release");
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no panic");
    }
}

/// The number of requests about nodes below the root.
fn requests(fixture: &OneServer) -> u64 {
    fixture.writes() + fixture.statistic("cnt_team a_read_per_namespace")
}

fn name_of(waiters: usize) -> String {
    format!("{waiters} waiters")
}

type Holding = (LockClient, leasehold_core::LockGuard);

/// The waiter that holds next.
async fn next_of(waiting: &mut Vec<tokio::task::JoinHandle<Holding>>) -> Holding {
    let stopwatch = Stopwatch::start();
    loop {
        if let Some(index) = waiting.iter().position(tokio::task::JoinHandle::is_finished) {
            return waiting.swap_remove(index).await.expect("no panic");
        }
        stopwatch.within(SOON, "a waiter gets the lock");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The server numbers nodes up to a last number. Beyond it, clients still hold in the order in which they came.
#[test]
fn the_last_numbers_keep_the_order() {
    const CLIENTS: usize = 6;
    case(async |fixture| {
        let name = name("last numbers");
        let first = client(&fixture, TTL).await;
        hold(&first, name.as_str()).await.release().await.expect("a release");
        drop(first);
        {
            let mut deployment = fixture.deployment();
            let path = Stored { side: deployment.side(), root: ROOT }.lock(&name);
            deployment.kill().expect("a kill");
            deployment.set_counter(&path, i32::MAX - 2).expect("a counter");
            deployment.start_again(Data::Kept).expect("a start");
        }
        let (order, mut tasks) = (Arc::new(std::sync::Mutex::new(Vec::new())), Vec::new());
        let holder = client(&fixture, TTL).await;
        let guard = hold(&holder, name.as_str()).await;
        for index in 0..CLIENTS {
            let (client, order) = (client(&fixture, TTL).await, order.clone());
            let lock = client.lock(name.as_str());
            tasks.push(tokio::spawn(async move {
                let guard = lock.acquire().await.expect("its turn comes");
                order.lock().expect("no panic").push((index, guard.fencing_token()));
                guard.release().await.expect("a release");
            }));
            eventually("the client waits", || queue(&fixture, &name) == index + 2).await;
        }
        let last = Stored { side: fixture.deployment().side(), root: ROOT }.queue(&name);
        let at_the_end = last.iter().filter(|node| node.path.ends_with("-2147483647")).count();
        assert!(at_the_end >= 2, "the server goes on after its last number: {last:?}");
        let mut token = guard.fencing_token();
        guard.release().await.expect("a release");
        for task in tasks {
            task.await.expect("no panic");
        }
        for (expected, (index, next)) in order.lock().expect("no panic").iter().enumerate() {
            assert_eq!(*index, expected, "clients hold in their order");
            assert!(*next > token, "tokens rise");
            token = *next;
        }
    });
}

/// An operator deletes the node of a waiter. Its next renewal notices that, and the waiter takes another place although
/// nothing else happens.
#[test]
fn a_place_that_was_deleted_is_taken_again() {
    case(async |fixture| {
        let (ann, bob) = (client(&fixture, TTL).await, client(&fixture, Duration::from_secs(3)).await);
        let name = name("deleted place");
        let guard = hold(&ann, name.as_str()).await;
        let lock = bob.lock(name.as_str());
        let waiter = tokio::spawn(async move { lock.acquire().await.expect("its turn comes") });
        eventually("bob waits", || queue(&fixture, &name) == 2).await;
        let place = Stored { side: fixture.deployment().side(), root: ROOT }.queue(&name).pop().expect("his place");
        fixture.deployment().side().delete(&place.path).expect("it is deleted");
        eventually("bob waits again", || queue(&fixture, &name) == 2).await;
        guard.release().await.expect("a release");
        waiter.await.expect("no panic").release().await.expect("a release");
    });
}

/// An attempt that does not wait sees a free lock, and another client is faster. The attempt leaves no node behind.
#[test]
fn an_attempt_that_was_overtaken_leaves_no_place() {
    const SLOW: Duration = Duration::from_millis(150);
    case(async |fixture| {
        let ann = Direct::warm(&fixture, Route::Clear).await;
        let (bob, ttl) = (patient(&fixture), fixture.ttl() * 20);
        bob.granted(&bob.claim(&name("opens the session")), ttl).await;
        fixture.path(PathFault::Delay(SLOW)).await;
        let mut refused = 0;
        for round in 0..3 {
            let name = name(&format!("overtaken {round}"));
            let attempt = tokio::spawn({
                let (bob, claim) = (bob.clone(), bob.claim(&name));
                async move { bob.try_acquire(&claim, ttl).await.expect("an attempt") }
            });
            // The list of the attempt arrives after one delay, and its creation two delays later.
            tokio::time::sleep(SLOW * 2).await;
            let overtakes = ann.acquire(&ann.claim(&name), ttl).await.expect("an acquire");
            // On a busy machine it may come too late.
            if let AcquireOutcome::Contended { .. } = attempt.await.expect("no panic") {
                assert!(matches!(overtakes, AcquireOutcome::Granted(_)), "{overtakes:?}");
                assert_eq!(queue(&fixture, &name), 1, "the attempt has left its node");
                refused += 1;
            }
        }
        assert!(refused > 0, "no attempt was overtaken");
    });
}

/// A holder releases while an operator breaks its lease, and the claim behind it would get the token that the break
/// raises to. A break that ends nothing leaves that claim, which holds by then.
#[test]
fn a_break_that_meets_a_release_leaves_the_next_lease() {
    const SLOW: Duration = Duration::from_millis(40);
    case(async |fixture| {
        let ann = Direct::warm(&fixture, Route::Clear).await;
        let (operator, ttl) = (patient(&fixture), fixture.ttl() * 20);
        operator.granted(&operator.claim(&name("opens the session")), ttl).await;
        fixture.path(PathFault::Delay(SLOW)).await;
        let (mut broke, mut met, mut round, mut again) = (0, 0, 0, 0);
        // The release arrives between any two requests of the break.
        while round < 16 {
            let name = name(&format!("broken {round} {again}"));
            let claim = ann.claim(&name);
            fixture.deployment().side().sync().expect("a session");
            let token = ann.granted(&claim, ttl).await.token;
            let next = stands_behind(&fixture, &name);
            if next.created.unsigned_abs() != token.get() + 1 {
                // A session of an earlier case ended between the two.
                again += 1;
                assert!(again < 20, "a write comes between the two each time");
                ann.release(&claim, Delivery::Confirmed).await.expect("a release");
                continue;
            }
            let admin = operator.backend().admin().expect("it breaks locks");
            let broken = async { admin.break_lock(&name, token).await.expect("a break") };
            let released = async {
                tokio::time::sleep(SLOW * round).await;
                ann.release(&claim, Delivery::Confirmed).await.expect("a release");
            };
            let (broken, ()) = tokio::join!(broken, released);
            let left = queue(&fixture, &name);
            match broken {
                Some(_) => {
                    assert_eq!(left, 0, "a claim whose token is not above the raised one is left");
                    broke += 1;
                }
                None => {
                    assert_eq!(left, 1, "a break that ended nothing has ended the next lease");
                    met += 1;
                }
            }
            round += 1;
        }
        assert!(broke > 0 && met > 0, "no release came before or after the break: {broke}, {met}");
    });
}

/// Adds the node of another claim to the queue, in one transaction: a client would write more.
fn stands_behind(fixture: &OneServer, name: &LockName) -> ZooKeeperNode {
    let deployment = fixture.deployment();
    let stored = Stored { side: deployment.side(), root: ROOT };
    let path = format!("{}/{:032x}-", stored.lock(name), 7);
    stored.side.create(&path, b"1\t10000\t", ZooKeeperLife::Sequential).expect("a node");
    stored.queue(name).pop().expect("the node")
}
