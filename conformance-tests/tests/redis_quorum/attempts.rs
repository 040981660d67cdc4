//! Attempts to acquire that fail halfway, and what they leave at the servers.

use std::time::Duration;

use leasehold_conformance::harness::{Fault, Reach};
use leasehold_conformance::{Data, Stopwatch};
use leasehold_core::ErrorKind;
use leasehold_core::backend::{AcquireOutcome, Delivery};

use super::common::{SOON, eventually};
use super::fixture::PREFIX;
use super::group::{case, command, granted_by_all, name};
use super::scripts::{exchange, exchange_with, vote};

const TTL: Duration = Duration::from_secs(20);

const HOUR: u64 = 3_600_000_000;

/// In each attempt there is a vote that nobody takes back for a while, because the server refuses to write.
#[test]
fn a_vote_that_was_left_is_withdrawn_as_soon_as_its_server_can() {
    case(3, async |group| {
        let ann = group.direct("").await;
        // A vote has 0.4 of it, and the vote of the third server must be seen meanwhile.
        let bob = group.direct("&timeout=10s").await;
        let lock = name("left");
        granted_by_all(&ann, &ann.claim(&lock), TTL, || group.live(&[0, 1, 2], "left") == 3).await;
        // Bob gets the vote of the third server. Before he hears that the others vote for Ann, it refuses to write.
        group.forget(2, "left");
        group.delay_replies(&[0, 1], Duration::from_secs(3));
        let claim = bob.claim(&lock);
        let refuse = async {
            eventually("bob has a vote", || group.live(&[2], "left") == 1).await;
            command(&group.servers[2], &["CONFIG", "SET", "min-replicas-to-write", "1"]);
        };
        let (outcome, ()) = tokio::join!(bob.acquire(&claim, TTL), refuse);
        assert!(matches!(outcome, Ok(AcquireOutcome::Contended { .. })), "{outcome:?}");
        // Further tries are refused as well, and the vote is not forgotten.
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(group.live(&[2], "left"), 1, "the server refuses to write");
        command(&group.servers[2], &["CONFIG", "SET", "min-replicas-to-write", "0"]);
        let stopwatch = Stopwatch::start();
        eventually("the vote is withdrawn", || group.live(&[2], "left") == 0).await;
        stopwatch.within(Duration::from_secs(2), "no connection broke, and bob has sent nothing else");
    });
}

/// The same with a server that is slow: the attempt ends, and its vote too.
#[test]
fn a_slow_server_delays_no_refusal_and_keeps_no_vote() {
    case(3, async |group| {
        let ann = group.direct("").await;
        let bob = group.direct("").await;
        let lock = name("slow");
        let held = ann.claim(&lock);
        granted_by_all(&ann, &held, TTL, || group.live(&[0, 1, 2], "slow") == 3).await;
        group.forget(2, "slow");
        group.delay_replies(&[2], Duration::from_millis(900));
        let stopwatch = Stopwatch::start();
        bob.not_granted(&bob.claim(&lock), TTL).await;
        stopwatch.within(Duration::from_millis(600), "one bound of a request");
        eventually("bob has no vote", || group.live(&[2], "slow") == 0).await;
        assert_eq!(group.live(&[0, 1], "slow"), 2, "ann has hers");
        ann.release(&held, Delivery::Confirmed).await.expect("a release");
        bob.granted(&bob.claim(&lock), TTL).await;
    });
}

/// Every token has to be raised, and servers fail after they have voted.
#[test]
fn servers_that_fail_between_vote_and_raise() {
    case(3, async |mut group| {
        // A vote and a raise have 1.2 s each, and their replies take 300 ms.
        let ann = group.direct("&timeout=3s").await;
        let lock = name("raise");
        let first = ann.claim(&lock);
        let mut before = ann.granted(&first, TTL).await.token;
        ann.release(&first, Delivery::Confirmed).await.expect("a release");
        eventually("no vote is left", || group.live(&[0, 1, 2], "raise") == 0).await;
        // From now on each guess is below the fences.
        group.servers.iter().for_each(|server| server.step_clock(-60_000_000).expect("a step"));
        ann.granted(&ann.claim(&name("other")), TTL).await;
        group.delay_replies(&[0, 1, 2], Duration::from_millis(300));
        for failing in [&[2][..], &[1, 2]] {
            let claim = ann.claim(&lock);
            let fail = async {
                eventually("all have voted", || group.live(&[0, 1, 2], "raise") == 3).await;
                failing.iter().for_each(|server| group.servers[*server].pause().expect("a pause"));
            };
            let stopwatch = Stopwatch::start();
            let (outcome, ()) = tokio::join!(ann.acquire(&claim, TTL), fail);
            stopwatch.within(Duration::from_millis(3_100), "the bound of a call");
            match outcome {
                Ok(AcquireOutcome::Granted(grant)) => {
                    assert_eq!(failing.len(), 1, "a minority has accepted the token");
                    assert!(grant.token > before, "{before:?} was followed by {:?}", grant.token);
                    let votes = group.votes(&[0, 1], "raise");
                    assert!(votes.iter().flatten().all(|vote| vote.fence == grant.token.get()), "{votes:?}");
                    before = grant.token;
                    ann.release(&claim, Delivery::Confirmed).await.expect("a release");
                }
                Ok(other) => panic!("nobody else is there: {other:?}"),
                Err(error) => {
                    assert_eq!((failing.len(), error.kind()), (2, ErrorKind::Indeterminate), "{error}");
                    assert_eq!(group.live(&[0], "raise"), 0, "the server that replies has withdrawn its vote");
                }
            }
            failing.iter().for_each(|server| group.servers[*server].resume().expect("a resume"));
            eventually("no vote is left", || group.live(&[0, 1, 2], "raise") == 0).await;
            group.all_vote_for(&ann).await;
        }
        group.heal();
        let last = ann.granted(&ann.claim(&lock), TTL).await.token;
        assert!(last > before, "{before:?} was followed by {last:?}");
    });
}

