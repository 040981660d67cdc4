//! A fenced write takes effect while the lease is current, and is refused by Redis itself when it is not.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_core::{ErrorKind, LockClient};
use lock_redis::{FencedScript, RedisBackend};
use redis::Value;

/// A server of its own on a unix socket in a folder of its own; ends with its owner.
struct Server {
    child: Child,
    folder: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(folder.path().join("redis.sock"))
            .arg("--dir")
            .arg(folder.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server cannot be started: get it by `apt-get install redis-server`");
        let server = Self { child, folder };
        let until = Instant::now() + Duration::from_secs(20);
        while !Path::new(&server.socket()).exists() {
            assert!(Instant::now() < until, "redis-server does not come up");
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    fn socket(&self) -> String {
        self.folder.path().join("redis.sock").display().to_string()
    }

    async fn client(&self) -> (Arc<RedisBackend>, LockClient) {
        let url = format!("redis+unix://{}", self.socket());
        let backend = Arc::new(RedisBackend::connect(&url).await.expect("a connection"));
        (backend.clone(), LockClient::new(backend))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn a_late_write_is_refused_and_changes_nothing() {
    let server = Server::start();
    let (ann, ann_client) = server.client().await;
    let (bob, bob_client) = server.client().await;
    let add = FencedScript::new("return redis.call('INCRBY', KEYS[1], ARGV[1])");

    let late = ann_client.lock("account").ttl(Duration::from_secs(1)).without_renewal().acquire().await.unwrap();
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

    // Also when nobody has it now.
    let bobs = bob.fence(&guard);
    guard.release().await.unwrap();
    assert_eq!(bobs.run(&add, &[&balance], &["1"]).await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn a_script_may_have_several_keys_and_any_answer() {
    let server = Server::start();
    let (backend, client) = server.client().await;
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
