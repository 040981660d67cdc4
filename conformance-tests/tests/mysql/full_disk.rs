//! A server that is really full. In the suite, a trigger gives the error of a full table (`ServerFault::Fill`). Here
//! nothing is simulated.
//!
//! - With a full disk, the file system of the data folder has no block left, because of a file that is not the
//!   server's. A write that needs a new block fails (`ENOSPC`), and the server itself replies with the error. InnoDB
//!   still writes to the blocks that it has.
//! - With a full tablespace, InnoDB has one file that may not grow, and a table of the user has used it up. Then InnoDB
//!   has no page for its undo log either, so it refuses every write, even those that would make room. This also works
//!   where a process cannot mount a file system.

use std::time::Duration;

use leasehold_conformance::{Unsupported, report_unsupported};
use leasehold_core::{ErrorKind, LockClient, LockGuard, LossReason};
use leasehold_test_servers::{MySqlSettings, can_have_small_disks};

use super::strategy::MySqlFixture;
use super::support::{SOON, Stopwatch, client, hold, own_servers};

const TTL: Duration = Duration::from_secs(3);

/// Acquires locks until one is refused: the server still has some allocated room. A refused acquire fails with
/// `Capacity` within its bound, even if it may wait.
async fn until_refused(client: &LockClient) -> Vec<LockGuard> {
    let mut taken = Vec::new();
    let refused = loop {
        assert!(taken.len() < 2_000, "the server is not full");
        match try_acquire(client, &long_name(taken.len())).await {
            Ok(guard) => taken.push(guard),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused, ErrorKind::Capacity);
    let stopwatch = Stopwatch::start();
    let waited = client.lock(long_name(taken.len())).wait(SOON).acquire().await.expect_err("it is full");
    assert_eq!(waited.kind(), ErrorKind::Capacity, "{waited:?}");
    stopwatch.within(client.capabilities().call_bound, "the wait for a lock of a full server ends at once");
    taken
}

/// Renewals and releases of held locks need no room, nor do grants of locks that have rows. When there is room again,
/// locks are granted again.
async fn on_a_full_disk(fixture: &MySqlFixture) {
    let (ann, bob) = (client(fixture, TTL).await, client(fixture, TTL).await);
    let (held, released) = (hold(&ann, "held").await, hold(&ann, "released").await);
    fixture.own(|server| server.fill_disk().expect("a small disk"));
    let taken = until_refused(&bob).await;
    released.release().await.expect("a release needs no room");
    let again = hold(&bob, "released").await;
    let renewed = ann.stats().renewed;
    tokio::time::sleep(TTL * 2).await;
    assert!(held.is_held() && taken.iter().all(LockGuard::is_held), "a lease was lost, because the server is full");
    assert!(ann.stats().renewed >= renewed + 4, "renewals need no room: {:?}", ann.stats());
    let (ann_lost, bob_lost) = (ann.stats().lost, bob.stats().lost);
    assert_eq!((ann_lost, bob_lost), (0, 0));

    fixture.own(|server| server.empty_disk().expect("a full disk"));
    let name = long_name(taken.len());
    let guard = hold(&bob, &name).await;
    assert!(held.is_held() && guard.is_held() && again.is_held());
    for guard in taken.into_iter().chain([held, guard, again]) {
        guard.release().await.expect("a release");
    }
}

/// One attempt, within the bound of a call.
async fn try_acquire(client: &LockClient, name: &str) -> Result<LockGuard, ErrorKind> {
    let stopwatch = Stopwatch::start();
    let tried = client.lock(name).try_acquire().await;
    stopwatch.within(client.capabilities().call_bound, "an attempt ends within the bound of a call");
    tried.map(|guard| guard.expect("nobody holds it")).map_err(|error| error.kind())
}

/// A few of these fill a page.
fn long_name(number: usize) -> String {
    format!("{number} {}", "x".repeat(1000))
}

#[test]
fn a_full_disk_refuses_new_locks_and_keeps_held_ones() {
    own_servers(|| async {
        if let Err(error) = can_have_small_disks() {
            println!("nothing to prove: {error}");
            let unsupported = Unsupported::withheld("this system lets no process mount a file system of its own");
            return report_unsupported(
                "full_disk::a_full_disk_refuses_new_locks_and_keeps_held_ones",
                "a disk",
                unsupported,
            );
        }
        on_a_full_disk(&MySqlFixture::with_settings(MySqlSettings::new().small_disk(128))).await;
    });
}

/// A lease that is a row cannot be renewed or released, and its holder learns of that in time. A lease that is a
/// transaction writes nothing, and is kept.
#[test]
fn a_server_that_can_write_nothing_makes_no_second_holder() {
    own_servers(|| async {
        let settings = MySqlSettings::new().option("innodb-data-file-path=ibdata1:12M");
        let fixture = MySqlFixture::with_settings(settings.option("innodb-file-per-table=0"));
        let (ann, bob) = (client(&fixture, TTL).await, client(&fixture, TTL).await);
        let (held, released) = (hold(&ann, "held").await, hold(&ann, "released").await);
        fixture.execute("CREATE TABLE filler (bytes LONGBLOB)");
        let insert = "INSERT INTO filler VALUES (REPEAT('x', 100000))";
        let full = (0..1_000).find_map(|_| fixture.server().query(insert).err()).expect("it gets full");
        assert!(full.to_string().contains("1114"), "the server itself replies with the error: {full}");
        let taken = until_refused(&bob).await;

        let stopwatch = Stopwatch::start();
        let outcome = released.release().await;
        stopwatch.within(ann.capabilities().call_bound, "a release ends within the bound of a call");
        let tried = bob.lock("held").try_acquire().await;
        assert!(!matches!(tried, Ok(Some(_))), "a second holder");
        if MySqlFixture::RENEWALS_WRITE {
            assert_eq!(outcome.expect_err("it cannot be written").kind(), ErrorKind::Capacity);
            let loss = tokio::time::timeout(TTL * 2, held.lost()).await.expect("its lease ends");
            assert_eq!(loss.reason, LossReason::Expired);
            assert!(!held.is_held() && ann.stats().renewal_errors > 0);
        } else {
            outcome.expect("it writes nothing");
            tokio::time::sleep(TTL * 2).await;
            assert!(
                held.is_held() && taken.iter().all(LockGuard::is_held),
                "a lease was lost, because the server is full"
            );
        }
    });
}
