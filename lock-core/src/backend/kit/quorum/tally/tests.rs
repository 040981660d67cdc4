use std::collections::BTreeSet;

use super::*;

const TTL: Duration = Duration::from_secs(10);
const MARGIN: Duration = Duration::from_millis(100);
const GUESS: u64 = 50;
const VOTED: VoteReply = VoteReply::Voted { fence: 70 };

fn at(ms: u64) -> Stamp {
    Stamp::from_start(Duration::from_millis(ms))
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn held(left: u64) -> VoteReply {
    VoteReply::Held { fence: 60, left: ms(left), holder: 1 }
}

/// An attempt that was sent at 1,000 ms.
fn attempt() -> Attempt {
    Attempt { guess: GUESS, sent: at(1_000), ttl: TTL, margin: MARGIN, number: 0, random: u32::MAX / 2 + 1 }
}

fn tally(servers: usize) -> Tally {
    Tally::new(Quorum::new(servers).unwrap(), attempt())
}

/// A tally with these replies, the first of which arrived at 1,010 ms and each of the others 10 ms later.
fn replied(servers: usize, replies: &[VoteReply]) -> Tally {
    let mut tally = tally(servers);
    for (server, reply) in replies.iter().enumerate() {
        tally.reply(server, *reply, at(1_010 + 10 * server as u64));
    }
    tally
}

fn withdrawals(tally: &Tally) -> Vec<(usize, bool)> {
    tally.to_withdraw().map(|it| (it.server, it.tombstone)).collect()
}

fn retry_after(decision: Decision) -> Duration {
    match decision {
        Decision::GiveUp(GiveUp::Contended { retry_after }) => retry_after,
        other => panic!("{other:?}"),
    }
}

/// What an attempt comes to if each server does this, in the words of the protocol.
fn expected(servers: usize, ends: &[End]) -> &'static str {
    let quorum = Quorum::new(servers).unwrap();
    let count = |wanted: &[End]| ends.iter().filter(|end| wanted.contains(end)).count();
    let votes = count(&[End::Accepted, End::Voted]);
    if count(&[End::Accepted]) >= quorum.majority() {
        "granted"
    } else if votes >= quorum.majority() {
        "raise"
    } else if count(&[End::Held]) >= quorum.overlap() || votes + count(&[End::Held]) >= quorum.majority() {
        "contended"
    } else {
        "too few"
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Accepted,
    Voted,
    Held,
    Unsettled,
    NotSent,
    NoReply,
}

const ENDS: [End; 6] = [End::Accepted, End::Voted, End::Held, End::Unsettled, End::NotSent, End::NoReply];

/// Checks a tally with these ends and all that may follow. Returns what may come of it.
fn explore(servers: usize, ends: &mut Vec<End>) -> BTreeSet<&'static str> {
    let mut outcomes = BTreeSet::new();
    if ends.len() == servers {
        outcomes.insert(expected(servers, ends));
    } else {
        for end in ENDS {
            ends.push(end);
            outcomes.append(&mut explore(servers, ends));
            ends.pop();
        }
    }
    let mut tally = tally(servers);
    for (server, end) in ends.iter().enumerate() {
        let reply = match end {
            End::Accepted => VoteReply::Accepted,
            End::Voted => VOTED,
            End::Held => held(500),
            End::Unsettled => VoteReply::Unsettled,
            End::NotSent => {
                tally.not_sent(server);
                continue;
            }
            End::NoReply => {
                tally.no_reply(server);
                continue;
            }
        };
        tally.reply(server, reply, at(1_010));
    }
    let decided = match tally.decide(at(1_010)) {
        Decision::Wait { .. } => None,
        Decision::Granted { token } => {
            assert_eq!(token, GUESS);
            Some("granted")
        }
        Decision::Raise { token } => {
            assert_eq!(token, if ends.contains(&End::Voted) { 71 } else { GUESS + 1 });
            Some("raise")
        }
        Decision::GiveUp(GiveUp::Contended { .. }) => Some("contended"),
        Decision::GiveUp(GiveUp::TooFew(absent)) => {
            assert!(absent.len() > servers - Quorum::new(servers).unwrap().majority());
            Some("too few")
        }
        Decision::GiveUp(other) => panic!("{other:?}"),
    };
    let certain = (outcomes.len() == 1).then(|| *outcomes.first().unwrap());
    assert_eq!(decided, certain, "of {servers}: {ends:?}");
    outcomes
}

