//! Five servers, of which two may fail.

use std::time::Duration;

use leasehold_conformance::{Data, Stopwatch};
use leasehold_core::backend::Delivery;
use leasehold_core::{ErrorKind, LockClient};

use super::common::{eventually, hold};
use super::group::{Group, case, name};

const TTL: Duration = Duration::from_secs(3);

const ALL: [usize; 5] = [0, 1, 2, 3, 4];

/// Half of so many acquires took longer.
async fn median(client: &LockClient, names: &str) -> Duration {
    let mut took = Vec::new();
    for number in 0..15 {
        let stopwatch = Stopwatch::start();
        let guard = hold(client, &format!("{names} {number}")).await;
        took.push(stopwatch.elapsed());
        guard.release().await.expect("a release");
    }
    took.sort_unstable();
    took[took.len() / 2]
}

/// The third fastest reply decides.
#[test]
fn one_of_five_that_is_slow_or_stopped_slows_no_acquire() {
    case(5, async |mut group| {
        // On a path with a delay, so that it is the round trips that count.
        let client = group.client(TTL, "&longest_ttl=3s").await;
        group.delay_replies(&ALL, Duration::from_millis(20));
        let all = median(&client, "all").await;
        group.delay_replies(&[1], Duration::from_millis(300));
        let slow = median(&client, "slow").await;
        group.heal();
        group.delay_replies(&ALL, Duration::from_millis(20));
        group.servers[1].pause().expect("a pause");
        let stopped = median(&client, "stopped").await;
        for (with, median) in [("a slow server", slow), ("a stopped server", stopped)] {
            // Waiting for it would take 300 ms.
            assert!(median < all + Duration::from_millis(100), "{with}: {median:?}, and {all:?} without");
        }
        // It is silent while another one is restarted, and does not use up the time of those that settle that.
        group.heal();
        group.restart(4, Data::Lost);
        hold(&client, "after").await.release().await.expect("a release");
        eventually("it votes again", || group.is_settled(4)).await;
        group.servers[1].resume().expect("a resume");
    });
}

/// Those that vote have accepted the token, and the lease is renewed by them.
#[test]
fn three_of_five_grant_and_fence() {
    case(5, async |mut group: Group| {
        let (ann, bob) = (group.client(TTL, "").await, group.direct("").await);
        let mut last = hold(&ann, "few").await.fencing_token();
        for down in [0, 3] {
            group.servers[down].kill().expect("a kill");
        }
        let running = [1, 2, 4];
        let guard = hold(&ann, "few").await;
        let token = guard.fencing_token();
        assert!(token > last, "{last} was followed by {token}");
        last = token;
        let stopwatch = Stopwatch::start();
        while stopwatch.elapsed() < TTL + TTL / 3 {
            assert!(guard.is_held(), "the lease was lost after {:?}", stopwatch.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let votes: Vec<_> = group.votes(&running, "few").into_iter().flatten().collect();
        assert!(votes.len() == 3 && votes.iter().all(|vote| vote.owner == votes[0].owner), "{votes:?}");
        assert!(votes.iter().all(|vote| vote.fence >= token.get() && !vote.left.is_zero()), "{votes:?}");
        bob.not_granted(&bob.claim(&name("few")), TTL).await;
        assert_eq!(group.live(&running, "few"), 3, "the refused claim has changed nothing");
        guard.release().await.expect("a release");
        let claim = bob.claim(&name("few"));
        let token = bob.granted(&claim, TTL).await.token;
        assert!(token > last, "{last} was followed by {token}");
        bob.release(&claim, Delivery::Confirmed).await.expect("a release");
        // Without a third, nobody gets anything, and the error says why.
        group.servers[4].kill().expect("a kill");
        let error = bob.acquire(&bob.claim(&name("few")), TTL).await.expect_err("two of five");
        let text = error.to_string();
        assert!(error.kind() != ErrorKind::InvalidInput && text.contains("3 of 5 servers are needed"), "{text}");
        for down in [0, 3, 4] {
            assert!(text.contains(&group.proxies[down].addr().to_string()), "{text}");
        }
    });
}
