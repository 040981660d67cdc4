//! Withdrawals that a server did not confirm. A vote that nobody withdraws lasts until its ttl is over, and until then
//! its lock has one server less.

use std::sync::Mutex;
use std::time::Duration;

use leasehold_core::LockName;
use leasehold_core::backend::WITHDRAWN_TTL;
use leasehold_core::backend::kit::lock;
use tokio::time::{Instant, sleep};

use super::backend::Connections;
use super::pending::Pending;
use super::request::{Operation, Request, Subject};
use super::shared::Shared;
use super::slot::Vote;

/// Beyond this many at a server, the oldest is dropped.
const MOST: usize = 1000;

/// How many a server is asked for at a time.
const AT_A_TIME: usize = 64;

/// The pause before the next try. A server that was silent answers its other requests first.
const PAUSE: Duration = Duration::from_millis(100);

/// Those of one server.
#[derive(Default)]
pub(super) struct Residues(Mutex<Vec<Residue>>);

/// A vote that the server may have given.
#[derive(Clone, PartialEq, Eq)]
struct Residue {
    name: LockName,
    vote: Vote,
    /// Its end at the latest.
    until: Instant,
}

impl Residue {
    fn request(&self) -> Request {
        // The request for the vote may still be on its way.
        let tombstone = Some(self.until.saturating_duration_since(Instant::now()));
        Request { subject: Subject::Vote(self.name.clone(), self.vote), operation: Operation::Withdraw { tombstone } }
    }
}

impl Residues {
    /// Notes that a vote may have been left, for this long at most.
    pub(super) fn add(&self, name: &LockName, vote: &Vote, ttl: Duration) {
        // A request that waits for a silent server may take effect later than a ttl from now.
        let until = Instant::now() + ttl.max(WITHDRAWN_TTL);
        let mut residues = lock(&self.0);
        if residues.len() >= MOST {
            residues.remove(0);
        }
        residues.push(Residue { name: name.clone(), vote: *vote, until });
    }

    fn live(&self) -> Vec<Residue> {
        let (mut residues, now) = (lock(&self.0), Instant::now());
        residues.retain(|residue| residue.until > now);
        residues.iter().take(AT_A_TIME).cloned().collect()
    }

    fn remove(&self, done: &Residue) {
        lock(&self.0).retain(|residue| residue != done);
    }
}

/// Withdraws what was left, as soon as its server replies. Never returns.
pub(super) async fn withdraw(shared: &Shared, connections: &Connections) {
    loop {
        shared.left.notified().await;
        while try_withdraw(shared, connections).await {
            sleep(PAUSE).await;
        }
    }
}

/// Asks each server that is connected. Returns whether there is anything left.
async fn try_withdraw(shared: &Shared, connections: &Connections) -> bool {
    let until = Instant::now() + shared.timeout();
    let (mut pending, mut asked, mut is_any_left) = (Pending::new(), Vec::new(), false);
    for (server, manager) in connections.iter().enumerate() {
        for residue in manager.protocol.residues.live() {
            is_any_left = true;
            if let Some(reply) = manager.queue(residue.request(), until) {
                pending.push(asked.len(), reply);
                asked.push((server, residue));
            }
        }
    }
    while let Some((number, reply)) = pending.next(until).await {
        // Only now: a reply may be an error, or not arrive.
        if let (Some(Ok(_)), (server, residue)) = (reply, &asked[number]) {
            connections[*server].protocol.residues.remove(residue);
        }
    }
    is_any_left
}
