//! Settles the servers: reads them, and lets those vote that may. What to do is decided by
//! [`Settling`](leasehold_core::backend::kit::quorum::Settling).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::Result;
use leasehold_core::backend::kit::lock;
use leasehold_core::backend::kit::quorum::{Refused, RunId, SettlingStep};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::backend::Connections;
use super::member::Member;
use super::shared::Shared;
use super::{replies, residues};
use crate::connection::script_call;
use crate::errors::Failure;

/// How often servers are read while one of them is unsettled: another client may settle it, and others may connect.
const PAUSE: Duration = Duration::from_millis(250);

/// The settler of one client, a task on the runtime of its keeper. It also withdraws what failed attempts have left.
/// Dropping it ends the task.
#[derive(Default)]
pub(super) struct Settler(Mutex<Option<AbortHandle>>);

impl Settler {
    pub(super) fn start(&self, runtime: &Handle, shared: Arc<Shared>, connections: Connections) {
        let tasks = async move { tokio::join!(run(&shared, &connections), residues::withdraw(&shared, &connections)) };
        let task = runtime.spawn(tasks);
        *lock(&self.0) = Some(task.abort_handle());
    }

    /// Has the servers read, and waits until that is done or until `until`.
    pub(super) async fn read_servers(&self, shared: &Shared, until: Instant) {
        let mut settled = shared.settled.subscribe();
        let before = *settled.borrow_and_update();
        shared.unsettled.notify_one();
        let _ = timeout_at(until, settled.wait_for(|now| *now > before)).await;
    }
}

impl Drop for Settler {
    fn drop(&mut self) {
        if let Some(task) = lock(&self.0).take() {
            task.abort();
        }
    }
}

async fn run(shared: &Shared, connections: &Connections) {
    loop {
        shared.unsettled.notified().await;
        while !settle(shared, connections).await {
            // A caller that waits must not wait for the pause.
            let _ = timeout(PAUSE, shared.unsettled.notified()).await;
        }
    }
}

/// Reads all servers, and settles those that may vote. Returns whether all of them do.
async fn settle(shared: &Shared, connections: &Connections) -> bool {
    let mut to_read: Vec<(usize, bool)> = (0..shared.quorum.servers()).map(|server| (server, false)).collect();
    let until = Instant::now() + shared.timeout();
    // Each round writes or settles a server, so there are few. The bound is for other clients that do the same.
    while !to_read.is_empty() && Instant::now() < until {
        for (server, since) in std::mem::take(&mut to_read) {
            read(shared, connections, server, since).await;
        }
        // All at once: a server that is settled meanwhile would make the others of a first start look restarted.
        for (server, step, run) in steps(shared) {
            match step {
                Ok(SettlingStep::WriteSince) => to_read.push((server, true)),
                Ok(SettlingStep::ReadAll) => to_read.extend((0..shared.quorum.servers()).map(|server| (server, false))),
                Ok(SettlingStep::Settle { floor }) => {
                    if write(shared, connections, server, run, floor).await.is_ok() {
                        to_read.push((server, false));
                    }
                }
                Ok(_) => {}
                Err(Refused { .. }) => break,
            }
        }
    }
    shared.settled.send_modify(|count| *count += 1);
    // A server that connects again notifies the settler if it does not vote.
    steps(shared).iter().all(|(_, step, _)| matches!(step, Ok(SettlingStep::Settled | SettlingStep::Unreachable)))
}

/// What to do with each server, and the run of the reading that says so.
fn steps(shared: &Shared) -> Vec<(usize, Result<SettlingStep, Refused>, Option<RunId>)> {
    let settling = lock(&shared.settling);
    let step = |server| (server, settling.step(server), settling.run(server).cloned());
    (0..shared.quorum.servers()).map(step).collect()
}

/// The bound of one request: a silent server must not use the time of the others.
fn bound(shared: &Shared) -> Instant {
    Instant::now() + shared.timeout() / 4
}

async fn read(shared: &Shared, connections: &Connections, server: usize, since: bool) {
    match try_read(connections, server, since, bound(shared)).await {
        Ok(read) => lock(&shared.settling).read(server, read.reading),
        Err(_) => lock(&shared.settling).unreachable(server),
    }
}

async fn try_read(connections: &Connections, server: usize, since: bool, until: Instant) -> Result<replies::Server> {
    let manager = &connections[server];
    if !manager.is_connected() {
        return Err(Failure::aborted().into());
    }
    let connection = manager.connection(until).await?;
    Member::read(&connection, since, until).await?
}

/// Writes the state of a server for the run of the reading. The script refuses it in another run, which has a wait of its
/// own: the server may have been restarted since it was read, and the connection be a new one.
async fn write(
    shared: &Shared,
    connections: &Connections,
    server: usize,
    run: Option<RunId>,
    floor: u64,
) -> Result<()> {
    let until = bound(shared);
    let connection = connections[server].connection(until).await?;
    let run = run.ok_or_else(Failure::aborted)?;
    let script = &shared.scripts.settle;
    let mut call = script_call(script, 1);
    call.arg(shared.keys.quorum()).arg(run.as_str()).arg(shared.quorum.servers()).arg(server);
    call.arg(crate::shared::millis(shared.settings.longest_ttl)).arg(floor);
    connection.run(script, &call, until).await?;
    Ok(())
}
