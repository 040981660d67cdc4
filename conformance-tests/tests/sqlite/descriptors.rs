//! What a client keeps open, however long it works.

use std::time::Duration;

use leasehold_conformance::{Fixture, Route};
use leasehold_core::LockClient;

use super::fixture::{SqliteFixture, open_files};

/// After a number of writes, a separate connection maintains the file and closes. But SQLite does not close a file
/// while another connection of the process has locks on it. It keeps the descriptor for the next connection.
#[test]
fn the_maintenance_of_a_file_leaves_nothing_open() {
    leasehold_conformance::run(leasehold_conformance::DEADLINE, || async {
        let fixture = SqliteFixture::new().await;
        let client = LockClient::new(fixture.backend(Route::Clear).await);
        let mut most = [0; 2];
        for round in 0..6_000 {
            client.lock(format!("{}", round % 7)).acquire().await.unwrap().release().await.unwrap();
            if round % 500 == 0 {
                // One more for the maintenance, while it runs.
                let open = ["locks.db", "locks.db-wal"].map(|name| open_files(&fixture.path().with_file_name(name)));
                most = [most[0].max(open[0]), most[1].max(open[1])];
            }
        }
        assert!(most[0] <= 2 && most[1] <= 2, "open at most: {most:?} times the file and its WAL");
        drop(client);
        let until = std::time::Instant::now() + Duration::from_secs(5);
        while open_files(&fixture.path()) > 0 {
            assert!(std::time::Instant::now() < until, "a client that is gone keeps the file open");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}
