//! Failovers. Sentinels promote a replica, and no two clients believe in a lock at the same time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::redis::RedisBackend;
use leasehold_conformance::Direct;
use leasehold_conformance::harness::Fault;
use leasehold_core::backend::{RenewReply, RenewRequest};
use leasehold_core::{ErrorKind, LockClient, LockGuard, LockName};

use super::common::{SOON, Stopwatch, eventually, hold};
use super::deployment::{Deployment, case};

const TTL: Duration = Duration::from_secs(4);

/// How long a promoted server grants no lock: the time for which a former primary may be believed.
fn quarantine(ttl: Duration) -> Duration {
    ttl + ttl / 3 + Duration::from_secs(2)
}

/// How long clients may take to see a promoted server, and then to try again after its quarantine: pauses between two
/// attempts, and one call each.
const RETRY: Duration = Duration::from_millis(2_000);

/// Both clients use the lock, and know each other's ttl, before the case.
async fn ann_and_bob(deployment: &Deployment) -> (LockClient, LockClient) {
    let (ann, bob) = (deployment.client(TTL).await, deployment.client(TTL).await);
    for client in [&ann, &bob] {
        hold(client, "used before").await.release().await.expect("a release");
    }
    (ann, bob)
}

/// Bob waits for the lock of Ann, and gets it. Her guard must not be held then.
async fn never_two(guard: &LockGuard, bob: &LockClient, name: &str) -> LockGuard {
    let next = hold(bob, name).await;
    assert!(!guard.is_held(), "two holders");
    assert!(next.fencing_token() > guard.fencing_token(), "tokens rise");
    next
}

