//! Replies that take longer than the bound of a call.

use std::time::Duration;

use leasehold_conformance::{Direct, Fixture, PathFault, Route};
use leasehold_core::{LockClient, LockName};

use super::common::SOON;
use super::one_member::OneMember;
use super::support::case;

/// A request and its reply take longer than the bound of a call, which is one second.
const DELAY: Duration = Duration::from_millis(600);

fn accepted(fixture: &OneMember) -> u64 {
    fixture.proxies().map(|proxy| proxy.stats().accepted).sum()
}

/// How many sessions were requested of the server.
fn sessions(fixture: &OneMember) -> u64 {
    let statistics = fixture.deployment().side().statistics().expect("statistics");
    statistics.requests().get("LeaseGrant").copied().unwrap_or_default()
}

/// Otherwise a client would begin anew for ever when it needs longer to connect than a call may take.
#[test]
fn an_attempt_to_connect_outlives_the_calls_that_wait_for_it() {
    case(async |fixture| {
        fixture.path(PathFault::Delay(DELAY)).await;
        let client = LockClient::new(fixture.backend(Route::Faulty).await);
        let connected = async {
            while sessions(&fixture) == 0 {
                client.lock("x").try_acquire().await.expect_err("a reply in time");
            }
        };
        tokio::time::timeout(SOON, connected).await.expect("the client connects");
    });
}

/// Otherwise an overloaded server would have to log each client in again that it keeps waiting.
#[test]
fn a_late_reply_saves_the_connection() {
    const ROUNDS: u64 = 5;
    case(async |fixture| {
        let (ann, bob) = (Direct::warm(&fixture, Route::Faulty).await, Direct::warm(&fixture, Route::Clear).await);
        let name = LockName::new("held").expect("a name");
        let ttl = fixture.ttl() * 20;
        bob.granted(&bob.claim(&name), ttl).await;
        let before = accepted(&fixture);
        fixture.path(PathFault::Delay(DELAY)).await;
        for _ in 0..ROUNDS {
            ann.try_acquire(&ann.claim(&name), ttl).await.expect_err("a reply in time");
            // The late reply arrives.
            tokio::time::sleep(DELAY).await;
        }
        // A busy machine may delay it once more.
        let opened = accepted(&fixture) - before;
        assert!(opened < ROUNDS - 1, "{opened} connections were opened");
    });
}