/// An attempt may have left a vote, and the tries after it in the same call certainly do not.
#[test]
fn an_error_stays_indeterminate_until_the_end_of_the_call() {
    case(3, async |mut group| {
        let ann = group.direct("").await;
        group.restart(2, Data::Lost);
        let since = format!("{PREFIX}quorum:since");
        eventually("the restart is seen", || !command(&group.servers[2], &["GET", &since]).text().is_empty()).await;
        let stopwatch = Stopwatch::start();
        let error = loop {
            let warm = ann.claim(&name("warm"));
            ann.granted(&warm, TTL).await;
            ann.release(&warm, Delivery::Confirmed).await.expect("a release");
            group.proxies[1].apply(Fault::LoseReplies);
            // A short ttl, so that the time of the call is enough for more than one try.
            let ttl = Duration::from_millis(300);
            let error = ann.acquire(&ann.claim(&name("doubt")), ttl).await.expect_err("one server votes");
            // On a busy machine the connection may have been closed before, and nothing was sent on it.
            if error.kind() != ErrorKind::Unavailable {
                break error;
            }
            stopwatch.within(SOON, "a request without a reply");
            group.heal();
        };
        assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error}");
        assert_eq!(error.to_string().matches("may or may not").count(), 1, "{error}");
        assert_eq!(group.live(&[0], "doubt"), 0, "it was withdrawn");
    });
}

/// A pair of claims whose votes end without a word shares the servers with a third. No one has a majority.
#[test]
fn votes_that_are_split_are_tried_again_in_the_same_call() {
    case(3, async |group| {
        let bob = group.direct("").await;
        group.delay_replies(&[0, 1, 2], Duration::from_millis(100));
        for server in [0, 1] {
            let claim = u8::try_from(server).expect("a small number") + 1;
            exchange(&group, server, "split", &[vote(claim, Duration::from_millis(100), 0)]);
        }
        bob.granted(&bob.claim(&name("split")), TTL).await;
    });
}

/// One clock is ten years ahead. Tokens follow the clocks of the majority, also on a server that has lost its data.
#[test]
fn a_clock_that_is_years_ahead_does_not_move_tokens() {
    case(3, async |mut group| {
        group.servers[2].step_clock(10 * 365 * 24 * 3_600_000_000).expect("a step");
        let more = "&longest_ttl=1s";
        let ann = group.direct(more).await;
        let time = || u64::try_from(group.servers[0].wall_clock().expect("TIME works")).expect("after 1970");
        let mut last = 0;
        for round in 0..3 {
            let claim = ann.claim(&name("years"));
            let token = ann.granted(&claim, Duration::from_secs(1)).await.token.get();
            assert!(last < token && token < time() + HOUR, "round {round}: {last} was followed by {token}");
            last = token;
            ann.release(&claim, Delivery::Confirmed).await.expect("a release");
        }
        let most = time() + HOUR;
        for server in [0, 1] {
            let state = group.state(server).expect("a state");
            assert!(state.floor < most && state.high < most, "{state:?}");
        }
        // The floor of the first server is the highest token that the others have accepted.
        group.restart(0, Data::Lost);
        ann.granted(&ann.claim(&name("others")), Duration::from_secs(1)).await;
        eventually("it votes again", || group.is_settled(0)).await;
        let state = group.state(0).expect("a state");
        assert!(last <= state.floor && state.floor < most, "{state:?} after {last}");
        let token = ann.granted(&ann.claim(&name("years")), Duration::from_secs(1)).await.token.get();
        assert!(last < token && token < most, "{last} was followed by {token}");
    });
}

/// A record is dropped after the retention, and with it the fence.
#[test]
fn tokens_rise_after_the_records_were_dropped() {
    case(3, async |group| {
        let ann = group.direct("&retention=1s").await;
        let (lock, ttl) = (name("dropped"), Duration::from_secs(3));
        let first = ann.claim(&lock);
        let do_all_vote = || group.live(&[0, 1, 2], "dropped") == 3;
        let token = granted_by_all(&ann, &first, ttl, do_all_vote).await.token;
        // A vote without a reply would get a tombstone, which the record outlives.
        tokio::time::sleep(Duration::from_millis(50)).await;
        ann.release(&first, Delivery::Confirmed).await.expect("a release");
        let is_gone = || group.votes(&[0, 1, 2], "dropped").iter().all(Option::is_none);
        eventually("the records are dropped", is_gone).await;
        // A server by itself does not accept it again either, whatever it is asked.
        let again = vote(1, Duration::from_millis(1), token.get());
        assert_eq!(exchange_with(&group, 0, "dropped", &[again], Duration::from_secs(1)), "v");
        let next = ann.granted(&ann.claim(&lock), ttl).await.token;
        assert!(next > token, "{token:?} was followed by {next:?}");
    });
}

/// A NAT gateway has forgotten every connection. The call tests them, and opens others in the time of a vote.
#[test]
fn connections_that_were_forgotten_are_replaced_in_the_same_call() {
    case(3, async |group| {
        let ann = group.direct("&timeout=3s").await;
        ann.granted(&ann.claim(&name("before")), TTL).await;
        tokio::time::sleep(Duration::from_millis(5_100)).await;
        group.proxies.iter().for_each(|proxy| proxy.apply_to(Fault::DropTraffic, Reach::Open));
        ann.granted(&ann.claim(&name("after")), TTL).await;
    });
}
