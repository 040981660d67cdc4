//! Everything that can happen next in a state.

use super::machines::Machines;
use super::server::{Numbers, Server};
use super::state::{Client, State};
use super::{Broken, MOST_CLIENTS, MOST_SERVERS, Sabotage, Step, World};

/// What may happen next.
#[derive(Debug, Default)]
pub(super) struct Found(pub(super) Vec<(Step, State)>);

impl Found {
    pub(super) fn add(&mut self, step: Step, state: State) {
        self.0.push((step, state));
    }
}

/// A world, its machines, and the states of servers that were met. Each has a number, so that a state of the world is
/// small.
pub(super) struct Model<'a> {
    pub(super) world: &'a World,
    pub(super) machines: Machines,
    pub(super) servers: Vec<Server>,
    pub(super) numbers: Numbers,
}

impl<'a> Model<'a> {
    pub(super) fn new(world: &'a World) -> Self {
        Self { world, machines: Machines::new(world), servers: Vec::new(), numbers: Numbers::default() }
    }

    pub(super) fn first(&mut self) -> State {
        let mut clients = [Client::default(); MOST_CLIENTS];
        clients[..self.world.clients].iter_mut().for_each(|client| client.renewals_left = self.world.renewals);
        let mut servers = [0; MOST_SERVERS];
        servers[..self.world.servers].fill(self.number(Server::new()));
        let (restarts_left, clock_steps_left) = (self.world.restarts, self.world.clock_steps);
        State { servers, clients, told: 0, tokens: 0, restarts_left, clock_steps_left }
    }

    pub(super) fn breaks(&self, rule: Sabotage) -> bool {
        self.world.sabotage == Some(rule)
    }

    /// Finds everything that can happen next, or a step that breaks a promise.
    pub(super) fn steps(&mut self, state: &State, found: &mut Found) -> Result<(), (Step, Broken)> {
        found.0.clear();
        for client in 0..self.world.clients {
            self.client_steps(state, client, found)?;
        }
        self.server_steps(state, found)?;
        let (mut ticked, world) = (*state, self.world);
        self.change_all(&mut ticked, |_, server| server.tick(world));
        for client in &mut ticked.clients {
            client.validity = client.validity.saturating_sub(1);
            client.pending = client.pending.saturating_sub(1);
        }
        if ticked != *state {
            found.add(Step::Tick, ticked);
        }
        Ok(())
    }

    pub(super) fn server(&self, state: &State, index: usize) -> &Server {
        &self.servers[state.servers[index] as usize]
    }

    pub(super) fn servers_of(&self, state: &State) -> impl Iterator<Item = &Server> {
        (0..self.world.servers).map(|index| self.server(state, index))
    }

    /// The servers, without those that are like another one.
    pub(super) fn distinct(&self, state: &State) -> impl Iterator<Item = usize> + use<> {
        let servers = state.servers;
        (0..self.world.servers).filter(move |&index| index == 0 || servers[index] != servers[index - 1])
    }

    pub(super) fn number(&mut self, mut server: Server) -> u32 {
        server.leave_out_what_changes_nothing(self.world);
        *self.numbers.entry(server).or_insert_with(|| {
            self.servers.push(server);
            self.servers.len() as u32 - 1
        })
    }

    /// Changes each server. It has the index that it had before.
    pub(super) fn change_all(&mut self, state: &mut State, change: impl Fn(usize, &mut Server)) {
        for index in 0..self.world.servers {
            let before = *self.server(state, index);
            let mut server = before;
            change(index, &mut server);
            if server != before {
                state.servers[index] = self.number(server);
            }
        }
        self.sort(state);
    }

    pub(super) fn sort(&self, state: &mut State) {
        state.servers[..self.world.servers].sort_unstable();
    }

    /// Adds a step that changes one server, and perhaps a client.
    pub(super) fn one(
        &mut self,
        state: &State,
        step: Step,
        index: usize,
        server: Server,
        client: Option<(usize, Client)>,
        found: &mut Found,
    ) {
        let mut next = *state;
        next.servers[index] = self.number(server);
        self.sort(&mut next);
        if let Some((index, client)) = client {
            next.clients[index] = client;
        }
        found.add(step, next);
    }
}
