//! What may happen to the servers: late requests arrive, processes start again without their data and are settled, and
//! clocks are fast or stepped.

use super::machines::SettlingQuestion;
use super::server::Settling;
use super::state::State;
use super::steps::{Found, Model};
use super::{Broken, Sabotage, Step};

impl Model<'_> {
    /// Adds everything that may happen to a server.
    pub(super) fn server_steps(&mut self, state: &State, found: &mut Found) -> Result<(), (Step, Broken)> {
        let unsettled = self.servers_of(state).filter(|server| !server.is_settled()).count();
        for index in self.distinct(state) {
            let server = *self.server(state, index);
            for (next, is_revived) in server.arrivals(self.world) {
                let step = Step::Arrive { server: index };
                if is_revived {
                    return Err((step, Broken::Orphan));
                }
                self.one(state, step, index, next, None, found);
            }
            if state.restarts_left > 0 && unsettled == usize::from(!server.is_settled()) {
                let mut next = State { restarts_left: state.restarts_left - 1, ..*state };
                let world = self.world;
                self.change_all(&mut next, |changed, server| {
                    // What was read for an earlier run does not count.
                    server.was_read = false;
                    if changed == index {
                        *server = server.restarted(world);
                    }
                });
                found.add(Step::Restart { server: index }, next);
            }
            self.settle(state, index, found);
            if self.world.fast_clocks {
                let step = Step::EndEarly { server: index };
                if server.left == 1 {
                    let mut early = server;
                    early.end_vote();
                    self.one(state, step, index, early, None, found);
                }
                if let Settling::Unsettled { wait: 1, floor } = server.settling {
                    let mut early = server;
                    early.settling = Settling::Unsettled { wait: 0, floor };
                    self.one(state, step, index, early, None, found);
                }
            }
            if state.clock_steps_left > 0 && server.left > 0 {
                let mut stepped = server;
                stepped.end_vote();
                let state = State { clock_steps_left: state.clock_steps_left - 1, ..*state };
                self.one(&state, Step::SetClock { server: index }, index, stepped, None, found);
            }
        }
        Ok(())
    }

    /// Reads another server for the floor of this one, or settles it, as the machine decides.
    fn settle(&mut self, state: &State, index: usize, found: &mut Found) {
        let mut server = *self.server(state, index);
        let Settling::Unsettled { wait, floor } = server.settling else { return };
        let step = Step::Settle { server: index };
        if self.breaks(Sabotage::RestartedServerHasNoFloor) {
            if wait == 0 {
                server.settling = Settling::Settled;
                self.one(state, step, index, server, None, found);
            }
            return;
        }
        let was_read = self.servers_of(state).enumerate();
        let read = was_read.fold(0, |all, (index, server)| all | u8::from(server.was_read) << index);
        if let Some(floor) = self.machines.floor(SettlingQuestion { server: index, wait, read, floor }) {
            let mut next = *state;
            self.change_all(&mut next, |changed, server| {
                server.was_read = false;
                if changed == index {
                    server.settling = Settling::Settled;
                    server.fence = server.fence.max(floor);
                }
            });
            found.add(step, next);
        } else if wait == 0 || self.breaks(Sabotage::FloorReadBeforeTheEndOfTheWait) {
            // Any client reads the others, one after another. The machine does not use what was read before.
            for other in self.distinct(state) {
                let fence = self.server(state, other).fence;
                if !self.server(state, other).is_settled() || self.server(state, other).was_read {
                    continue;
                }
                let mut next = *state;
                self.change_all(&mut next, |changed, server| {
                    server.was_read |= changed == other;
                    if changed == index {
                        server.settling = Settling::Unsettled { wait, floor: floor.max(fence) };
                    }
                });
                found.add(Step::ReadFence { server: other }, next);
            }
        }
    }
}
