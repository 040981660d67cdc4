//! A fenced write takes effect while the lease is current, and is refused when it is not.

use std::path::Path;
use std::time::Duration;

use leasehold_core::{ErrorKind, LockClient, LockGuard, Result};
use leasehold_sqlite::rusqlite::{Connection, TransactionBehavior};
use leasehold_sqlite::{Settings, SqliteBackend, fence};

async fn client(path: &Path) -> LockClient {
    LockClient::new(SqliteBackend::connect_with(path, Settings::default()).await.unwrap())
}

/// The user's own table in the same file.
fn accounts(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection.busy_timeout(Duration::from_secs(5)).unwrap();
    connection.execute_batch("CREATE TABLE IF NOT EXISTS account (balance INTEGER)").unwrap();
    connection
}

fn pay_in(connection: &mut Connection, guard: &LockGuard, amount: i64) -> Result<()> {
    let write = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    fence(&write, guard)?;
    write.execute("INSERT INTO account VALUES (?1)", [amount]).unwrap();
    write.commit().unwrap();
    Ok(())
}

fn balance(connection: &Connection) -> i64 {
    connection.query_row("SELECT coalesce(sum(balance), 0) FROM account", [], |row| row.get(0)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_write_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let (ann, bob) = (client(&path).await, client(&path).await);
    let mut own = accounts(&path);
    let late = ann.lock("account").ttl(Duration::from_secs(2)).without_renewal().acquire().await.unwrap();
    pay_in(&mut own, &late, 10).unwrap();

    // Ann is paused here: her lease ends, and Bob works.
    let guard = bob.lock("account").acquire().await.unwrap();
    pay_in(&mut own, &guard, 1).unwrap();
    let error = pay_in(&mut own, &late, 100).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(error.to_string().contains("\"account\""), "{error}");
    assert_eq!(balance(&own), 11);

    // Also when nobody has it now, and when the guard's own client has it again.
    let other = bob.lock("other").acquire().await.unwrap();
    pay_in(&mut own, &other, 1).unwrap();
    guard.release().await.unwrap();
    assert_eq!(pay_in(&mut own, &late, 100).unwrap_err().kind(), ErrorKind::Lost);
    let _again = ann.lock("account").acquire().await.unwrap();
    assert_eq!(pay_in(&mut own, &late, 100).unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(balance(&own), 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_takes_over_in_the_middle_of_a_fenced_write() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let (ann, bob) = (client(&path).await, client(&path).await);
    let mut own = accounts(&path);
    let ttl = Duration::from_secs(2);
    let guard = ann.lock("account").ttl(ttl).without_renewal().acquire().await.unwrap();
    let waiter = tokio::spawn(async move { bob.lock("account").acquire().await });
    let write = own.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    fence(&write, &guard).unwrap();
    tokio::time::sleep(ttl * 3 / 2).await;
    assert!(!guard.is_held() && !waiter.is_finished(), "another holds while a fenced write can still be committed");
    write.execute("INSERT INTO account VALUES (7)", []).unwrap();
    write.commit().unwrap();
    let next = waiter.await.unwrap().unwrap();
    assert!(next.fencing_token() > guard.fencing_token());
    assert_eq!(balance(&own), 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_on_a_file_without_locks_is_unsupported() {
    let folder = tempfile::tempdir().unwrap();
    let client = client(&folder.path().join("locks.db")).await;
    let guard = client.lock("account").acquire().await.unwrap();
    let error = pay_in(&mut accounts(&folder.path().join("other.db")), &guard, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}
