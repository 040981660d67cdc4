//! Withholds new grants after a failover or a restart that may have lost leases.
//!
//! Each connection reads the run of the server before its first acquire. `leasehold_core::backend::kit::restart` decides
//! what follows, and `run` says what a run is.

use std::sync::Mutex;
use std::time::Duration;

use leasehold_core::backend::kit::lock;
use leasehold_core::backend::kit::restart::{
    CheckContext, Decision, Epoch, Grants, OnRestart, Quarantine, quarantined,
};
use tokio::time::Instant;

use crate::errors::{BACKEND, Failure, read_only};
use crate::pool::Checkout;
use crate::row::run::{State, read_after};

/// Prepares the acquire of a lease with this ttl on a connection.
///
/// # Errors
/// `NotSent`: no new grants for the time that the error states. Otherwise the run of the server cannot be read, or
/// other clients cannot be told that the ttl is in use, and the acquire must not be sent.
pub(crate) async fn before_acquire(
    connection: &mut Checkout<'_>,
    epoch: &Mutex<Epoch>,
    ttl: Duration,
    until: Instant,
) -> Result<(), Failure> {
    before_renewal(connection, epoch, ttl, until).await?;
    let left = connection.quarantine().and_then(|quarantine| quarantine.left(Instant::now()));
    match left {
        Some(left) => Err(Failure::NotSent(quarantined(&connection.shared().address, left))),
        None => Ok(()),
    }
}

/// Prepares the renewal of leases to this ttl: it tells other clients that the ttl is in use. A quarantine ends no
/// lease.
///
/// # Errors
/// The run of the server cannot be read, or other clients cannot be told.
pub(crate) async fn before_renewal(
    connection: &mut Checkout<'_>,
    epoch: &Mutex<Epoch>,
    ttl: Duration,
    until: Instant,
) -> Result<(), Failure> {
    let now = Instant::now();
    let is_current = connection.quarantine().is_some_and(|quarantine| !quarantine.needs_reading(ttl, now));
    if is_current && !lock(epoch).needs_reading(ttl, now) {
        return Ok(());
    }
    let quarantine = read(connection, epoch, ttl, until).await?;
    connection.set_quarantine(quarantine);
    Ok(())
}

async fn read(
    connection: &mut Checkout<'_>,
    epoch: &Mutex<Epoch>,
    ttl: Duration,
    until: Instant,
) -> Result<Quarantine, Failure> {
    let mut change = None;
    // Terminates: a client whose change had no effect reads what another one wrote, and every write has what all must
    // know.
    loop {
        let requested = Instant::now();
        let state = State::decode(&connection.fetch_text(read_after(change), until).await?)?;
        if state.is_read_only {
            connection.leave_server();
            return Err(Failure::ReadOnly(read_only()));
        }
        let shared = connection.shared();
        let on_restart = shared.settings.on_restart;
        if let Some(left) = state.starts_for().filter(|_| on_restart != OnRestart::Trust) {
            return Ok(Quarantine::new(Grants::After(left), Instant::now(), BACKEND, &shared.address));
        }
        // The row has to name this server first, because the wait counts from when a client first saw it.
        change = state.note();
        if change.is_some() {
            continue;
        }
        let mut epoch = lock(epoch);
        let reading = state.reading(epoch.run());
        let check = CheckContext { on_restart, ttl, requested, now: Instant::now() };
        match epoch.evaluate(&reading, check) {
            Ok(Decision::Write(key)) => change = Some(state.write(&key)),
            Ok(Decision::Grants(grants)) => {
                return Ok(Quarantine::new(grants, Instant::now(), BACKEND, &shared.address));
            }
            Err(_) => return Err(Failure::other_format()),
        }
    }
}
