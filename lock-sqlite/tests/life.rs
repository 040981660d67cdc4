//! What only a SQLite file can do, by its public face. What every backend has to keep stands in the conformance suite.

use std::path::Path;
use std::time::Duration;

use lock_core::{ErrorKind, LockClient};
use lock_sqlite::{Settings, SqliteBackend, rusqlite};

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

#[tokio::test(flavor = "multi_thread")]
async fn an_unopened_file_is_waited_for_within_the_wait_of_an_acquire() {
    let folder = folder();
    let path = folder.path().join("locks.db");
    drop(client(&path).await);
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let url = format!("sqlite://{}", path.display());
    let error = SqliteBackend::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "one attempt: {error}");
    let client = LockClient::new(SqliteBackend::open(&url).unwrap());
    let lock = client.lock("job").wait(Duration::from_secs(30));
    assert_eq!(lock.try_acquire().await.unwrap_err().kind(), ErrorKind::Unavailable);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    // Longer than one call.
    tokio::time::sleep(2000 * MS).await;
    assert!(!waiting.is_finished(), "its wait is not over");
    other.execute_batch("ROLLBACK").unwrap();
    assert!(waiting.await.unwrap().unwrap().is_held());
}
