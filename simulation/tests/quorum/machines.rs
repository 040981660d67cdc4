//! What the machines of the clients decide. Each distinct question is put to a machine once, and its verdict is kept.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::time::Duration;

use leasehold_core::backend::Stamp;
use leasehold_core::backend::kit::OnRestart;
use leasehold_core::backend::kit::quorum::{
    Attempt, Decision, HoldReply, HoldRequest, Quorum, RaiseReply, Reading, RenewOutcome, RenewTally, RunId,
    ServerState, Settling, SettlingStep, Since, Tally, VoteConfirmation, VoteReply, Votes,
};

use super::server::FastHasher;
use super::state::{Heard, Slot};
use super::{MOST_SERVERS, Sabotage, World};

/// Much less than a tick: what passes between a request and its reply.
const MOMENT: Duration = Duration::from_nanos(1);

/// What the machine waits for beyond the longest ttl before a restarted server is settled.
const SLACK: Duration = Duration::from_secs(1);

type Known<K, V> = HashMap<K, V, BuildHasherDefault<FastHasher>>;

/// The machines of one world.
#[derive(Debug)]
pub(super) struct Machines {
    quorum: Quorum,
    servers: usize,
    /// In ticks: the ttl, and the validity of a lease whose request is sent now.
    ttl: u8,
    pub(super) full_validity: u8,
    sabotage: Option<Sabotage>,
    runs: Vec<RunId>,
    tallies: Known<TallyQuestion, TallyVerdict>,
    renewals: Known<[Heard; MOST_SERVERS], Option<RenewOutcome>>,
    settlings: Known<SettlingQuestion, Option<u8>>,
}

/// What a client that acquires knows. Servers that do not exist have not replied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TallyQuestion {
    pub(super) is_raising: bool,
    pub(super) validity: u8,
    pub(super) token: u8,
    pub(super) highest: u8,
    pub(super) votes: [Heard; MOST_SERVERS],
    pub(super) raises: [Heard; MOST_SERVERS],
}

/// What its tally says. Sets of servers are bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TallyVerdict {
    /// After the pause that it asks for, if it does.
    pub(super) granted: Option<u8>,
    pub(super) raise: Option<u8>,
    pub(super) to_raise: u8,
    pub(super) to_withdraw: u8,
    pub(super) tombstones: u8,
}

/// What a client knows that reads all servers because of one that was restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SettlingQuestion {
    pub(super) server: usize,
    /// In ticks, until leases that the server forgot have ended.
    pub(super) wait: u8,
    /// The servers that were read for its floor, as bits, and the highest fence that was read.
    pub(super) read: u8,
    pub(super) floor: u8,
}

/// The validity of a lease counts in ticks of the holder's clock.
const fn ticks(count: u8) -> Duration {
    Duration::from_secs(1_000 * count as u64)
}

/// The tick in which the machines decide.
fn this_tick() -> Stamp {
    Stamp::from_start(ticks(100))
}

impl Machines {
    pub(super) fn new(world: &World) -> Self {
        let has_margin = world.fast_clocks && world.sabotage != Some(Sabotage::NoMargin);
        Self {
            quorum: Quorum::new(world.servers).expect("a world has three servers or more"),
            servers: world.servers,
            ttl: world.ttl,
            full_validity: world.ttl - u8::from(has_margin),
            sabotage: world.sabotage,
            runs: (0..=world.restarts).map(|run| RunId::new(run.to_string())).collect(),
            tallies: Known::default(),
            renewals: Known::default(),
            settlings: Known::default(),
        }
    }

    fn breaks(&self, rule: Sabotage) -> bool {
        self.sabotage == Some(rule)
    }

