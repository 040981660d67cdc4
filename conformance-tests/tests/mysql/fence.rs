//! Fenced writes: the user's transaction commits only while the lease is current.

use std::time::Duration;

use leasehold::mysql::fence;
use leasehold::mysql::sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use leasehold::mysql::sqlx::{self, Connection};
use leasehold_conformance::Route;
use leasehold_core::{ErrorKind, LockClient, LockGuard};

use super::strategy::MySqlFixture;
use super::support::{SOON, case, client, eventually, hold};

/// A connection of the user's program, and a table of its own.
async fn program(fixture: &MySqlFixture) -> MySqlConnection {
    let (database, account) = fixture.names();
    fixture.execute(&format!("CREATE TABLE work (note VARCHAR(20)); GRANT ALL ON {database}.work TO {account}"));
    let url = fixture.url(Route::Clear, "");
    let options: MySqlConnectOptions = url.split('?').next().expect("a URL").parse().expect("a URL of sqlx");
    MySqlConnection::connect_with(&options).await.expect("a connection")
}

fn notes(fixture: &MySqlFixture) -> usize {
    fixture.server().query("SELECT note FROM work").expect("the table is there").len()
}

/// Writes under the fence. Returns the kind of the error.
async fn write(program: &mut MySqlConnection, guard: &LockGuard) -> Result<(), ErrorKind> {
    let mut transaction = program.begin().await.expect("a transaction");
    if let Err(error) = fence(&mut transaction, guard).await {
        // A dropped transaction is rolled back only when the connection is used next.
        transaction.rollback().await.expect("a rollback");
        return Err(error.kind());
    }
    sqlx::query("INSERT INTO work VALUES ('written')").execute(&mut *transaction).await.expect("an insert");
    transaction.commit().await.expect("a commit");
    Ok(())
}

/// A lease that is over, with its guard.
async fn lapsed(client: &LockClient, name: &str) -> LockGuard {
    let ttl = client.capabilities().min_ttl.max(Duration::from_millis(300));
    let guard = client.lock(name).ttl(ttl).without_renewal().acquire().await.expect("a grant");
    tokio::time::sleep(ttl * 2).await;
    guard
}

#[test]
fn a_current_lease_may_write() {
    case(async |fixture| {
        let (ann, mut program) = (client(&fixture, SOON).await, program(&fixture).await);
        let guard = hold(&ann, "current").await;
        assert_eq!(write(&mut program, &guard).await, Ok(()));
        assert_eq!(notes(&fixture), 1);
    });
}

#[test]
fn a_lease_that_is_over_may_not_write() {
    case(async |fixture| {
        let (ann, bob, mut program) =
            (client(&fixture, SOON).await, client(&fixture, SOON).await, program(&fixture).await);
        let guard = lapsed(&ann, "over").await;
        assert_eq!(write(&mut program, &guard).await, Err(ErrorKind::Lost), "nobody holds the lock");
        let _next = hold(&bob, "over").await;
        assert_eq!(write(&mut program, &guard).await, Err(ErrorKind::Lost), "another holder");
        assert_eq!(notes(&fixture), 0);
    });
}

#[test]
fn nobody_is_granted_the_lock_before_the_transaction_ends() {
    case(async |fixture| {
        let (ann, bob, mut program) =
            (client(&fixture, SOON).await, client(&fixture, SOON).await, program(&fixture).await);
        let ttl = Duration::from_secs(1);
        let guard = ann.lock("open").ttl(ttl).without_renewal().acquire().await.expect("a grant");
        let mut transaction = program.begin().await.expect("a transaction");
        fence(&mut transaction, &guard).await.expect("the lease is current");
        sqlx::query("INSERT INTO work VALUES ('late')").execute(&mut *transaction).await.expect("an insert");
        tokio::time::sleep(ttl * 2).await;
        // The ttl is over, and the row is locked.
        let tried = bob.lock("open").try_acquire().await;
        assert!(!matches!(tried, Ok(Some(_))), "another client holds the lock beside an open fenced write");
        transaction.commit().await.expect("a commit");
        assert_eq!(notes(&fixture), 1);
        drop(hold(&bob, "open").await);
        eventually("it is released", || bob.stats().held == 0).await;
    });
}
