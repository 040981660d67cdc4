//! A fenced write takes effect while the lease is current, and is refused by Redis itself when it is not.

mod support;

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{ErrorKind, LockClient};
use leasehold_redis::{FencedScript, RedisBackend};
use redis::Value;
use support::Redis;

async fn client(server: &Redis) -> (Arc<RedisBackend>, LockClient) {
    let backend = Arc::new(RedisBackend::connect(&server.url()).await.expect("a connection"));
    (backend.clone(), LockClient::new(backend))
}

#[tokio::test]
async fn a_late_write_is_refused_and_changes_nothing() {
    let server = Redis::start(&[]);
    let (ann, ann_client) = client(&server).await;
    let (bob, bob_client) = client(&server).await;
    let add = FencedScript::new("return redis.call('INCRBY', KEYS[1], ARGV[1])");

    let late = ann_client.lock("account").ttl(Duration::from_secs(3)).without_renewal().acquire().await.unwrap();
    let fence = ann.fence(&late);
    let balance = fence.key("balance");
    assert_eq!(fence.run(&add, &[&balance], &["10"]).await.unwrap(), Value::Int(10));

    // Ann is paused here: her lease ends, and Bob works.
    let guard = bob_client.lock("account").acquire().await.unwrap();
    assert_eq!(bob.fenced_key(guard.name(), "balance"), balance);
    assert_eq!(bob.fence(&guard).run(&add, &[&balance], &["1"]).await.unwrap(), Value::Int(11));

    let error = fence.run(&add, &[&balance], &["100"]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(bob.fence(&guard).run(&add, &[&balance], &["0"]).await.unwrap(), Value::Int(11));

    // Also if nobody holds the lock now.
    let bobs = bob.fence(&guard);
    guard.release().await.unwrap();
    assert_eq!(bobs.run(&add, &[&balance], &["1"]).await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn a_fenced_write_reads_the_record_and_none_of_the_users_values() {
    let server = Redis::start(&[]);
    let (backend, client) = client(&server).await;
    let guard = client.lock("files").ttl(Duration::from_secs(9)).acquire().await.unwrap();
    // The keeper's connection reads the epoch key when it is opened, beside the test. The next renewal is three seconds
    // away.
    while client.stats().renewed == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let fence = backend.fence(&guard);
    let keys = [fence.key("one"), fence.key("two")];
    let touch = FencedScript::new("return redis.call('STRLEN', KEYS[2])");
    let reads = || async { (server.sent("mget").await, server.sent("get").await) };
    let before = reads().await;
    assert_eq!(fence.run(&touch, &keys, &[""]).await.unwrap(), Value::Int(0));
    let after = reads().await;
    assert_eq!((after.0 - before.0, after.1 - before.1), (0, 1), "MGETs and GETs");
}

#[tokio::test]
async fn a_script_may_have_several_keys_and_any_result() {
    let server = Redis::start(&[]);
    let (backend, client) = client(&server).await;
    let guard = client.lock("ledger {1}").acquire().await.unwrap();
    let fence = backend.fence(&guard);
    let (from, to) = (fence.key("from"), fence.key("to"));
    let transfer = FencedScript::new(
        "redis.call('DECRBY', KEYS[1], ARGV[1]) redis.call('INCRBY', KEYS[2], ARGV[1])
         return {redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2])}",
    );
    let answer = fence.run(&transfer, &[&from, &to], &["5"]).await.unwrap();
    let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    assert_eq!(answer, Value::Array(vec![text("-5"), text("5")]));

    let nothing = FencedScript::new("redis.call('SET', KEYS[1], ARGV[1])");
    assert_eq!(fence.run(&nothing, &[&to], &["x"]).await.unwrap(), Value::Nil);

    let error = fence.run(&nothing, &["elsewhere"], &["x"]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let broken = FencedScript::new("return redis.call('INCR', KEYS[1])");
    assert_eq!(fence.run(&broken, &[&to], &[""]).await.unwrap_err().kind(), ErrorKind::Indeterminate);
}

#[tokio::test]
async fn a_fenced_write_is_refused_where_scripts_are_functions() {
    let server = Redis::start(&[]);
    server.command(&["FUNCTION", "LOAD", &leasehold_redis::functions()]).await;
    let url = format!("{}&scripts=functions", server.url());
    let backend = Arc::new(RedisBackend::connect(&url).await.expect("a connection"));
    let guard = LockClient::new(backend.clone()).lock("account").acquire().await.unwrap();
    let fence = backend.fence(&guard);
    let set = FencedScript::new("return redis.call('SET', KEYS[1], ARGV[1])");
    let error = fence.run(&set, &[fence.key("balance")], &["1"]).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("`scripts=functions`"), "{error}");
    assert_eq!(server.command(&["EXISTS", &fence.key("balance")]).await, Value::Int(0));
}
