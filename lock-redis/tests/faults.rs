//! Servers that refuse requests, lose data, stop and go away.

mod support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, LockBackend, PlaceNumber, ReleaseOutcome, RenewReply, RenewRequest,
};
use leasehold_core::{Error, ErrorKind};
use leasehold_redis::{RedisBackend, ScriptCalls};
use redis::Value;
use support::{Backend, Redis, claim, ms, settings};

const LONG: Duration = ms(30_000);

/// The time limit for a push.
const PUSH_TIMEOUT: Duration = ms(2_000);

#[track_caller]
fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.expect_err("an error").kind()
}

#[tokio::test]
async fn the_minimal_permissions_are_sufficient_and_all_are_needed() {
    let server = Redis::start(&[]);
    permissions_are_minimal(&server, ScriptCalls::Eval, "").await;
}

/// Scripts that run as functions do the same, and the user may not run `EVAL`.
#[tokio::test]
async fn the_permissions_of_functions_are_sufficient_and_all_are_needed() {
    let server = Redis::start(&[]);
    server.command(&["FUNCTION", "LOAD", &leasehold_redis::functions()]).await;
    permissions_are_minimal(&server, ScriptCalls::Functions, "&scripts=functions").await;
}

async fn permissions_are_minimal(server: &Redis, calls: ScriptCalls, more: &str) {
    let rules = leasehold_redis::acl("test:", calls).unwrap();
    let mut set = vec!["ACL", "SETUSER", "locks", "on", ">secret"];
    set.extend(rules.split(' '));
    server.command(&set).await;
    let url = format!("{}&user=locks&pass=secret{more}", server.url());
    let connect = || async { RedisBackend::connect(&url).await };
    let everything = || async {
        server.command(&["FLUSHALL"]).await;
        server.command(&["SCRIPT", "FLUSH"]).await;
        // This checks that the user may have replicas counted.
        RedisBackend::connect(&format!("{url}&min_replicas=1")).await?;
        let mut backend = Backend::new(connect().await?);
        let shown = format!("{:?}", backend.inner);
        assert!(!shown.contains("secret"), "{shown}");
        let subscribed = tokio::time::timeout(PUSH_TIMEOUT, backend.subscribed()).await;
        subscribed.map_err(|_| Error::new(ErrorKind::Auth, "it receives no pushes"))?;
        let AcquireOutcome::Granted(grant) = backend.acquire(&claim("job", 1), LONG).await? else {
            panic!("not granted")
        };
        let AcquireOutcome::Queued { confirmation, .. } = backend.acquire(&claim("job", 2), LONG).await? else {
            panic!("not queued")
        };
        backend.acquire(&claim("job", 3), LONG).await?;
        backend.acquire(&claim("job", 4), LONG).await?;
        backend.release(&claim("job", 4)).await?;
        // Two leases take another path through the scripts than one.
        let leases = [(1, grant.confirmation.place), (2, confirmation.place)]
            .map(|(number, place)| RenewRequest::new(claim("job", number), place, LONG));
        for answer in backend.renew(&leases).await {
            if let RenewReply::Unknown(error) = answer {
                return Err(error);
            }
        }
        if let RenewReply::Unknown(error) =
            backend.renew_one(&claim("job", 1), grant.confirmation.place, ms(60_000)).await
        {
            return Err(error);
        }
        leasehold_core::backend::LockBackend::admin(&*backend.inner).unwrap().inspect(claim("job", 1).name()).await?;
        backend.withdraw(&claim("job", 1)).await?;
        tokio::time::timeout(PUSH_TIMEOUT, backend.pushed())
            .await
            .map_err(|_| Error::new(ErrorKind::Auth, "a grant is not published"))?;
        let _ = backend.acquire(&claim("job", 1), LONG).await;
        backend.release(&claim("job", 3)).await?;
        backend.release(&claim("job", 2)).await?;
        backend.acquire(&claim("job", 5), LONG).await?;
        Ok::<_, Error>(())
    };
    everything().await.unwrap();

    // Only a full server needs PEXPIREAT, only another database needs SELECT, and only a node of a cluster is asked who
    // it is. Without MGET and SETRANGE the scripts take a slower path.
    for command in rules.split(' ').filter_map(|rule| rule.strip_prefix('+')) {
        let is_of_cluster = command == "asking" || command.starts_with("cluster|");
        if is_of_cluster || matches!(command, "pexpireat" | "select" | "mget" | "setrange") {
            continue;
        }
        server.command(&["ACL", "SETUSER", "locks", &format!("-{command}")]).await;
        let without = everything().await.map_err(|error| error.kind());
        assert_eq!(without, Err(ErrorKind::Auth), "without {command}");
        server.command(&["ACL", "SETUSER", "locks", &format!("+{command}")]).await;
    }
    everything().await.unwrap();
    // Keys with another prefix are not permitted.
    let other = server.url().replace("prefix=test:", "prefix=other:");
    let error = RedisBackend::connect(&format!("{other}&user=locks&pass=secret{more}")).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Auth && error.to_string().contains("leasehold acl redis"), "{error:?}");
}

