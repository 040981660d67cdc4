//! What a backend promises, as data. The documentation is generated from it, and the suite verifies it.

use std::time::Duration;

use crate::backend::{LONGEST_PLACE_TTL, Mode};
use crate::terms::{period, round_up};

/// The clock by which the store ends leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreClock {
    /// The clock of the client, injected.
    Client,
    /// The server's wall clock: a step of it moves every deadline.
    ServerWall,
    /// A clock of the server that is never stepped.
    ServerMonotonic,
    /// The machine's clock since boot, never stepped.
    MachineBoot,
}

/// How far a lock reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scope {
    /// Tasks and threads of one process.
    Process,
    /// Processes of one machine.
    Machine,
    /// Every machine that reaches the server.
    Network,
}

/// What a ttl belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TtlScope {
    /// Every lease has its own ttl.
    Lease,
    /// The leases of one client with the same ttl and [kind](crate::backend::LeaseKind) share a session, and end with
    /// it. A single lease cannot be made to end sooner, nor be left to expire while others keep the session alive. So
    /// lock-core sends no [`RenewPolicy::Exactly`] (a lease that is released within its `min_hold` stays held by this
    /// process until then), releases a lease that has reached its `max_hold` or was lost by the clock, and never uses a
    /// claim for an acquire of another ttl or kind.
    ///
    /// The backend may reply to several renewals with one confirmation of the session, if it is no older than a third
    /// of the ttl.
    ///
    /// [`RenewPolicy::Exactly`]: crate::backend::RenewPolicy::Exactly
    Session,
    /// Every lease has its own ttl, and a connection of its own that keeps it: it also ends when that connection breaks
    /// or its client ends. So lock-core sends no `RenewPolicy::Exactly`: a lease that is released within its `min_hold`
    /// stays held by this process until then. It releases a lease that has reached its `max_hold` or was lost by the
    /// clock.
    Connection,
}

/// How a waiter learns that its turn has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Waiting {
    /// The server keeps a queue and hands the lock to its head.
    ServerQueue,
    /// The server notifies the client when the lock may be free.
    Notification,
    /// The client polls.
    Poll,
}

/// How a holder learns that its lease was ended before its deadline, by an operator for example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossNotice {
    /// The store pushes it.
    Pushed,
    /// By the next renewal, ttl / 3 later at most.
    NextRenewal,
}

/// Which part of the store's state remains after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Restart {
    /// Everything that was acknowledged.
    KeepsAll,
    /// What its persistence kept. If that may not be all, the backend delays new grants.
    KeepsPersisted,
    /// Nothing: leases, queue and fencing counter start again.
    KeepsNothing,
}

/// What a backend promises. The table in the documentation is generated from it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The backend's name, as in its feature and its URL: `redis`.
    pub backend: &'static str,
    /// The ways to hold a lock. lock-core refuses others before it sends anything.
    pub modes: &'static [Mode],
    /// How far a lock reaches.
    pub scope: Scope,
    /// The clock by which leases end.
    pub clock: StoreClock,
    /// Leases last a multiple of this, and so do `min_ttl` and `max_ttl`. lock-core rounds a ttl up before it sends it.
    pub ttl_granularity: Duration,
    /// The shortest ttl.
    pub min_ttl: Duration,
    /// The longest ttl.
    pub max_ttl: Duration,
    /// Whether each lease has its own ttl.
    pub ttl_scope: TtlScope,
    /// How waiting works.
    pub waiting: Waiting,
    /// Whether clients get the lock in the order in which they came. The waiters of one client always do.
    pub fifo: bool,
    /// The longest ttl of a place in the server's queue.
    pub max_place_ttl: Duration,
    /// How a holder learns that its lease was ended.
    pub loss_notice: LossNotice,
    /// If the holder dies, a waiter that knows of its lease acquires the lock within the ttl of the holder plus this.
    /// See [`takeover_at_worst`](Self::takeover_at_worst) for one that does not.
    pub takeover_slack: Duration,
    /// Where the fencing token comes from. Text for people.
    pub fencing: &'static str,
    /// Which part of the state remains after a restart.
    pub restart: Restart,
    /// The longest time that one call takes, connecting included.
    pub call_bound: Duration,
    /// The greatest number of leases and places that one renew call takes.
    pub renew_batch: usize,
    /// Every way in which exclusion can end although the holder's lease is valid by its clock, so that only the fencing
    /// token decides. Text for people.
    pub limits_of_exclusion: &'static [&'static str],
}

impl Capabilities {
    /// The weakest promises, which a backend improves: exclusive locks, reached over the network, with ttls of 100 ms
    /// to 24 hours in steps of 1 ms that end by the server's wall clock; waiters poll in no order, with places of
    /// [`LONGEST_PLACE_TTL`] at most; a loss shows at the next renewal; a takeover within one second after the ttl;
    /// nothing is left after a restart; a call takes one second at most, and renews 100 leases at most.
    pub const fn new(backend: &'static str) -> Self {
        Self {
            backend,
            modes: &[Mode::Exclusive],
            scope: Scope::Network,
            clock: StoreClock::ServerWall,
            ttl_granularity: Duration::from_millis(1),
            min_ttl: Duration::from_millis(100),
            max_ttl: Duration::from_secs(24 * 3600),
            ttl_scope: TtlScope::Lease,
            waiting: Waiting::Poll,
            fifo: false,
            max_place_ttl: LONGEST_PLACE_TTL,
            loss_notice: LossNotice::NextRenewal,
            takeover_slack: Duration::from_secs(1),
            fencing: "a counter",
            restart: Restart::KeepsNothing,
            call_bound: Duration::from_secs(1),
            renew_batch: 100,
            limits_of_exclusion: &[],
        }
    }

    /// The ttl that lock-core requests for a lease that is to last this long: rounded up to a multiple of
    /// [`ttl_granularity`](Self::ttl_granularity).
    pub fn round_up(&self, ttl: Duration) -> Duration {
        round_up(ttl, self.ttl_granularity)
    }

    /// Whether a lease ends with something that its client keeps alive, so that it cannot be left to expire.
    pub(crate) fn has_sessions(&self) -> bool {
        self.ttl_scope != TtlScope::Lease
    }

    /// How long after the ttl of a dead holder a waiter with this `ttl` holds, at the latest.
    ///
    /// A server with a queue may have handed the lock to a claim of a client that had died. That claim holds for the
    /// ttl of its place. The waiter learns of it when it renews its own place: up to a third of that place's ttl later
    /// than the [`takeover_slack`](Self::takeover_slack).
    pub fn takeover_at_worst(&self, ttl: Duration) -> Duration {
        match self.waiting {
            Waiting::ServerQueue => self.takeover_slack + period(ttl.min(self.max_place_ttl)),
            Waiting::Notification | Waiting::Poll => self.takeover_slack,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_is_rounded_up_to_the_granularity() {
        let ms = Duration::from_millis;
        let capabilities = Capabilities { ttl_granularity: ms(10), ..Capabilities::new("test") };
        for (ttl, rounded) in [(ms(0), ms(0)), (ms(1), ms(10)), (ms(10), ms(10)), (ms(11), ms(20)), (ms(995), ms(1000))]
        {
            assert_eq!(capabilities.round_up(ttl), rounded, "{ttl:?}");
        }
        assert_eq!(capabilities.round_up(Duration::MAX), Duration::MAX);
        let continuous = Capabilities { ttl_granularity: Duration::ZERO, ..capabilities };
        assert_eq!(continuous.round_up(Duration::from_nanos(7)), Duration::from_nanos(7));
    }
}
