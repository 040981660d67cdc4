//! Behaviour that only the SQLite backend has, through its public API. The conformance suite tests what every backend
//! has to do.

use std::path::Path;
use std::time::Duration;

use leasehold_core::{ErrorKind, LockClient};
use leasehold_sqlite::{Settings, SqliteBackend, rusqlite};

const MS: Duration = Duration::from_millis(1);

async fn client(path: &Path) -> LockClient {
    let backend = SqliteBackend::connect_with(path, Settings::default()).await.unwrap();
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
    let client = LockClient::new(SqliteBackend::connect_lazy(&url).unwrap());
    let lock = client.lock("job").wait(Duration::from_secs(30));
    assert_eq!(lock.try_acquire().await.unwrap_err().kind(), ErrorKind::Unavailable);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    // Longer than the bound of one call.
    tokio::time::sleep(2000 * MS).await;
    assert!(!waiting.is_finished(), "its wait is not over");
    other.execute_batch("ROLLBACK").unwrap();
    assert!(waiting.await.unwrap().unwrap().is_held());
}

fn beside(path: &Path, suffix: &str) -> std::path::PathBuf {
    format!("{}{suffix}", path.display()).into()
}

/// SQLite has one `-shm` for all connections of a process to a file, and keeps it until the last of them is closed.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_nobody_calls_lets_go_of_a_deleted_file() {
    let folder = folder();
    let path = folder.path().join("locks.db");
    let (one, idle) = (client(&path).await, client(&path).await);
    idle.lock("other").acquire().await.unwrap().release().await.unwrap();
    std::fs::remove_file(beside(&path, "-shm")).unwrap();
    one.lock("job").acquire().await.unwrap().release().await.unwrap();
    assert!(beside(&path, "-shm").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_of_the_program_that_keeps_a_deleted_file_is_named() {
    let folder = folder();
    let path = folder.path().join("locks.db");
    let client = client(&path).await;
    let own = rusqlite::Connection::open(&path).unwrap();
    own.query_row("SELECT count(*) FROM leasehold_locks", [], |_| Ok(())).unwrap();
    std::fs::remove_file(beside(&path, "-shm")).unwrap();
    let error = client.lock("job").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("connection of this process"), "{error}");
    drop(own);
    client.lock("job").acquire().await.unwrap().release().await.unwrap();
}

/// Another program blocks the change to WAL mode, the creation of the tables, or the first write.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_behind_another_programs_transaction_is_unavailable() {
    let ours = "PRAGMA journal_mode = wal; CREATE TABLE t (a)";
    let theirs = "CREATE TABLE t (a); INSERT INTO t VALUES (1)";
    let mut settings = Settings::default();
    settings.timeout = 200 * MS;
    for (setup, begin) in [
        (ours, "BEGIN IMMEDIATE"),
        (ours, "BEGIN EXCLUSIVE"),
        (theirs, "BEGIN; SELECT * FROM t"),
        (theirs, "BEGIN IMMEDIATE"),
        (theirs, "BEGIN IMMEDIATE; INSERT INTO t VALUES (2)"),
        (theirs, "BEGIN EXCLUSIVE"),
    ] {
        let folder = folder();
        let path = folder.path().join("app.db");
        let other = rusqlite::Connection::open(&path).unwrap();
        other.execute_batch(setup).unwrap();
        other.execute_batch(begin).unwrap();
        let started = std::time::Instant::now();
        let error = SqliteBackend::connect_with(&path, settings.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{begin}: {error}");
        assert!(error.to_string().contains("another process was writing"), "{begin}: {error}");
        // A slow disk is given 10 s, and another program is not.
        assert!(started.elapsed() < Duration::from_secs(8), "{begin}");
        other.execute_batch("ROLLBACK").unwrap();
        SqliteBackend::connect_with(&path, settings.clone())
            .await
            .unwrap_or_else(|error| panic!("after {begin}: {error}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_symbolic_link_leads_to_the_same_locks() {
    let folder = folder();
    let path = folder.path().join("data.db");
    let link = folder.path().join("locks.db");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let (one, two) = (client(&link).await, client(&path).await);
    let guard = one.lock("job").acquire().await.unwrap();
    assert!(two.lock("job").try_acquire().await.unwrap().is_none());
    let waiter = tokio::spawn(async move { two.lock("job").acquire().await });
    tokio::time::sleep(50 * MS).await;
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    assert!(beside(&path, "-bell").exists() && !beside(&link, "-bell").exists());
}

/// How a lease ends while another client waits for it. That one checks by itself once a second at the latest.
async fn ends_at_once(what: &str, end: impl AsyncFn(&LockClient, leasehold_core::LockGuard)) {
    const ROUNDS: u32 = 5;
    let folder = folder();
    let path = folder.path().join("locks.db");
    let (one, two) = (client(&path).await, client(&path).await);
    let mut waited = Duration::ZERO;
    for _ in 0..ROUNDS {
        let guard = one.lock("job").acquire().await.unwrap();
        let waiter = tokio::spawn({
            let lock = two.lock("job");
            async move { lock.acquire().await.unwrap() }
        });
        // It has been refused, and its next check is far away.
        tokio::time::sleep(200 * MS).await;
        let begin = std::time::Instant::now();
        end(&one, guard).await;
        let next = waiter.await.unwrap();
        waited += begin.elapsed();
        next.release().await.unwrap();
    }
    let alone = (1000 - 200) * MS * ROUNDS;
    assert!(waited < alone / 2, "{what}: {waited:?} for {ROUNDS} handoffs, and {alone:?} if nobody was notified");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_is_notified_of_a_release() {
    ends_at_once("a release", async |_, guard| guard.release().await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_is_notified_of_a_lease_that_was_broken() {
    ends_at_once("a break", async |client, guard| {
        let broken = client.break_lock("job", guard.fencing_token()).await.unwrap();
        assert!(broken.is_some());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_is_notified_that_a_lease_ends_sooner() {
    let folder = folder();
    let path = folder.path().join("locks.db");
    let (one, two) = (client(&path).await, client(&path).await);
    let mut waited = Duration::ZERO;
    for _ in 0..5 {
        let guard = one.lock("job").min_hold(400 * MS).acquire().await.unwrap();
        let waiter = tokio::spawn({
            let lock = two.lock("job");
            async move { lock.acquire().await.unwrap() }
        });
        tokio::time::sleep(200 * MS).await;
        let begin = std::time::Instant::now();
        guard.release().await.unwrap();
        let next = waiter.await.unwrap();
        waited += begin.elapsed();
        next.release().await.unwrap();
    }
    // The rest of the shortest hold is 200 ms of each, and the waiter's own check comes after 800 ms.
    assert!(waited < 500 * MS * 5, "{waited:?}");
}