#[tokio::test]
async fn an_operator_is_told_to_load_the_functions() {
    let server = Redis::start(&[]);
    let url = format!("{}&scripts=functions", server.url());
    let error = RedisBackend::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("`leasehold functions redis | redis-cli -x FUNCTION LOAD`"), "{error}");
    // The libraries of two versions do not exclude each other.
    let library = leasehold_redis::functions();
    let version = library.split_once("name=leasehold_").expect("a name").1[..12].to_owned();
    server.command(&["FUNCTION", "LOAD", &library.replace(&version, "0123456789ab")]).await;
    server.command(&["FUNCTION", "LOAD", &library]).await;
    let backend = Backend::new(RedisBackend::connect(&url).await.unwrap());
    backend.granted(&claim("job", 1), LONG).await;
    // They go with the data.
    server.command(&["FUNCTION", "FLUSH"]).await;
    assert_eq!(kind(backend.acquire(&claim("job", 2), LONG).await), ErrorKind::Unsupported);
}

#[tokio::test]
async fn a_user_without_eval_is_told_of_the_functions() {
    let server = Redis::start(&[]);
    server
        .command(&["ACL", "SETUSER", "locks", "on", ">secret", "allkeys", "allchannels", "+@all", "-@scripting"])
        .await;
    let error = RedisBackend::connect(&format!("{}&user=locks&pass=secret", server.url())).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Auth && error.to_string().contains("`scripts=functions`"), "{error}");
}