#[test]
fn it_decides_as_soon_as_the_outcome_is_certain() {
    for servers in [3, 4, 5] {
        assert_eq!(explore(servers, &mut Vec::new()).len(), 4);
    }
}

#[test]
fn a_majority_that_accepts_the_guess_holds_the_lock() {
    let mut tally = replied(5, &[VoteReply::Accepted, held(300), VoteReply::Accepted]);
    assert_eq!(tally.decide(at(1_030)), Decision::Wait { until: None });
    tally.reply(4, VoteReply::Accepted, at(1_040));
    assert_eq!(tally.decide(at(1_040)), Decision::Granted { token: GUESS });
    // The validity ends a margin before the ttl, which counts from the request.
    assert_eq!(tally.decide(at(10_899)), Decision::Granted { token: GUESS });
    assert_eq!(tally.decide(at(10_900)), Decision::GiveUp(GiveUp::TooLate));
}

#[test]
fn a_raise_waits_as_long_again_as_the_votes_took() {
    // The majority has voted after 20 ms.
    let mut tally = replied(3, &[VoteReply::Accepted, VOTED]);
    assert_eq!(tally.decide(at(1_020)), Decision::Wait { until: Some(at(1_040)) });
    assert_eq!(tally.decide(at(1_039)), Decision::Wait { until: Some(at(1_040)) });
    assert_eq!(tally.clone().decide(at(1_040)), Decision::Raise { token: 71 });
    // A later vote does not prolong it.
    let mut later = replied(5, &[VoteReply::Accepted, VOTED, VOTED, VoteReply::Accepted]);
    assert_eq!(later.decide(at(1_040)), Decision::Wait { until: Some(at(1_060)) });
    tally.reply(2, VoteReply::Accepted, at(1_039));
    assert_eq!(tally.decide(at(1_040)), Decision::Granted { token: GUESS });
    // Nothing is raised for a lease that is over.
    assert_eq!(replied(3, &[VOTED, VOTED]).decide(at(10_900)), Decision::GiveUp(GiveUp::TooLate));
    assert_eq!(replied(3, &[VOTED, VOTED]).decide(at(10_899)), Decision::Raise { token: 71 });
}

#[test]
fn a_raised_token_needs_a_majority_too() {
    let mut tally = replied(5, &[VOTED, VoteReply::Accepted, VOTED, held(300)]);
    assert_eq!(tally.to_raise().count(), 0);
    tally.no_reply(4);
    assert_eq!(tally.decide(at(1_040)), Decision::Raise { token: 71 });
    // The one that votes for another attempt would refuse it, and the one without a reply may have voted.
    assert_eq!(tally.to_raise().collect::<Vec<_>>(), [0, 1, 2, 4]);
    tally.raise_reply(0, RaiseReply::Accepted);
    tally.raise_reply(1, RaiseReply::Accepted);
    assert_eq!(tally.decide(at(1_050)), Decision::Wait { until: None });
    let mut granted = tally.clone();
    granted.raise_reply(4, RaiseReply::Accepted);
    assert_eq!(granted.decide(at(1_050)), Decision::Granted { token: 71 });
    assert_eq!(granted.decide(at(10_900)), Decision::GiveUp(GiveUp::TooLate));
    tally.raise_reply(2, RaiseReply::Refused);
    assert_eq!(tally.decide(at(1_050)), Decision::Wait { until: None });
    tally.raise_reply(4, RaiseReply::Refused);
    assert_eq!(retry_after(tally.decide(at(1_050))), ms(45));
    // The votes are withdrawn all the same.
    assert_eq!(withdrawals(&tally), [(0, false), (1, false), (2, false), (4, true)]);
}

