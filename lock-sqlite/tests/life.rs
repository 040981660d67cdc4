//! What only a SQLite file can do, by its public face. What every backend has to keep stands in the conformance suite.

use std::path::Path;
use std::time::Duration;

use lock_core::LockClient;
use lock_sqlite::{Settings, SqliteBackend};

const MS: Duration = Duration::from_millis(1);

async fn client(path: &Path) -> LockClient {
    let backend = SqliteBackend::at(path, Settings::default()).await.unwrap();
    LockClient::builder(backend)
        .ttl(Duration::from_secs(5))
        .wait(Duration::from_secs(10))
        .label("test")
        .build()
        .unwrap()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clients_take_turns() {
    let folder = folder();
    let path = folder.path().join("locks.db");
    let (one, two) = (client(&path).await, client(&path).await);
    let guard = one.lock("job").acquire().await.unwrap();
    let first = guard.fencing_token();
    assert!(two.lock("job").try_acquire().await.unwrap().is_none());
    let waiter = tokio::spawn(async move { two.lock("job").acquire().await });
    tokio::time::sleep(50 * MS).await;
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    assert!(guard.fencing_token() > first);
    guard.release().await.unwrap();
}