/// The replica that is promoted has the lease. Its holder keeps it, and no other client gets the lock.
#[test]
fn a_lease_outlives_a_failover() {
    case(2, async |mut deployment| {
        let (ann, bob) = ann_and_bob(&deployment).await;
        // Long enough for a failover on a busy machine.
        let guard = ann.lock("kept").ttl(TTL * 2).acquire().await.expect("it is free");
        let name = "kept";
        deployment.is_replicated().await;
        deployment.servers[0].kill().expect("it runs");
        let promoted = deployment.switched().await;
        let switched = Instant::now();
        while switched.elapsed() < TTL * 3 {
            assert!(guard.is_held(), "the lease was lost {:?} after the failover", switched.elapsed());
            match bob.lock(name).try_acquire().await {
                Ok(granted) => assert!(granted.is_none(), "two holders"),
                Err(error) => assert!(error.kind() == ErrorKind::Unavailable, "{error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(!deployment.left(promoted, name).is_zero(), "the promoted server has the lease");
        guard.release().await.expect("a release");
        let next = hold(&bob, name).await;
        assert!(deployment.left(promoted, name) > Duration::ZERO, "granted by the promoted server");
        next.release().await.expect("a release");
    });
}

/// The failover follows a grant that no replica has received. Its holder puts the lease back.
#[test]
fn a_grant_that_the_failover_loses_stays_with_its_holder() {
    case(2, async |mut deployment| {
        let (ann, bob) = ann_and_bob(&deployment).await;
        deployment.cut_off().await;
        // Long enough for a failover on a busy machine.
        let guard = ann.lock("lost").ttl(TTL * 2).acquire().await.expect("it is free");
        deployment.servers[0].kill().expect("it runs");
        let promoted = deployment.switched().await;
        let switched = Instant::now();
        assert_eq!(deployment.left(promoted, "lost"), Duration::ZERO, "the promoted server has no such lease");
        while switched.elapsed() < quarantine(TTL * 2) + RETRY {
            assert!(guard.is_held(), "the lease was lost {:?} after the failover", switched.elapsed());
            match bob.lock("lost").try_acquire().await {
                Ok(granted) => assert!(granted.is_none(), "two holders"),
                Err(error) => assert!(error.kind() == ErrorKind::Unavailable, "{error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(!deployment.left(promoted, "lost").is_zero(), "the promoted server has the lease");
        let token = guard.fencing_token();
        guard.release().await.expect("a release");
        assert!(hold(&bob, "lost").await.fencing_token() > token, "tokens rise");
    });
}

/// The same, and its holder is gone.
#[test]
fn a_lost_grant_makes_no_second_holder() {
    case(2, async |mut deployment| {
        let (ann, bob) = (deployment.client_by_paths(TTL, "timeout=1s").await, deployment.client(TTL).await);
        for client in [&ann, &bob] {
            hold(client, "used before").await.release().await.expect("a release");
        }
        deployment.cut_off().await;
        let guard = hold(&ann, "lost").await;
        let stopwatch = Stopwatch::start();
        deployment.paths.iter().for_each(|path| path.apply(Fault::DropTraffic));
        deployment.servers[0].kill().expect("it runs");
        let promoted = deployment.switched().await;
        let switched = Instant::now();
        assert_eq!(deployment.left(promoted, "lost"), Duration::ZERO, "the promoted server has no such lease");
        let _next = never_two(&guard, &bob, "lost").await;
        let took = switched.elapsed();
        let bound = quarantine(TTL) + RETRY + stopwatch.lag();
        assert!(took <= bound, "the wait took {took:?} of {bound:?}");
        // A client sees the promoted server after a majority has named it, and about when this case does.
        let least = quarantine(TTL) - Duration::from_millis(200);
        assert!(took >= least, "granted {took:?} after the failover");
        assert!(!deployment.left(promoted, "lost").is_zero(), "granted by the promoted server");
    });
}

/// Ann and the primary are cut off from the Sentinels, which promote a replica while the primary is paused. It goes on
/// confirming her renewals afterwards, and she does not believe it for long.
#[test]
fn a_demoted_primary_is_not_believed_for_long() {
    case(2, async |mut deployment| {
        let ttl = TTL * 3 / 2;
        let ann = deployment.client_by_paths(ttl, "timeout=3s").await;
        let bob = deployment.client(ttl).await;
        let guard = hold(&ann, "demoted").await;
        let stopwatch = Stopwatch::start();
        deployment.paths.iter().for_each(|path| path.apply(Fault::DropTraffic));
        deployment.servers[0].pause().expect("it runs");
        let promoted = deployment.switched().await;
        deployment.servers[0].resume().expect("it is paused");
        // Sentinels make it a replica about ten seconds later.
        let waiting = tokio::spawn(async move {
            let next = hold(&bob, "demoted").await;
            (Instant::now(), next)
        });
        let mut confirmed = Duration::ZERO;
        while guard.is_held() {
            // What the former primary says: how long the lease lasts there.
            confirmed = confirmed.max(stopwatch.elapsed() + deployment.left(0, "demoted"));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let lost = Instant::now();
        let believed = stopwatch.elapsed();
        let bound = ttl + ttl / 3 + stopwatch.lag();
        assert!(believed <= bound, "she believed the former primary for {believed:?}");
        assert!(confirmed > believed + ttl / 4, "the former primary went on confirming: {confirmed:?} {believed:?}");
        let (granted, next) = waiting.await.expect("no panic");
        assert!(granted >= lost, "two holders");
        assert!(!deployment.left(promoted, "demoted").is_zero(), "granted by the promoted server");
        assert!(next.fencing_token() > guard.fencing_token(), "tokens rise");
    });
}

/// Ann renews her leases at the promoted server. They end at the former primary, which goes on and grants the locks to
/// clients that are cut off from the Sentinels together with it. With long ttls, the last answer of the Sentinels is new
/// enough for these.
#[test]
fn a_former_primary_grants_no_lock_whose_holder_has_moved() {
    const NAMES: [&str; 4] = ["tried", "waited for", "handed over", "renewed"];
    case(2, async |mut deployment| {
        let ttl = TTL * 7 / 4;
        let (ann, long) = (deployment.client(ttl).await, ttl * 20);
        // They keep their connections to the server while it is paused.
        let more = "timeout=20s";
        let (bob, carol) = (deployment.client_by_paths(long, more).await, deployment.client_by_paths(long, more).await);
        let mut guards = Vec::new();
        for name in NAMES {
            guards.push(hold(&ann, name).await);
        }
        let waits = |name: &'static str| {
            let lock = bob.lock(name);
            tokio::spawn(async move { lock.acquire().await.expect("a lock") })
        };
        let mut waiting = vec![waits(NAMES[1]), waits(NAMES[2])];
        // Dan only renews his place, so a renewal finds the grant.
        let backend = RedisBackend::connect(&deployment.url_by_paths(more)).await.expect("a server");
        let dan = Direct::attach(Arc::new(backend));
        let claim = dan.claim(&LockName::new(NAMES[3]).expect("a name"));
        let place = dan.not_granted(&claim, long).await;
        let has_places = || NAMES[1..].iter().all(|name| deployment.record(0, name).waiters == Some(1));
        eventually("Bob and Dan wait", has_places).await;
        deployment.is_replicated().await;
        deployment.paths.iter().for_each(|path| path.apply(Fault::DropTraffic));
        deployment.servers[0].pause().expect("it runs");
        deployment.switched().await;
        deployment.servers[0].resume().expect("it is paused");
        let tries = bob.lock(NAMES[0]);
        waiting.push(tokio::spawn(async move {
            loop {
                if let Ok(Some(next)) = tries.try_acquire().await {
                    return next;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }));
        let renewing = tokio::spawn(async move {
            while !matches!(dan.renew(RenewRequest::new(claim.clone(), place, long)).await, RenewReply::Granted(_)) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        // It grants the locks when Ann's leases end there. Sentinels make it a replica later.
        let (resumed, mut granted, mut all_granted) = (Instant::now(), [false; NAMES.len()], None::<Instant>);
        while all_granted.is_none_or(|since| since.elapsed() < Duration::from_secs(1)) {
            assert!(resumed.elapsed() < SOON, "the former primary grants the locks: {granted:?}");
            // Her request hands the lock to Bob.
            let _ = carol.lock(NAMES[2]).try_acquire().await.map(|next| assert!(next.is_none(), "two holders"));
            for (number, (name, guard)) in NAMES.iter().zip(&guards).enumerate() {
                assert!(guard.is_held(), "Ann keeps {name:?}");
                granted[number] =
                    granted[number] || deployment.record(0, name).last_token > Some(guard.fencing_token());
            }
            if granted == [true; NAMES.len()] {
                all_granted.get_or_insert_with(Instant::now);
            }
            for (task, name) in waiting.iter().zip([NAMES[1], NAMES[2], NAMES[0]]) {
                assert!(!task.is_finished(), "two holders of {name:?}");
            }
            assert!(!renewing.is_finished(), "two holders of {:?}", NAMES[3]);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for guard in guards {
            assert!(guard.is_held(), "Ann keeps her leases");
            guard.release().await.expect("a release");
        }
        waiting.iter().for_each(tokio::task::JoinHandle::abort);
        renewing.abort();
    });
}

/// The primary is silent, so that no connection to it breaks. Its clients move when the Sentinels say so.
#[test]
fn clients_move_when_sentinels_report_a_failover() {
    case(2, async |mut deployment| {
        // No request of the client would notice anything for a long time.
        let client = deployment.client_by_paths(TTL * 10, "timeout=20s").await;
        hold(&client, "warm").await.release().await.expect("a release");
        // The keeper's connection has two channels.
        let is_on = |server: usize, deployment: &Deployment| {
            let clients = deployment.servers[server].clients().unwrap_or_default();
            clients.iter().any(|line| line.contains(" sub=2 "))
        };
        eventually("the keeper is connected", || is_on(0, &deployment)).await;
        deployment.servers[0].pause().expect("it runs");
        // Its first connection waits for the server that is silent.
        let url = deployment.url_of(&deployment.addrs(), "timeout=20s");
        let late = RedisBackend::connect_lazy(&url).expect("a URL");
        let late = LockClient::builder(late).wait(SOON).ttl(TTL * 10).build().expect("a client");
        let waiting = tokio::spawn(async move { late.lock("x").try_acquire().await.map(drop) });
        let promoted = deployment.switched().await;
        let stopwatch = Stopwatch::start();
        // The keeper's connection is opened again without a request.
        eventually("the client has moved", || is_on(promoted, &deployment)).await;
        stopwatch.within(Duration::from_secs(1), "the client moves");
        let stopwatch = Stopwatch::start();
        let refused = loop {
            let error = client.lock("x").try_acquire().await.expect_err("a quarantine");
            stopwatch.within(Duration::from_secs(1), "a request meets the new primary");
            // The first request may have met the end of the former connection.
            if error.kind() != ErrorKind::Indeterminate {
                break error;
            }
        };
        let error = waiting.await.expect("no panic").expect_err("the first attempt has failed");
        stopwatch.within(Duration::from_secs(2), "an attempt to connect ends");
        assert!(error.kind() == ErrorKind::Unavailable, "{error:?}");
        assert!(refused.to_string().contains("replaced"), "{refused}");
        assert!(refused.to_string().contains(&deployment.servers[promoted].addr().to_string()), "{refused}");
        deployment.servers[0].resume().expect("it is paused");
    });
}