#[test]
fn a_raise_without_a_reply_of_a_majority_fails() {
    let mut tally = replied(5, &[VOTED, VOTED, VOTED, VoteReply::Unsettled]);
    tally.not_sent(4);
    assert_eq!(tally.decide(at(1_040)), Decision::Raise { token: 71 });
    assert_eq!(tally.to_raise().collect::<Vec<_>>(), [0, 1, 2]);
    tally.not_sent(0);
    tally.raise_reply(1, RaiseReply::Accepted);
    let absent = |servers: &[(usize, Absence)]| {
        let absent = servers.iter().map(|&(server, why)| Absent { server, why }).collect();
        Decision::GiveUp(GiveUp::TooFew(absent))
    };
    let [not_sent, unsettled, no_reply] = [Absence::NotSent, Absence::Unsettled, Absence::NoReply];
    assert_eq!(tally.decide(at(1_050)), absent(&[(0, not_sent), (3, unsettled), (4, not_sent)]));
    tally.end();
    assert_eq!(tally.decide(at(1_050)), absent(&[(0, not_sent), (2, no_reply), (3, unsettled), (4, not_sent)]));
    // The first one got no raise, but has the vote.
    assert_eq!(withdrawals(&tally), [(0, false), (1, false), (2, false)]);
}

#[test]
fn a_raise_is_above_the_fences_of_the_votes_alone() {
    // The guess that was refused may be far ahead of the servers' clocks, and so may the fence of another attempt.
    let low = |fence| VoteReply::Voted { fence };
    let other = VoteReply::Held { fence: 90, left: ms(500), holder: 1 };
    assert_eq!(replied(3, &[low(7), other, low(8)]).decide(at(1_030)), Decision::Raise { token: 9 });
    let mut accepted = replied(3, &[low(7), other, VoteReply::Accepted]);
    assert_eq!(accepted.decide(at(1_030)), Decision::Raise { token: GUESS + 1 });
}

#[test]
fn a_clock_that_is_far_ahead_does_not_raise_the_token() {
    let low = |fence| VoteReply::Voted { fence };
    // The third one would refuse the raise, and is not asked.
    let mut tally = replied(3, &[low(7), low(9 + FAR), low(8)]);
    assert_eq!(tally.decide(at(1_050)), Decision::Raise { token: 9 });
    assert_eq!(tally.to_raise().collect::<Vec<_>>(), [0, 2]);
    tally.raise_reply(0, RaiseReply::Accepted);
    tally.raise_reply(2, RaiseReply::Accepted);
    assert_eq!(tally.decide(at(1_050)), Decision::Granted { token: 9 });
    // Clocks that differ by less may all accept, so that one of them may fail.
    assert_eq!(replied(3, &[low(7), low(8 + FAR), low(8)]).decide(at(1_050)), Decision::Raise { token: 9 + FAR });
    // Without a majority below it, there is no other token.
    assert_eq!(replied(3, &[low(7), low(9 + FAR)]).decide(at(1_050)), Decision::Raise { token: 10 + FAR });
}

#[test]
fn a_raise_of_four_fails_as_soon_as_three_cannot_reply() {
    let mut tally = replied(4, &[VOTED, VOTED, VOTED, VOTED]);
    assert_eq!(tally.decide(at(1_060)), Decision::Raise { token: 71 });
    tally.not_sent(0);
    assert_eq!(tally.decide(at(1_060)), Decision::Wait { until: None });
    tally.no_reply(1);
    assert!(matches!(tally.decide(at(1_060)), Decision::GiveUp(GiveUp::TooFew(absent)) if absent.len() == 2));
}

#[test]
fn an_attempt_retries_when_a_majority_may_be_free() {
    // Half of the longest pause, 5 ms, unless the votes end before.
    assert_eq!(retry_after(replied(3, &[held(500), held(3)]).decide(at(1_020))), ms(5));
    assert_eq!(retry_after(replied(3, &[held(3), held(4)]).decide(at(1_020))), ms(4));
    assert_eq!(retry_after(replied(3, &[held(3), VOTED, held(4)]).decide(at(1_030))), ms(3));
    // Two of five say too little.
    let mut tally = replied(5, &[held(1), held(2)]);
    tally.no_reply(2);
    assert_eq!(tally.decide(at(1_030)), Decision::Wait { until: None });
    tally.reply(3, held(3), at(1_030));
    assert_eq!(retry_after(tally.decide(at(1_030))), ms(3));
    let mut four = replied(4, &[held(1), held(2)]);
    assert_eq!(retry_after(four.decide(at(1_030))), ms(5));
}

