//! The rules of a server, as its scripts have them, for one lock.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use super::state::{Heard, Message, Slot, Verb};
use super::{MOST_CLIENTS, Sabotage, World};

/// The owner of a vote whose claim has given up and can do nothing more.
pub(super) const NOBODY: u8 = u8::MAX;

/// How many late requests a server has room for.
const MOST_LATE: usize = 3;

/// A server, and what each client knows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// The claim that it votes for, for so many ticks.
    pub(super) owner: u8,
    pub(super) left: u8,
    /// The highest token that it has accepted.
    pub(super) fence: u8,
    /// Whether it votes.
    pub(super) settling: Settling,
    /// How often it was restarted.
    pub(super) run: u8,
    /// Claims whose late requests it refuses, as bits.
    tombstones: u16,
    /// Claims that are certainly withdrawn here although a request of theirs may arrive, as bits.
    withdrawn: u16,
    /// Its highest fence was read for the floor of the unsettled server.
    pub(super) was_read: bool,
    pub(super) slots: [Slot; MOST_CLIENTS],
    late: [Message; MOST_LATE],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settling {
    Settled,
    /// Leases that it forgot may last for so many ticks. `floor` is the highest fence that was read for it.
    Unsettled {
        wait: u8,
        floor: u8,
    },
}

/// The reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    No,
    Yes,
    /// A vote, without the guess.
    Fence(u8),
}

impl Server {
    pub(super) fn new() -> Self {
        Self {
            owner: 0,
            left: 0,
            fence: 0,
            settling: Settling::Settled,
            run: 0,
            tombstones: 0,
            withdrawn: 0,
            was_read: false,
            slots: [Slot::default(); MOST_CLIENTS],
            late: [Message::default(); MOST_LATE],
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        self.settling == Settling::Settled
    }

    pub(super) fn votes_for(&self, claim: u8) -> bool {
        self.owner == claim && self.left > 0
    }

    /// Executes a request. `put_back`: a renewal may take the vote back after a restart.
    pub(super) fn execute(&mut self, world: &World, request: Message, put_back: bool) -> Reply {
        let any_run = world.sabotage == Some(Sabotage::RequestsToAnEarlierRunCount);
        if request.run != self.run && !any_run {
            return Reply::No;
        }
        match request.verb {
            Verb::Vote => self.vote(world, request.claim, request.token),
            Verb::Raise => self.raise(world, request.claim, request.token),
            Verb::Renew => self.renew(world, request.claim, request.token, put_back),
            Verb::Join => self.join(world, request.claim, request.token),
        }
    }

    fn vote(&mut self, world: &World, claim: u8, guess: u8) -> Reply {
        let is_held = self.left > 0 && self.owner != claim;
        if !self.is_settled() || is_held || self.has_tombstone(world, claim) {
            return Reply::No;
        }
        let is_second_copy = self.votes_for(claim) && guess == self.fence;
        (self.owner, self.left) = (claim, world.ttl);
        match world.sabotage {
            Some(Sabotage::EachServerCountsTokens) => {
                self.fence += 1;
                return Reply::Fence(self.fence);
            }
            Some(Sabotage::TokenThatEqualsTheFence) if guess == self.fence => return Reply::Yes,
            _ => {}
        }
        if guess > self.fence || is_second_copy {
            self.fence = guess;
            Reply::Yes
        } else {
            Reply::Fence(self.fence)
        }
    }

    fn raise(&mut self, world: &World, claim: u8, token: u8) -> Reply {
        if !self.votes_for(claim) && world.sabotage != Some(Sabotage::RaiseByAnybody) {
            return Reply::No;
        }
        let takes_equal = world.sabotage == Some(Sabotage::TokenThatEqualsTheFence);
        if token > self.fence || takes_equal && token == self.fence {
            self.fence = token;
            Reply::Yes
        } else {
            Reply::No
        }
    }

    fn renew(&mut self, world: &World, claim: u8, token: u8, put_back: bool) -> Reply {
        if self.has_tombstone(world, claim) {
            return Reply::No;
        }
        if self.votes_for(claim) {
            self.left = world.ttl;
            return Reply::Yes;
        }
        if self.left > 0 {
            return Reply::No;
        }
        let takes_expired = match world.sabotage {
            Some(Sabotage::RenewTakesAnExpiredLease) => self.is_settled(),
            Some(Sabotage::RenewTakesAnExpiredLeaseBelowItsToken) => self.is_settled() && self.fence <= token,
            _ => false,
        };
        if put_back && !self.is_settled() || takes_expired {
            self.take(world, claim, token);
            return Reply::Yes;
        }
        Reply::No
    }

    fn join(&mut self, world: &World, claim: u8, token: u8) -> Reply {
        if !self.is_settled() || self.has_tombstone(world, claim) || self.left > 0 {
            return Reply::No;
        }
        self.take(world, claim, token);
        Reply::Yes
    }

    fn take(&mut self, world: &World, claim: u8, token: u8) {
        (self.owner, self.left, self.fence) = (claim, world.ttl, self.fence.max(token));
    }

    /// Executes the withdrawal of a claim.
    pub(super) fn withdraw(&mut self, world: &World, claim: u8, tombstone: bool) {
        if self.has_late(claim) && tombstone && world.sabotage != Some(Sabotage::NoTombstone) {
            self.tombstones |= 1 << claim;
        }
        self.note_withdrawn(claim);
        if self.owner == claim || world.sabotage == Some(Sabotage::ReleaseEndsAnybodysLease) {
            self.end_vote();
        }
    }

    /// From now on, no request of the claim may have an effect.
    pub(super) fn note_withdrawn(&mut self, claim: u8) {
        if self.has_late(claim) {
            self.withdrawn |= 1 << claim;
        }
    }

    /// The claim sends nothing more to this server. Its vote, if it still has one, is then like any other.
    pub(super) fn forget(&mut self, claim: u8) {
        if self.owner == claim && !self.has_late(claim) {
            self.owner = NOBODY;
        }
    }

    pub(super) fn end_vote(&mut self) {
        (self.owner, self.left) = (0, 0);
    }

    fn has_tombstone(&self, world: &World, claim: u8) -> bool {
        let is_broken = self.slots[world.client_of(claim)].is_broken;
        self.tombstones >> claim & 1 > 0 || is_broken && world.sabotage != Some(Sabotage::BreakLeavesNoTombstone)
    }

    /// Executes the break of the lease of a client, which is held by this claim.
    pub(super) fn break_lease(&mut self, client: usize, claim: u8) {
        self.slots[client].is_broken = true;
        if self.owner == claim {
            self.end_vote();
        }
    }

    pub(super) fn has_late(&self, claim: u8) -> bool {
        self.late.iter().any(|message| message.claim == claim)
    }

    pub(super) fn late_count(&self) -> usize {
        self.late.iter().filter(|message| message.claim > 0).count()
    }

    /// Keeps a request for later.
    pub(super) fn delay(&mut self, request: Message) {
        let free =
            self.late.iter().position(|message| message.claim == 0).expect("the world has no more late requests");
        self.late[free] = request;
        self.late.sort_unstable();
    }

    /// What this server becomes when each of its late requests arrives, and whether that gave a vote to a claim whose
    /// withdrawal is certain.
    pub(super) fn arrivals(&self, world: &World) -> impl Iterator<Item = (Self, bool)> {
        let late = (0..MOST_LATE).filter(|&index| self.late[index].claim > 0);
        let distinct = late.filter(|&index| index == 0 || self.late[index] != self.late[index - 1]);
        distinct.map(|index| {
            let (mut next, message) = (*self, self.late[index]);
            next.late[index] = Message::default();
            next.late.sort_unstable();
            next.execute(world, message, false);
            let claim = message.claim;
            let is_revived = next.owner == claim && self.owner != claim && self.withdrawn >> claim & 1 > 0;
            if !next.has_late(claim) {
                // Without a request that may arrive, they change nothing.
                next.tombstones &= !(1 << claim);
                next.withdrawn &= !(1 << claim);
            }
            (next, is_revived)
        })
    }

    /// The process starts again, without its data.
    pub(super) fn restarted(&self, world: &World) -> Self {
        let settling = match world.sabotage {
            Some(Sabotage::RestartedServerVotesAtOnce) => Settling::Settled,
            Some(Sabotage::RestartedServerVotesAfterItHasAFloor) => Settling::Unsettled { wait: 0, floor: 0 },
            _ => Settling::Unsettled { wait: world.ttl, floor: 0 },
        };
        Self { settling, run: self.run + 1, slots: self.slots, late: self.late, ..Self::new() }
    }

    pub(super) fn tick(&mut self, world: &World) {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.owner = 0;
        }
        if let Settling::Unsettled { wait, .. } = &mut self.settling {
            *wait = wait.saturating_sub(1);
        }
        for slot in &mut self.slots {
            slot.confirmed = slot.confirmed.saturating_sub(1);
            if slot.confirmed == 0 && world.sabotage != Some(Sabotage::PutBackAfterTheConfirmation) {
                slot.in_run = None;
            }
        }
    }

