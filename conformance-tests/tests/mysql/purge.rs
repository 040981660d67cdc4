//! The rows of free locks are removed after the retention, and no token is repeated.

use std::time::{Duration, Instant};

use leasehold_conformance::{Fixture, ServerFault};
use leasehold_core::{FencingToken, LockClient};

use super::stored::Stored;
use super::strategy::MySqlFixture;
use super::support::{SOON, builder, case, hold, own_servers};

const NAME: &str = "purged";

/// The shortest ttl of both strategies. A row of `SELECT … FOR UPDATE` stays until the server has run for the ttl.
const TTL: Duration = Duration::from_secs(1);

async fn client(fixture: &MySqlFixture, retention: &str) -> LockClient {
    let builder = builder(fixture, &format!("&retention={retention}")).await;
    builder.ttl(TTL).build().expect("a client")
}

/// Acquires and releases the lock.
async fn token(client: &LockClient) -> FencingToken {
    let guard = hold(client, NAME).await;
    let token = guard.fencing_token();
    guard.release().await.expect("a release");
    token
}

fn has_row(fixture: &MySqlFixture) -> bool {
    let rows =
        Stored(&*fixture.server()).query(&format!("SELECT 1 FROM {} WHERE name = '{NAME}'", MySqlFixture::TABLE));
    !rows.is_empty()
}

/// Rows are removed by clients that use locks. Returns whether the row was removed within the time.
async fn is_removed_within(fixture: &MySqlFixture, client: &LockClient, time: Duration) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < time {
        hold(client, "in use").await.release().await.expect("a release");
        if !has_row(fixture) {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    false
}

#[test]
fn a_name_whose_row_was_removed_repeats_no_token() {
    case(async |fixture| {
        let ann = client(&fixture, "1s").await;
        let mut last = token(&ann).await;
        for _ in 0..3 {
            assert!(is_removed_within(&fixture, &ann, SOON).await, "the row stays");
            let next = token(&ann).await;
            assert!(next > last, "{last} was followed by {next}");
            last = next;
        }
    });
}

/// A row that is younger than the retention stays, so that the clock can be set back by less than the retention.
#[test]
fn a_clock_that_is_set_back_by_less_than_the_retention_repeats_no_token() {
    own_servers(|| async {
        let fixture = MySqlFixture::new().await;
        let ann = client(&fixture, "8s").await;
        let first = token(&ann).await;
        // A client looks for old rows every two seconds.
        assert!(!is_removed_within(&fixture, &ann, Duration::from_secs(4)).await, "the row is removed too soon");
        Fixture::server(&fixture, ServerFault::ClockBack(Duration::from_millis(7_500))).await.expect("its own server");
        let next = token(&ann).await;
        assert!(next > first, "{first} was followed by {next}");
    });
}

/// The next token of a lock without a row is the server's time, which could be lower than the last token.
#[test]
fn a_token_that_is_ahead_of_the_clock_is_not_removed() {
    own_servers(|| async {
        const STEP: Duration = Duration::from_secs(10_000);
        let fixture = MySqlFixture::new().await;
        let ann = client(&fixture, "1s").await;
        Fixture::server(&fixture, ServerFault::ClockForward(STEP)).await.expect("its own server");
        let first = token(&ann).await;
        Fixture::server(&fixture, ServerFault::ClockBack(STEP)).await.expect("its own server");
        assert!(!is_removed_within(&fixture, &ann, Duration::from_secs(4)).await, "the row is removed");
        let next = token(&ann).await;
        assert!(next > first, "{first} was followed by {next}");
    });
}
