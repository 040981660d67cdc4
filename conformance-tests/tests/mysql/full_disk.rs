//! A server that is really full. In the suite, a trigger gives the error of a full table (`ServerFault::Fill`); here nothing is simulated.
//!
//! - With a full disk, the file system of the data folder has no block left, because of a file that is not the server's. Writes that need a
//!   new block fail (`ENOSPC`), and the server answers by itself.
//! - With a full tablespace, InnoDB has one file that may not grow, and a table of the user has used it up. This also works where a
//!   process cannot mount a file system.

use std::time::Duration;

use leasehold_conformance::{Unsupported, report_unsupported};
use leasehold_core::{ErrorKind, LockClient, LockGuard};
use leasehold_test_servers::{MySqlSettings, can_have_small_disks};

use super::stored::Stored;
use super::strategy::MySqlFixture;
use super::support::{SOON, Stopwatch, client, hold, own_servers};

const TTL: Duration = Duration::from_secs(3);

/// Renewals and releases of a held lock need no room, and a refused acquire fails with `Capacity` within its bound, also if it would wait.
async fn while_full(fixture: &MySqlFixture, fill: impl Fn(), empty: impl Fn()) {
    let (ann, bob) = (client(fixture, TTL).await, client(fixture, TTL).await);
    let (held, released) = (hold(&ann, "held").await, hold(&ann, "released").await);
    fill();
    // What the server has allocated before takes some locks.
    let mut taken = Vec::new();
    let refused = loop {
        assert!(taken.len() < 2_000, "the server is not full");
        match try_acquire(&bob, &long_name(taken.len())).await {
            Ok(guard) => taken.push(guard),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused, ErrorKind::Capacity);
    let begin = Stopwatch::start();
    let waited = bob.lock(long_name(taken.len())).wait(SOON).acquire().await.expect_err("it is full");
    assert_eq!(waited.kind(), ErrorKind::Capacity, "{waited:?}");
    begin.within(Duration::from_secs(1), "the wait for a lock of a full server ends at once");

    released.release().await.expect("a release needs no room");
    let renewed = ann.stats().renewed;
    tokio::time::sleep(TTL * 2).await;
    assert!(held.is_held() && taken.iter().all(LockGuard::is_held), "a lease was lost, because the server is full");
    assert!(ann.stats().renewed >= renewed + 4, "renewals need no room: {:?}", ann.stats());
    let (ann_lost, bob_lost) = (ann.stats().lost, bob.stats().lost);
    assert_eq!((ann_lost, bob_lost), (0, 0));

    empty();
    let name = long_name(taken.len());
    let (guard, again) = (hold(&bob, &name).await, hold(&bob, "released").await);
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
        let fixture = MySqlFixture::with_settings(MySqlSettings::new().small_disk(128));
        let fill = || fixture.own(|server| server.fill_disk().expect("a small disk"));
        let empty = || fixture.own(|server| server.empty_disk().expect("a full disk"));
        while_full(&fixture, fill, empty).await;
    });
}

#[test]
fn a_full_tablespace_refuses_new_locks_and_keeps_held_ones() {
    own_servers(|| async {
        let settings =
            MySqlSettings::new().option("innodb-data-file-path=ibdata1:12M").option("innodb-file-per-table=0");
        let fixture = MySqlFixture::with_settings(settings);
        let fill = || {
            let server = fixture.server();
            server
                .query("CREATE TABLE filler (id INT PRIMARY KEY AUTO_INCREMENT, bytes LONGBLOB)")
                .expect("there is room");
            for size in [100_000, 10_000, 1_000, 100] {
                let insert = format!("INSERT INTO filler (bytes) VALUES (REPEAT('x', {size}))");
                let full = (0..1_000).find_map(|_| server.query(&insert).err()).expect("it gets full");
                assert!(full.to_string().contains("1114"), "{full}");
            }
        };
        while_full(&fixture, fill, || fixture.execute("DROP TABLE filler")).await;
        assert!(Stored(&*fixture.server()).query("SHOW TABLES LIKE 'filler'").is_empty());
    });
}