    /// Makes states equal from which the same follows.
    pub(super) fn leave_out_what_changes_nothing(&mut self, world: &World) {
        let client_of = |claim: u8| world.client_of(claim);
        for client in 0..world.clients {
            let slot = &mut self.slots[client];
            if !slot.is_in_doubt && slot.vote != Heard::NoReply && slot.reply != Heard::NoReply {
                continue;
            }
            // A tombstone for no request changes nothing.
            let has_late = self.late.iter().any(|message| message.claim > 0 && client_of(message.claim) == client);
            slot.is_in_doubt &= has_late;
            let is_owner = self.owner != 0 && self.owner != NOBODY && client_of(self.owner) == client;
            if !has_late && !is_owner {
                // The server does not vote for the client, and will not, as if it had said so.
                for heard in [&mut slot.vote, &mut slot.reply] {
                    if *heard == Heard::NoReply {
                        *heard = Heard::No;
                    }
                }
            }
        }
    }
}

impl Hash for Server {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let (is_settled, wait, floor) = match self.settling {
            Settling::Settled => (1, 0, 0),
            Settling::Unsettled { wait, floor } => (0, wait, floor),
        };
        let flags = is_settled | u8::from(self.was_read) << 1;
        let all = [self.owner, self.left, self.fence, self.run, flags, wait, floor, 0];
        hasher.write_u64(u64::from_le_bytes(all));
        hasher.write_u32(u32::from(self.tombstones) << 16 | u32::from(self.withdrawn));
        self.slots.iter().for_each(|slot| slot.hash(hasher));
        self.late.iter().for_each(|message| message.hash(hasher));
    }
}

/// The numbers of the states of servers.
pub(super) type Numbers = HashMap<Server, u32, BuildHasherDefault<FastHasher>>;

/// Hashes the small numbers that states consist of, about ten times as fast as the standard hasher.
#[derive(Debug, Default)]
pub(super) struct FastHasher(u64);

impl Hasher for FastHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(u64::from(number));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        // The two halves of the product depend on every bit of the factors.
        let product = u128::from(self.0 ^ number ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93_u128;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
