//! Locks that a client acquires again. It expects their rows to be as it left them, and must notice when they are not.

use std::time::Duration;

use leasehold_conformance::Fixture;
use leasehold_core::LockClient;

use super::stored::Stored;
use super::strategy::MySqlFixture;
use super::support::{case, client, hold, own_servers};

/// No renewal is due while a case runs.
const TTL: Duration = Duration::from_secs(60);

/// How many statements one attempt takes, and whether the lock was granted.
async fn try_once(fixture: &MySqlFixture, client: &LockClient, name: &str) -> (u64, bool) {
    let executed = || Stored(&*fixture.server()).status("Com_stmt_execute");
    let before = executed();
    let granted = client.lock(name).try_acquire().await.expect("a reply");
    let statements = executed() - before;
    let is_granted = granted.is_some();
    if let Some(guard) = granted {
        guard.release().await.expect("a release");
    }
    (statements, is_granted)
}

#[test]
fn a_lock_is_acquired_by_one_statement_each_time() {
    own_servers(async || {
        let fixture = MySqlFixture::new().await;
        let ann = client(&fixture, TTL).await;
        for round in 0..3 {
            assert_eq!(try_once(&fixture, &ann, "again").await, (1, true), "round {round}");
        }
    });
}

#[test]
fn a_lock_that_another_client_holds_costs_one_more_statement_once() {
    own_servers(async || {
        let fixture = MySqlFixture::new().await;
        let (ann, bob) = (client(&fixture, TTL).await, client(&fixture, TTL).await);
        assert_eq!(try_once(&fixture, &ann, "changed").await, (1, true));
        let guard = hold(&bob, "changed").await;
        assert_eq!(try_once(&fixture, &ann, "changed").await, (2, false));
        assert_eq!(try_once(&fixture, &ann, "changed").await, (1, false));
        guard.release().await.expect("a release");
        assert_eq!(try_once(&fixture, &ann, "changed").await, (1, true));
    });
}

#[test]
fn a_row_that_was_removed_is_made_again() {
    case(async |fixture| {
        let ann = client(&fixture, TTL).await;
        let before = {
            let guard = hold(&ann, "removed").await;
            let token = guard.fencing_token();
            guard.release().await.expect("a release");
            token
        };
        fixture.execute("DELETE FROM leasehold_locks WHERE name = 'removed'");
        let guard = hold(&ann, "removed").await;
        assert!(guard.fencing_token() > before, "the token does not rise");
        guard.release().await.expect("a release");
    });
}
