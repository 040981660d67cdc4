//! A failover to a replica, which has none of the transactions of its primary.

use std::time::Duration;

use leasehold_core::ErrorKind;

use super::replicated::Replicated;
use super::support::{SOON, Stopwatch, hold, own_servers};

const TTL: Duration = Duration::from_secs(3);
const STRATEGY: &str = "&strategy=for-update";

/// As the capabilities say: the lock is granted to another claim, whose token is higher, and the former holder learns
/// of it by its next renewal. Before that, the replica refuses to lock.
#[test]
fn a_promoted_replica_grants_a_higher_token_and_the_former_holder_learns_of_it() {
    own_servers(|| async {
        let mut pair = Replicated::new();
        let (ann, bob) = (pair.client(TTL, STRATEGY).await, pair.client(TTL, STRATEGY).await);
        hold(&ann, "used before").await.release().await.expect("a release");
        pair.cut_off_the_replica().await;
        // The replica has no row of this lock.
        let guard = hold(&ann, "lost").await;
        assert!(ann.capabilities().limits_of_exclusion.iter().any(|limit| limit.contains("failover")));
        let stopwatch = Stopwatch::start();
        pair.end_the_primary();
        let loss = tokio::time::timeout(TTL, guard.lost()).await.expect("the holder learns of it");
        stopwatch.within(TTL / 3 + Duration::from_secs(1), "its next renewal");
        // A new client, because the others may still have connections from before.
        let newcomer = pair.client(TTL, STRATEGY).await;
        let refused = newcomer.lock("lost").try_acquire().await.expect_err("a replica is read-only");
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused:?}, after {loss:?}");
        pair.promote();
        let next = tokio::time::timeout(SOON, hold(&bob, "lost")).await.expect("the replica grants locks");
        assert!(next.fencing_token() > guard.fencing_token() && !guard.is_held());
    });
}