#[tokio::test]
async fn a_server_that_may_evict_is_refused_by_default() {
    for policy in ["volatile-ttl", "allkeys-lru"] {
        let server = Redis::start(&["--maxmemory-policy", policy]);
        let error = RedisBackend::connect(&server.url()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = error.to_string();
        assert!(text.contains(policy) && text.contains("noeviction") && text.contains("eviction=warn"), "{text}");
        server.backend("&eviction=warn").await.granted(&claim("job", 1), LONG).await;
    }
}

#[tokio::test]
async fn a_full_server_grants_nothing_and_ends_nothing() {
    let server = Redis::start(&[]);
    let backend = server.backend("").await;
    let ann = backend.granted(&claim("job", 1), LONG).await;
    let bob = backend.granted(&claim("contended", 1), LONG).await;
    let (waiter, _) = backend.queued(&claim("contended", 2), LONG).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await;

    let error = backend.acquire(&claim("more", 1), LONG).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Capacity, "{error:?}");
    let place = |grant: &leasehold_core::backend::Grant| grant.confirmation.place;
    assert!(matches!(backend.renew_one(&claim("job", 1), place(&ann), ms(60_000)).await, RenewReply::Renewed(_)));
    // This one needs a later expiry of the record.
    assert!(matches!(
        backend.renew_one(&claim("job", 1), place(&ann), ms(20 * 3600 * 1000)).await,
        RenewReply::Renewed(_)
    ));
    assert!(matches!(backend.renew_one(&claim("contended", 1), place(&bob), LONG).await, RenewReply::Renewed(_)));
    assert_eq!(backend.release(&claim("job", 1)).await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(backend.withdraw(&claim("contended", 1)).await.unwrap(), ReleaseOutcome::Released);
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert!(matches!(backend.renew_one(&claim("contended", 2), waiter, LONG).await, RenewReply::Granted(_)));
    backend.granted(&claim("job", 2), LONG).await;
    let Value::Int(left) = server.command(&["PTTL", "test:{job}"]).await else { panic!("no time") };
    assert!(left > 0, "a record that never goes: {left}");
}

#[tokio::test]
async fn a_replica_refuses_locks() {
    let server = Redis::start(&["--replica-serve-stale-data", "yes"]);
    let backend = server.backend("").await;
    backend.granted(&claim("job", 1), LONG).await;
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    assert_eq!(kind(backend.acquire(&claim("other", 1), LONG).await), ErrorKind::Unavailable);
    assert_eq!(kind(backend.release(&claim("job", 1)).await), ErrorKind::Unavailable);
    let answer = backend.renew_one(&claim("job", 1), PlaceNumber::NONE, LONG).await;
    assert!(matches!(&answer, RenewReply::Unknown(error) if error.kind() == ErrorKind::Unavailable), "{answer:?}");
    server.command(&["REPLICAOF", "NO", "ONE"]).await;
    assert_eq!(backend.release(&claim("job", 1)).await.unwrap(), ReleaseOutcome::Released);
}

#[tokio::test]
async fn no_server_is_unavailable_at_once_and_a_silent_one_within_the_bound() {
    let mut server = Redis::start(&[]);
    let mut backend = server.backend("&timeout=2s").await;
    backend.subscribed().await;
    backend.granted(&claim("job", 1), LONG).await;

    server.signal("-STOP");
    let started = Instant::now();
    assert_eq!(kind(backend.acquire(&claim("late", 1), LONG).await), ErrorKind::Indeterminate);
    assert!(started.elapsed() >= ms(2000), "given up after {:?}", started.elapsed());
    // By now the connection is closed, and no new one can be made.
    assert_eq!(kind(backend.acquire(&claim("more", 1), LONG).await), ErrorKind::Unavailable);
    server.signal("-CONT");
    let until = Instant::now() + ms(20_000);
    while let Err(error) = backend.withdraw(&claim("late", 1)).await {
        assert!(Instant::now() < until, "{error:?}");
    }
    assert_eq!(kind(backend.acquire(&claim("late", 1), LONG).await), ErrorKind::Lost);

    server.kill();
    // A request that is sent before the client sees the end of the connection may have arrived.
    let first = kind(backend.acquire(&claim("job", 2), LONG).await);
    assert!(matches!(first, ErrorKind::Indeterminate | ErrorKind::Unavailable), "{first:?}");
    assert_eq!(kind(backend.acquire(&claim("job", 2), LONG).await), ErrorKind::Unavailable);
    assert_eq!(kind(RedisBackend::connect(&server.url()).await), ErrorKind::Unavailable);
}

/// Acquires far more locks at once than fit into one batch. Returns the errors of the calls, and the longest time that a call took, minus
/// the lag of the machine itself.
async fn acquire_many(backend: &Backend) -> (Vec<Option<ErrorKind>>, Duration) {
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..600 {
        let (backend, claim) = (backend.inner.clone(), claim(&format!("job{number}"), number as u8));
        calls.spawn(async move {
            let began = Instant::now();
            (backend.acquire(&AcquireRequest::new(claim, LONG)).await.err().map(|error| error.kind()), began.elapsed())
        });
    }
    let late = Arc::<Mutex<Duration>>::default();
    let lag_monitor = tokio::spawn({
        let late = late.clone();
        async move {
            loop {
                let began = Instant::now();
                tokio::time::sleep(ms(1)).await;
                let mut late = late.lock().unwrap();
                *late = began.elapsed().max(*late);
            }
        }
    });
    let (ends, took): (Vec<_>, Vec<_>) = calls.join_all().await.into_iter().unzip();
    lag_monitor.abort();
    let longest = took.into_iter().max().expect("there were calls");
    (ends, longest.saturating_sub(*late.lock().unwrap()))
}

#[tokio::test]
async fn each_of_many_requests_ends_within_its_bound_in_front_of_a_silent_server() {
    let server = Redis::start(&[]);
    let mut backend = server.backend("&timeout=2s").await;
    backend.subscribed().await;
    backend.granted(&claim("job", 1), LONG).await;
    server.signal("-STOP");
    let (ends, longest) = acquire_many(&backend).await;
    server.signal("-CONT");
    let count = |wanted| ends.iter().filter(|&&end| end == Some(wanted)).count();
    let (sent, unsent) = (count(ErrorKind::Indeterminate), count(ErrorKind::Unavailable));
    assert!(sent >= 64 && unsent >= 64 && sent + unsent == 600, "{sent} and {unsent}");
    assert!(longest <= ms(2000 + 200), "{longest:?}");
}

#[tokio::test]
async fn each_of_many_requests_ends_within_its_bound_over_a_slow_path() {
    let server = Redis::start(&[]);
    let url = server.slow_url(ms(900));
    let backend = Backend::new(RedisBackend::connect_lazy(&format!("{url}&timeout=2s")).unwrap());
    // Connecting, loading the scripts and publishing the ttl each take a round trip.
    let until = Instant::now() + ms(60_000);
    while let Err(error) = backend.acquire(&claim("job", 1), LONG).await {
        assert!(Instant::now() < until, "{error:?}");
    }
    let (ends, longest) = acquire_many(&backend).await;
    // The third batch cannot get its reply in time.
    let count = |wanted| ends.iter().filter(|&&end| end == wanted).count();
    let (granted, open) = (count(None), count(Some(ErrorKind::Indeterminate)));
    assert!(granted >= 64 && open >= 64, "{granted} and {open}");
    assert!(longest <= ms(2000 + 200), "{longest:?}");
}

#[tokio::test]
async fn a_connection_that_breaks_during_a_call_leaves_the_outcome_unknown_and_the_next_call_works() {
    let server = Redis::start(&[]);
    let mut backend = server.backend("").await;
    backend.subscribed().await;
    // The first acquire publishes the ttl, so that the second one is the request that is cut.
    backend.granted(&claim("warm", 1), LONG).await;
    server.command(&["CLIENT", "PAUSE", "20000", "WRITE"]).await;
    let call = tokio::spawn({
        let inner = backend.inner.clone();
        async move { inner.acquire(&AcquireRequest::new(claim("job", 1), LONG)).await }
    });
    tokio::time::sleep(ms(100)).await;
    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    server.command(&["CLIENT", "UNPAUSE"]).await;
    assert_eq!(kind(call.await.unwrap()), ErrorKind::Indeterminate);
    let until = Instant::now() + ms(20_000);
    while let Err(error) = backend.acquire(&claim("job", 2), LONG).await {
        assert!(Instant::now() < until, "{error:?}");
    }
    // Messages in the meantime were lost, so every waiter retries.
    backend.subscribed().await;
}

#[tokio::test]
async fn after_a_restart_with_data_leases_are_renewed_and_the_queue_waits() {
    let mut server = Redis::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut backend = server.backend("").await;
    backend.subscribed().await;
    let ttl = ms(4000);
    let place = backend.granted(&claim("job", 1), ttl).await.confirmation.place;
    let (second, _) = backend.queued(&claim("job", 2), ttl).await;
    server.kill();
    server.start_again();
    backend.subscribed().await;
    assert!(matches!(backend.renew_one(&claim("job", 1), place, ttl).await, RenewReply::Renewed(_)));
    assert_eq!(backend.release(&claim("job", 1)).await.unwrap(), ReleaseOutcome::Released);
    // The record may be older than what was acknowledged, so not even the queue gets the lock yet.
    match backend.renew_one(&claim("job", 2), second, ttl).await {
        RenewReply::Waiting { retry_after, .. } => assert!(retry_after > ms(500), "{retry_after:?}"),
        other => panic!("{other:?}"),
    }
    let until = Instant::now() + ms(15_000);
    loop {
        match backend.renew_one(&claim("job", 2), second, ttl).await {
            RenewReply::Waiting { .. } => assert!(Instant::now() < until, "it waits for ever"),
            RenewReply::Granted(_) => break,
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(ms(50)).await;
    }
}

#[tokio::test]
async fn a_client_of_the_redis_crate_can_be_used() {
    let server = Redis::start(&["--requirepass", "secret"]);
    let url = server.url().replace("?prefix=test:", "?db=3&pass=secret");
    let client = redis::Client::open(url).unwrap();
    let backend = Backend::new(RedisBackend::connect_with(&client, settings()).await.unwrap());
    backend.granted(&claim("job", 1), LONG).await;
    let mut bad = settings();
    bad.timeout = ms(1);
    assert_eq!(kind(RedisBackend::connect_with(&client, bad).await), ErrorKind::InvalidInput);
}

#[tokio::test]
async fn a_server_without_connections_says_so_at_once() {
    let server = Redis::start(&[]);
    let mut first = server.backend("").await;
    first.subscribed().await;
    server.command(&["CONFIG", "SET", "maxclients", "1"]).await;
    for _ in 0..20 {
        let started = Instant::now();
        let error = RedisBackend::connect(&format!("{}&timeout=20s", server.url())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Capacity, "{error:?}");
        assert!(started.elapsed() < ms(10_000), "it waited for an immediate error");
    }
}