#[test]
fn attempts_that_split_the_votes_spread_their_retries() {
    let split = [VOTED, held(500), VoteReply::Accepted, held(500)];
    // Two votes each, of four. The third reply came after 30 ms.
    let after = |number, random| {
        let mut tally = replied(4, &split[..3]);
        tally.attempt = Attempt { number, random, ..tally.attempt };
        assert_eq!(tally.decide(at(1_030)), Decision::Wait { until: None });
        tally.no_reply(3);
        retry_after(tally.decide(at(1_040)))
    };
    // At least one round trip and up to two, on a network that is slower than the first back-off.
    assert_eq!([after(0, 0), after(0, u32::MAX / 2 + 1)], [ms(30), ms(45)]);
    assert_eq!(after(3, 0), ms(30));
    assert_eq!(after(3, u32::MAX / 2 + 1), ms(55));
    assert!(after(3, u32::MAX) > ms(79) && after(3, u32::MAX) < ms(80));
    // The longest pause doubles, to 250 ms.
    assert!(after(4, u32::MAX) > ms(159) && after(4, u32::MAX) < ms(160));
    assert!(after(5, u32::MAX) > ms(249) && after(5, u32::MAX) < ms(250));
    assert_eq!(after(u32::MAX, u32::MAX), after(5, u32::MAX));
}

#[test]
fn votes_are_split_if_no_attempt_can_have_a_majority() {
    let by = |holder| VoteReply::Held { fence: 60, left: ms(500), holder };
    // The second reply came after 20 ms, and the random number is half of the largest one.
    let pause = |servers, replies: &[VoteReply]| replied(servers, replies).split_pause();
    assert_eq!(pause(3, &[by(1), by(2), VOTED]), Some(ms(20)));
    assert_eq!(pause(3, &[by(1), by(1), VOTED]), None);
    // The third one may vote for either.
    assert_eq!(pause(3, &[by(1), by(2)]), None);
    assert_eq!(pause(3, &[by(1), by(2), VoteReply::Unsettled]), None);
    assert_eq!(pause(4, &[by(1), VOTED, by(1), VOTED]), Some(ms(30)));
    assert_eq!(pause(5, &[by(1), VOTED, by(1), VOTED]), None);
    assert_eq!(pause(5, &[by(1), VOTED, by(1), VOTED, by(2)]), Some(ms(30)));
    assert_eq!(pause(3, &[]), None);
}

#[test]
fn an_attempt_that_was_withdrawn_ends_at_once() {
    let mut tally = replied(3, &[VoteReply::Accepted, VoteReply::Accepted, VoteReply::Withdrawn]);
    assert_eq!(tally.decide(at(1_030)), Decision::GiveUp(GiveUp::Withdrawn));
    assert_eq!(withdrawals(&tally), [(0, false), (1, false)]);
}

#[test]
fn only_servers_that_may_have_the_vote_are_asked_to_withdraw_it() {
    let replies = [VoteReply::Accepted, VOTED, held(500), VoteReply::Unsettled];
    let mut tally = Tally::new(Quorum::new(7).unwrap(), attempt());
    replies.iter().enumerate().for_each(|(server, reply)| tally.reply(server, *reply, at(1_010)));
    tally.not_sent(4);
    tally.no_reply(5);
    // The last one has not replied yet.
    assert_eq!(withdrawals(&tally), [(0, false), (1, false), (5, true), (6, true)]);
    tally.reply(6, held(500), at(1_020));
    tally.withdrawn(0);
    tally.withdrawn(5);
    assert_eq!(withdrawals(&tally), [(1, false)]);
    tally.withdrawn(1);
    assert_eq!(withdrawals(&tally), []);
}

#[test]
fn the_next_guess_is_above_every_fence() {
    assert_eq!(tally(3).highest_fence(), 0);
    assert_eq!(replied(3, &[VoteReply::Accepted, held(500)]).highest_fence(), 60);
    assert_eq!(replied(3, &[VOTED, held(500)]).highest_fence(), 70);
}