    /// The verdict of the tally of an attempt.
    pub(super) fn tally(&mut self, question: TallyQuestion) -> TallyVerdict {
        if let Some(known) = self.tallies.get(&question) {
            return *known;
        }
        let mut tally = self.tally_with(&question);
        let mut verdict = TallyVerdict::default();
        tally.to_raise().for_each(|server| verdict.to_raise |= 1 << server);
        for withdrawal in tally.to_withdraw() {
            verdict.to_withdraw |= 1 << withdrawal.server;
            verdict.tombstones |= u8::from(withdrawal.tombstone) << withdrawal.server;
        }
        let now = if self.breaks(Sabotage::ToldWithoutValidity) {
            self.sent(question.validity)
        } else {
            this_tick().plus(MOMENT)
        };
        let decision = match tally.decide(now) {
            Decision::Wait { until: Some(until) } => tally.decide(until.max(now)),
            decision => decision,
        };
        match decision {
            // A majority of the servers' own counters: nothing is raised.
            Decision::Raise { token } if self.breaks(Sabotage::EachServerCountsTokens) => {
                verdict.granted = Some(token as u8 - 1);
            }
            Decision::Raise { token } => verdict.raise = Some(token as u8),
            Decision::Granted { token } => verdict.granted = Some(token as u8),
            Decision::Wait { .. } | Decision::GiveUp(_) => {}
        }
        self.tallies.insert(question, verdict);
        verdict
    }

    fn sent(&self, validity: u8) -> Stamp {
        if self.breaks(Sabotage::ValidityFromTheReply) {
            return this_tick();
        }
        this_tick().minus(ticks(self.full_validity - validity))
    }

    /// A tally that has heard all this.
    fn tally_with(&self, question: &TallyQuestion) -> Tally {
        let &TallyQuestion { is_raising, validity, token, highest, votes, raises } = question;
        let sent = self.sent(validity);
        let heard_at = sent.plus(MOMENT);
        // With the highest fence just below it, the machine raises to the same token again.
        let (guess, highest) = if is_raising { (0, token - 1) } else { (token, highest) };
        let (ttl, margin) = (ticks(self.ttl), ticks(self.ttl - self.full_validity));
        let mut tally =
            Tally::new(self.quorum, Attempt { guess: guess.into(), sent, ttl, margin, number: 0, random: 0 });
        let one_is_enough = self.breaks(Sabotage::OneReplyCountsForAMajority);
        for (server, heard) in self.heard(votes, one_is_enough).enumerate() {
            match heard {
                Heard::Open => {}
                Heard::NoReply => tally.no_reply(server),
                Heard::No => tally.reply(server, VoteReply::Held { fence: 0, left: MOMENT, holder: 0 }, heard_at),
                Heard::Voted => tally.reply(server, VoteReply::Voted { fence: highest.into() }, heard_at),
                Heard::Yes => tally.reply(server, VoteReply::Accepted, heard_at),
            }
        }
        if is_raising {
            let raised = tally.decide(heard_at.plus(MOMENT));
            assert_eq!(raised, Decision::Raise { token: token.into() }, "{question:?}");
            let one_is_enough = one_is_enough || self.breaks(Sabotage::TokenRaisedOnOneServer);
            for (server, heard) in self.heard(raises, one_is_enough).enumerate() {
                match heard {
                    Heard::Open => {}
                    Heard::NoReply => tally.no_reply(server),
                    Heard::Yes => tally.raise_reply(server, RaiseReply::Accepted),
                    Heard::No | Heard::Voted => tally.raise_reply(server, RaiseReply::Refused),
                }
            }
        }
        tally
    }

    /// The replies. If one is enough, the best reply counts for every server.
    fn heard(&self, replies: [Heard; MOST_SERVERS], one_is_enough: bool) -> impl Iterator<Item = Heard> {
        let best = replies.into_iter().max().filter(|best| one_is_enough && *best >= Heard::Voted);
        replies.into_iter().take(self.servers).map(move |heard| best.unwrap_or(heard))
    }

