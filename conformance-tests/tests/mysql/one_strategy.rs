//! Leases of the two strategies do not exclude each other, so a database may be used with only one of them.

use leasehold::{ErrorKind, LockClient, LockGuard, Result};
use leasehold_core::admin::CheckStatus;
use leasehold_test_servers::{MySqlServer, MySqlSettings};
use tokio::task::JoinSet;

use super::set_up::set_up;
use super::support::{SOON, Stopwatch, own_servers};

const ROW: &str = "";
const FOR_UPDATE: &str = "&strategy=for-update";

/// What a grant of each strategy writes.
const GRANTS: [(&str, &str); 2] = [
    (ROW, "SELECT 1 FROM locks.leasehold_locks WHERE name <> '' AND fence > 0"),
    (FOR_UPDATE, "SELECT 1 FROM locks.leasehold_fences"),
];

/// What the error tells an operator to run.
const SWITCH: &str = "DELETE FROM locks.leasehold_locks WHERE name = ''";

/// Clients that begin together, on empty tables.
const CROWD: usize = 8;

fn server() -> MySqlServer {
    let server = MySqlSettings::new().start().unwrap_or_else(|error| panic!("{error}"));
    set_up(&server);
    server
}

fn client(server: &MySqlServer, strategy: &str) -> LockClient {
    let port = server.addr().port();
    let url = format!("mysql://locker:pass-word@127.0.0.1:{port}/locks?tls=off{strategy}");
    leasehold::connect_lazy(&url).unwrap_or_else(|error| panic!("{error:?}"))
}

async fn acquire(client: &LockClient, name: &str) -> Result<LockGuard> {
    client.lock(name).wait(SOON).acquire().await
}

/// Whether the server has a grant of this strategy.
fn has_granted(server: &MySqlServer, strategy: &str) -> bool {
    let (_, query) = GRANTS.iter().find(|(known, _)| *known == strategy).expect("a strategy");
    !server.query(query).unwrap_or_else(|error| panic!("{query}: {error}")).is_empty()
}

/// Asserts that the client is refused, and that the error says what to do.
async fn is_refused(client: &LockClient, used: &str) {
    let error = acquire(client, "job").await.expect_err("the other strategy is refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.to_string().contains(used) && error.to_string().contains("DELETE"), "{error}");
    // Otherwise everything would seem to be free.
    let error = client.inspect("job").await.expect_err("nor does it show locks");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    let checks = client.examine().await.expect("the server is reached");
    let check = checks.iter().find(|check| check.about == "strategy").expect("the strategy is examined");
    assert!(matches!(&check.status, CheckStatus::Error(_)) && check.found.contains(used), "{check:?}");
}

#[test]
fn a_database_is_used_with_one_strategy() {
    own_servers(|| async {
        for (first, second, used) in [(ROW, FOR_UPDATE, "`strategy=row`"), (FOR_UPDATE, ROW, "`strategy=for-update`")] {
            let server = server();
            let (own, other) = (client(&server, first), client(&server, second));
            let guard = acquire(&own, "job").await.unwrap_or_else(|error| panic!("{used}: {error:?}"));
            is_refused(&other, used).await;
            guard.release().await.unwrap_or_else(|error| panic!("{used}: {error:?}"));
            // Also when nothing is held: the next holder may come while the other one works.
            is_refused(&other, used).await;
            assert!(has_granted(&server, first) && !has_granted(&server, second), "{used}");
            // On a connection that was opened before.
            acquire(&own, "job").await.unwrap_or_else(|error| panic!("{used}: {error:?}")).release().await.unwrap();

            drop(own);
            server.query(SWITCH).unwrap_or_else(|error| panic!("{error}"));
            let _guard = acquire(&other, "job").await.unwrap_or_else(|error| panic!("after {used}: {error:?}"));
        }
    });
}

#[test]
fn of_clients_that_begin_together_one_strategy_gets_all_locks() {
    own_servers(|| async {
        let server = server();
        let mut acquires = JoinSet::new();
        for index in 0..CROWD {
            let client = client(&server, [ROW, FOR_UPDATE][index % 2]);
            acquires.spawn(async move { (index, acquire(&client, &format!("job-{index}")).await) });
        }
        let (mut held, mut guards) = (Vec::new(), Vec::new());
        for (index, acquired) in acquires.join_all().await {
            match acquired {
                Ok(guard) => {
                    held.push(index);
                    guards.push(guard);
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}"),
            }
        }
        held.sort_unstable();
        let used = held.first().expect("a lock is held") % 2;
        assert_eq!([ROW, FOR_UPDATE].map(|strategy| has_granted(&server, strategy)), [used == 0, used == 1]);
        assert_eq!(held, (0..CROWD).filter(|index| index % 2 == used).collect::<Vec<_>>());
    });
}

/// Each claim has the row for a moment, while the others wait for it.
#[test]
fn claims_that_wait_are_refused_too() {
    own_servers(|| async {
        let server = server();
        drop(acquire(&client(&server, ROW), "job").await.unwrap_or_else(|error| panic!("{error:?}")));
        let mut acquires = JoinSet::new();
        for _ in 0..4 * CROWD {
            let client = client(&server, FOR_UPDATE);
            acquires.spawn(async move { acquire(&client, "job").await.map(drop) });
        }
        let stopwatch = Stopwatch::start();
        for refused in acquires.join_all().await {
            assert_eq!(refused.expect_err("the other strategy is used").kind(), ErrorKind::Unsupported);
        }
        assert!(!has_granted(&server, FOR_UPDATE));
        stopwatch.within(SOON / 2, "a claim that waits is refused before its wait ends");
    });
}
