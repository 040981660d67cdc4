//! What the clients may do next: the decisions of their machines, and what users and the network do to them.

use leasehold_core::backend::kit::quorum::RenewOutcome;

use super::machines::TallyQuestion;
use super::server::{Reply, Server};
use super::state::{Client, Heard, Message, Phase, Slot, State, Verb};
use super::steps::{Found, Model};
use super::{Broken, MOST_SERVERS, Sabotage, Step};

type Outcome = Result<(), (Step, Broken)>;

impl Model<'_> {
    /// The claim of a client's attempt, from one.
    fn claim(&self, client: usize, attempt: u8) -> u8 {
        let attempt = if self.breaks(Sabotage::VotesOfEarlierAttemptsCount) { 1 } else { attempt };
        client as u8 * self.world.attempts + attempt
    }

    /// Adds everything that client `c` may do, or may happen to its requests.
    pub(super) fn client_steps(&mut self, state: &State, c: usize, found: &mut Found) -> Outcome {
        let client = state.clients[c];
        match client.phase {
            Phase::Idle => self.begin(state, c, found),
            Phase::Voting | Phase::Raising => self.acquire(state, c, found),
            Phase::Held => self.hold(state, c, found),
            Phase::Renewing => self.renewal(state, c, found),
            Phase::Releasing => self.enter(state, Step::Stop { client: c }, c, self.idle(&client), found),
        }
    }

    fn begin(&mut self, state: &State, c: usize, found: &mut Found) -> Outcome {
        let client = state.clients[c];
        // Clients are alike, so they may begin in this order.
        if client.attempt >= self.world.attempts || c > 0 && state.clients[c - 1].attempt == 0 {
            return Ok(());
        }
        let attempt = client.attempt + 1;
        let claim = self.claim(c, attempt);
        for &guess in self.world.guesses {
            let mut began = Client { phase: Phase::Voting, attempt, token: guess, ..client };
            began.validity = self.machines.full_validity;
            began.before = if self.world.clock_steps > 0 { state.told } else { 0 };
            let mut state = *state;
            if self.breaks(Sabotage::VotesOfEarlierAttemptsCount) {
                self.change_all(&mut state, |_, server| {
                    if server.votes_for(claim) {
                        server.slots[c].vote = Heard::Yes;
                    }
                });
            }
            self.enter(&state, Step::Begin { client: c, guess }, c, began, found)?;
        }
        Ok(())
    }

    /// A client acquires: its requests, the decisions of its machine, and a cancellation.
    fn acquire(&mut self, state: &State, c: usize, found: &mut Found) -> Outcome {
        let client = state.clients[c];
        let is_raising = client.phase == Phase::Raising;
        let (mut votes, mut raises) = ([Heard::Open; MOST_SERVERS], [Heard::Open; MOST_SERVERS]);
        for (index, server) in self.servers_of(state).enumerate() {
            (votes[index], raises[index]) = (server.slots[c].vote, server.slots[c].reply);
        }
        let Client { validity, token, highest, .. } = client;
        let verdict = self.machines.tally(TallyQuestion { is_raising, validity, token, highest, votes, raises });
        if is_raising {
            self.requests(state, c, Verb::Raise, verdict.to_raise, found);
        } else {
            self.requests(state, c, Verb::Vote, u8::MAX, found);
        }
        if let Some(token) = verdict.granted {
            self.tell(state, c, token, verdict.tombstones, found)?;
        }
        let raises = verdict.raise.map(|token| if self.world.low_raises { 1..=token } else { token..=token });
        for token in raises.into_iter().flatten() {
            let raising = Client { phase: Phase::Raising, token, highest: 0, ..client };
            let mut state = *state;
            self.change_all(&mut state, |_, server| {
                let vote = &mut server.slots[c].vote;
                *vote = match *vote {
                    Heard::Open => Heard::NoReply,
                    Heard::Yes => Heard::Voted,
                    other => other,
                };
            });
            self.enter(&state, Step::Raise { client: c, token }, c, raising, found)?;
        }
        let mut withdrawals = (verdict.to_withdraw, verdict.tombstones);
        if self.breaks(Sabotage::OnlyAnsweredVotesAreWithdrawn) {
            withdrawals.0 &= !verdict.tombstones;
        }
        self.withdraw(state, Step::GiveUp { client: c }, c, self.idle(&client), withdrawals, found)
    }

    /// Each of these servers may get a request: answer it, lose the reply, or get it later.
    fn requests(&mut self, state: &State, c: usize, verb: Verb, to: u8, found: &mut Found) {
        let client = state.clients[c];
        let claim = self.claim(c, client.attempt);
        let has_room = self.has_room(state);
        for index in self.distinct(state).filter(|index| to >> index & 1 > 0) {
            let server = *self.server(state, index);
            let heard = |server: &mut Server, heard| {
                let slot = &mut server.slots[c];
                if verb == Verb::Vote { slot.vote = heard } else { slot.reply = heard }
            };
            let slot = &server.slots[c];
            if (if verb == Verb::Vote { slot.vote } else { slot.reply }) != Heard::Open {
                continue;
            }
            let request = Message { claim, verb, token: client.token, run: server.run };
            let put_back = verb == Verb::Renew && self.machines.puts_back(slot, server.run);
            let mut done = server;
            let reply = done.execute(self.world, request, put_back);

            let (mut answered, mut heard_by) = (done, client);
            match reply {
                Reply::No => heard(&mut answered, Heard::No),
                Reply::Yes => heard(&mut answered, Heard::Yes),
                Reply::Fence(fence) => {
                    heard(&mut answered, Heard::Voted);
                    heard_by.highest = heard_by.highest.max(fence);
                }
            }
            if verb != Verb::Raise {
                let lasts = if verb == Verb::Vote { client.validity } else { client.pending };
                let confirmed = (reply != Reply::No).then_some(lasts);
                self.confirm(&mut answered.slots[c], server.run, confirmed);
            }
            self.one(state, Step::Answer { client: c, server: index }, index, answered, Some((c, heard_by)), found);
            if done != server {
                heard(&mut done, Heard::NoReply);
                self.one(state, Step::LoseReply { client: c, server: index }, index, done, None, found);
            }
            if has_room {
                let mut later = server;
                heard(&mut later, Heard::NoReply);
                later.delay(request);
                // While the client acquires, its tally knows.
                later.slots[c].is_in_doubt |= verb == Verb::Renew && self.machines.doubts();
                self.one(state, Step::Delay { client: c, server: index }, index, later, None, found);
            }
        }
    }

    /// Notes what the holder may need for a put back.
    fn confirm(&self, slot: &mut Slot, run: u8, lasts: Option<u8>) {
        if self.world.restarts > 0 && self.world.renewals > 0 {
            (slot.in_run, slot.confirmed) = (lasts.map(|_| run), lasts.unwrap_or(0));
        }
    }

    fn tell(&mut self, state: &State, c: usize, token: u8, in_doubt: u8, found: &mut Found) -> Outcome {
        let (client, step) = (state.clients[c], Step::Tell { client: c, token });
        let has_steps = self.world.clock_steps > 0;
        let is_new =
            if has_steps { token > client.before && state.tokens >> token & 1 == 0 } else { token > state.told };
        if !is_new {
            return Err((step, Broken::Token));
        }
        let knows_token = self.world.renewals > 0 || self.world.joins;
        let is_fresh = self.breaks(Sabotage::ValidityFromTheReply);
        let held = Client {
            phase: Phase::Held,
            attempt: client.attempt,
            validity: if is_fresh { self.machines.full_validity } else { client.validity },
            token: if knows_token { token } else { 0 },
            renewals_left: client.renewals_left,
            ..Client::default()
        };
        let mut state = *state;
        state.told = state.told.max(token);
        state.tokens |= u64::from(has_steps) << token;
        self.change_all(&mut state, |index, server| server.slots[c].is_in_doubt = in_doubt >> index & 1 > 0);
        self.enter(&state, step, c, held, found)
    }

    fn hold(&mut self, state: &State, c: usize, found: &mut Found) -> Outcome {
        let client = state.clients[c];
        let full_validity = self.machines.full_validity;
        self.break_lease(state, c, found);
        if client.validity > 0 && client.renewals_left > 0 {
            let renewals_left = client.renewals_left - 1;
            let was_broken = self.servers_of(state).filter(|server| server.slots[c].is_broken).count();
            let was_broken = was_broken > self.world.servers / 2;
            let renewing =
                Client { phase: Phase::Renewing, renewals_left, pending: full_validity, was_broken, ..client };
            self.enter(state, Step::Renew { client: c }, c, renewing, found)?;
        }
        if client.validity > 0 && self.world.joins {
            let claim = self.claim(c, client.attempt);
            for index in self.distinct(state) {
                let server = *self.server(state, index);
                let request = Message { claim, verb: Verb::Join, token: client.token, run: server.run };
                let mut joined = server;
                if joined.execute(self.world, request, false) == Reply::No {
                    continue;
                }
                self.confirm(&mut joined.slots[c], server.run, Some(full_validity));
                self.one(state, Step::Join { client: c, server: index }, index, joined, None, found);
                if self.has_room(state) {
                    let mut later = server;
                    later.delay(request);
                    later.slots[c].is_in_doubt = self.machines.doubts();
                    self.one(state, Step::JoinLate { client: c, server: index }, index, later, None, found);
                }
            }
        }
        self.release(state, Step::Release { client: c }, c, found)
    }

    /// Each server may hear of a break.
    fn break_lease(&mut self, state: &State, c: usize, found: &mut Found) {
        if !self.world.breaks {
            return;
        }
        let claim = self.claim(c, state.clients[c].attempt);
        for index in self.distinct(state) {
            let mut server = *self.server(state, index);
            if !server.slots[c].is_broken {
                server.break_lease(c, claim);
                self.one(state, Step::Break { client: c, server: index }, index, server, None, found);
            }
        }
    }

    /// Whether a server was asked to break the lease of this client.
    fn may_be_broken(&self, state: &State, c: usize) -> bool {
        self.servers_of(state).any(|server| server.slots[c].is_broken)
    }

    fn renewal(&mut self, state: &State, c: usize, found: &mut Found) -> Outcome {
        let client = state.clients[c];
        self.break_lease(state, c, found);
        self.requests(state, c, Verb::Renew, u8::MAX, found);
        let held = Client { phase: Phase::Held, pending: 0, was_broken: false, ..client };
        let mut replies = [Heard::Open; MOST_SERVERS];
        for (index, server) in self.servers_of(state).enumerate() {
            replies[index] = server.slots[c].reply;
        }
        // lock-core does not revive a lease that has ended.
        let revives = self.breaks(Sabotage::RenewTakesAnExpiredLease)
            || self.breaks(Sabotage::RenewTakesAnExpiredLeaseBelowItsToken);
        let is_valid = client.pending > 0 && (client.validity > 0 || revives);
        match self.machines.renewal(replies) {
            Some(RenewOutcome::Renewed) if is_valid => {
                let step = Step::Renewed { client: c };
                if client.was_broken {
                    return Err((step, Broken::Revived));
                }
                if client.token < state.told && self.world.clock_steps == 0 && !self.may_be_broken(state, c) {
                    return Err((step, Broken::Token));
                }
                self.enter(state, step, c, Client { validity: client.pending, ..held }, found)?;
            }
            Some(RenewOutcome::Lost) => {
                let (step, claim) = (Step::Lose { client: c }, self.claim(c, client.attempt));
                let votes = self.servers_of(state).filter(|server| server.votes_for(claim)).count();
                // A request that arrives late may give it a vote after the server has replied that it has none.
                if votes > self.world.servers / 2 && self.world.late == 0 {
                    return Err((step, Broken::Loss));
                }
                self.release(state, step, c, found)?;
            }
            _ => {}
        }
        self.enter(state, Step::GiveRenewalUp { client: c }, c, held, found)
    }

    fn release(&mut self, state: &State, step: Step, c: usize, found: &mut Found) -> Outcome {
        let client = state.clients[c];
        let believes = self.breaks(Sabotage::HolderBelievesUntilItsReleaseIsExecuted) && client.validity > 0;
        let then = if believes { Client { phase: Phase::Releasing, ..client } } else { self.idle(&client) };
        let in_doubt = self.servers_of(state).enumerate();
        let in_doubt = in_doubt.fold(0, |all, (index, server)| all | u8::from(server.slots[c].is_in_doubt) << index);
        self.withdraw(state, step, c, then, (u8::MAX, in_doubt), found)
    }

    /// Each server to which a withdrawal is sent may receive it, with or without a tombstone.
    fn withdraw(
        &mut self,
        state: &State,
        step: Step,
        c: usize,
        then: Client,
        (to, tombstones): (u8, u8),
        found: &mut Found,
    ) -> Outcome {
        let claim = self.claim(c, state.clients[c].attempt);
        let mut states = vec![State { clients: state.clients, ..*state }];
        for index in 0..self.world.servers {
            let mut unheard = *self.server(state, index);
            unheard.slots[c] = Slot::default();
            let mut heard = unheard;
            if to >> index & 1 > 0 {
                heard.withdraw(self.world, claim, tombstones >> index & 1 > 0);
            } else if unheard.votes_for(claim) {
                return Err((step, Broken::Orphan));
            } else {
                unheard.note_withdrawn(claim);
                heard = unheard;
            }
            if !self.breaks(Sabotage::VotesOfEarlierAttemptsCount) {
                unheard.forget(claim);
                heard.forget(claim);
            }
            let [unheard, heard] = [unheard, heard].map(|server| self.number(server));
            for number in 0..states.len() {
                states[number].servers[index] = heard;
                if unheard != heard {
                    let mut other = states[number];
                    other.servers[index] = unheard;
                    states.push(other);
                }
            }
        }
        states.iter_mut().for_each(|state| self.sort(state));
        states.iter().try_for_each(|state| self.enter(state, step, c, then, found))
    }

    /// Adds a step of a client into another phase.
    fn enter(&mut self, state: &State, step: Step, c: usize, client: Client, found: &mut Found) -> Outcome {
        let mut next = *state;
        next.clients[c] = client;
        let believes = |c: &usize| next.clients[*c].believes() && !self.may_be_broken(&next, *c);
        let believers = (0..self.world.clients).filter(believes).count();
        if believers > 1 && self.world.clock_steps == 0 {
            return Err((step, Broken::Exclusion));
        }
        let acquires = matches!(client.phase, Phase::Voting | Phase::Raising);
        self.change_all(&mut next, |_, server| {
            let slot = &mut server.slots[c];
            slot.reply = Heard::Open;
            if !acquires {
                slot.vote = Heard::Open;
            }
        });
        found.add(step, next);
        Ok(())
    }

    /// The client without the attempt or the lease that it had.
    fn idle(&self, client: &Client) -> Client {
        let is_done = client.attempt == self.world.attempts;
        let renewals_left = if is_done { 0 } else { client.renewals_left };
        Client { attempt: client.attempt, renewals_left, ..Client::default() }
    }

    fn has_room(&self, state: &State) -> bool {
        self.world.late > 0 && self.servers_of(state).map(Server::late_count).sum::<usize>() < self.world.late
    }
}