    /// The outcome of a renewal.
    pub(super) fn renewal(&mut self, replies: [Heard; MOST_SERVERS]) -> Option<RenewOutcome> {
        if let Some(known) = self.renewals.get(&replies) {
            return *known;
        }
        let mut tally = RenewTally::new(self.quorum);
        for (server, heard) in self.heard(replies, self.breaks(Sabotage::OneReplyCountsForAMajority)).enumerate() {
            match heard {
                Heard::Open => {}
                Heard::NoReply if self.breaks(Sabotage::NoReplyToARenewalCountsAsLost) => {
                    tally.reply(server, HoldReply::Lost);
                }
                Heard::NoReply => tally.no_reply(server),
                Heard::Yes => tally.reply(server, HoldReply::Renewed),
                Heard::No | Heard::Voted => tally.reply(server, HoldReply::Lost),
            }
        }
        let mut outcome = tally.outcome();
        if self.breaks(Sabotage::RenewalNeedsAMajorityOfTheReplies) {
            let count = |of| replies.iter().filter(|reply| **reply == of).count();
            if count(Heard::Yes) > count(Heard::No) {
                outcome = Some(RenewOutcome::Renewed);
            }
        }
        self.renewals.insert(replies, outcome);
        outcome
    }

    /// Whether a renewal may put the vote back on a server that is in this run now.
    pub(super) fn puts_back(&self, slot: &Slot, run: u8) -> bool {
        let Some(in_run) = slot.in_run else { return false };
        let mut votes = Votes::new(self.quorum);
        let until = this_tick().plus(ticks(slot.confirmed));
        votes.confirmed(0, VoteConfirmation { run: self.runs[usize::from(in_run)].clone(), sent: Stamp::ZERO, until });
        let now = if self.breaks(Sabotage::PutBackAfterTheConfirmation) { Stamp::ZERO } else { this_tick() };
        votes.request(0, &self.runs[usize::from(run)], now) == HoldRequest::Renew { put_back: true }
    }

    /// Whether the withdrawal of a holder that sent a request needs a tombstone.
    pub(super) fn doubts(&self) -> bool {
        let mut votes = Votes::new(self.quorum);
        votes.sent(0);
        votes.needs_tombstone(0)
    }

    /// The floor with which a server may be settled now.
    pub(super) fn floor(&mut self, question: SettlingQuestion) -> Option<u8> {
        if let Some(known) = self.settlings.get(&question) {
            return *known;
        }
        let SettlingQuestion { server, wait, read, floor } = question;
        let longest_ttl = ticks(self.ttl);
        let mut machine =
            Settling::new(self.quorum, vec![String::new(); self.servers], longest_ttl, OnRestart::QuarantineKnown);
        let [first, before, over, after] = [1, 2, 3, 4].map(|at| Stamp::from_start(Duration::from_nanos(at)));
        let run = RunId::new("restarted");
        let since = Some(Since { run: run.clone(), time: Duration::ZERO });
        let early = Reading { run, time: Duration::ZERO, state: None, since, sent: first, received: first };
        let time = longest_ttl + SLACK - ticks(wait);
        machine.read(server, early.clone());
        machine.read(server, Reading { time, sent: before, received: over, ..early });
        let one_is_enough = self.breaks(Sabotage::FloorReadFromOneServer) && read > 0;
        for number in (0..self.servers).filter(|number| *number != server) {
            // A floor from a reading before the end of the wait would be zero.
            let is_after = read >> number & 1 > 0 || one_is_enough;
            let (sent, high) = if is_after { (after, floor.into()) } else { (before, 0) };
            let run = RunId::new(number.to_string());
            let state = ServerState { run: run.clone(), servers: self.servers, number, longest_ttl, floor: 0, high };
            machine.read(number, Reading { run, time, state: Some(state), since: None, sent, received: sent });
        }
        let step = machine.step(server).expect("the servers fit together");
        let floor = if let SettlingStep::Settle { floor } = step { Some(floor as u8) } else { None };
        self.settlings.insert(question, floor);
        floor
    }
}
