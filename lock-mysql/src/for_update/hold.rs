//! A lease by `SELECT … FOR UPDATE`, from its grant to its end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::FencingToken;
use leasehold_core::backend::{Confirmation, Event, Grant, RenewReply, Stamp};
use tokio::time::{Instant, sleep_until};

use super::connection::Connection;
use super::fences;
use super::slot::{Command, Phase};
use super::statements::Statements;
use super::task::Task;
use crate::errors::Failure;

/// A lease.
pub(super) struct Lease {
    token: FencingToken,
    /// The ttl of the newest confirmation.
    ttl: Duration,
    /// The longest ttl that `leasehold_fences` has for this lease. After a restart of the server, the next grant waits
    /// for it.
    recorded: Duration,
    /// When the statement of the newest confirmation was sent.
    sent: (Stamp, Instant),
    /// The claim waited for it, and core may not know of the grant yet.
    waited: bool,
    /// The `wait_timeout` of the connection in seconds, and when its last statement was sent.
    timeout: u64,
    used: Instant,
}

impl Lease {
    pub(super) fn new(token: FencingToken, ttl: Duration, sent: (Stamp, Instant), waited: bool) -> Self {
        Self { token, ttl, recorded: ttl, sent, waited, timeout: ttl.as_secs(), used: sent.1 }
    }

    fn ends(&self) -> Instant {
        self.sent.1 + self.ttl
    }

    /// When the connection must be used again: at most `keepalive` after its last use, and a whole number of seconds
    /// before the lease ends, because `wait_timeout` has whole seconds and must end the connection together with the
    /// lease. `None` if the lease ends before.
    fn next_use(&self, keepalive: Duration) -> Option<Instant> {
        let left = self.ends().checked_duration_since(self.used + keepalive)?;
        let seconds = whole_seconds(left);
        (seconds > 0).then(|| self.ends() - Duration::from_secs(seconds))
    }
}

/// Rounded up.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

impl Task {
    /// Keeps the lease until it is released or lost.
    pub(super) async fn hold(&mut self, mut connection: Connection<'_>, mut lease: Lease) {
        let confirmation = self.confirmation(lease.ttl, lease.sent.0);
        self.set_phase(Phase::Held(lease.token, confirmation));
        if lease.waited {
            let (owner, place, token) = (self.request.owner, self.request.place, lease.token);
            self.core.event(Event::Granted { owner, place, token, confirmation: Some(confirmation) });
        }
        let keepalive = self.connections.shared.settings.keepalive;
        loop {
            let next_use = lease.next_use(keepalive);
            let command = tokio::select! {
                biased;
                command = self.commands.recv() => command,
                () = sleep_until(next_use.unwrap_or_else(Instant::now)), if next_use.is_some() => {
                    if self.keep_warm(&mut connection, &mut lease).await.is_ok() {
                        continue;
                    }
                    // With its connection, the server ends the lease. The holder learns of it now, and not only at its
                    // next renewal.
                    self.set_phase(Phase::Ended);
                    self.core.event(Event::Gone { owner: self.request.owner });
                    drop(connection);
                    self.end_connection().await;
                    return;
                }
            };
            match command {
                Some(Command::Renew { ttl, index, replies }) => {
                    let renewed = self.renew(&mut connection, &mut lease, ttl).await;
                    let is_lost = matches!(renewed, RenewReply::Lost);
                    if is_lost {
                        self.set_phase(Phase::Ended);
                    }
                    // The caller may have given up.
                    let _ = replies.send((index, renewed));
                    if is_lost {
                        drop(connection);
                        self.end_connection().await;
                        return;
                    }
                }
                Some(Command::Release { reply }) => {
                    let released = self.release(connection, &lease).await;
                    // The caller may have given up. Its next call finds no lease, and must not take that for a loss.
                    if let Err(Ok(true)) = reply.send(released) {
                        self.connection.note_release();
                    }
                    return;
                }
                // The claim was dropped without a release: the lease lasts until its deadline.
                None => return sleep_until(lease.ends()).await,
            }
        }
    }

    /// Uses the connection, so that nothing on the path closes it because it seems to be idle. The lease does not last
    /// longer by that.
    async fn keep_warm(&self, connection: &mut Connection<'_>, lease: &mut Lease) -> Result<(), Failure> {
        let now = Instant::now();
        let left = lease.ends().saturating_duration_since(now);
        // This may run late, if the process was paused.
        let seconds = whole_seconds(left).max(1);
        connection.execute(Statements::keep(seconds), lease.ends().max(self.until())).await?;
        (lease.timeout, lease.used) = (seconds, now);
        Ok(())
    }

    /// Ends the lease. Returns whether it was held until then.
    async fn release(&self, connection: Connection<'_>, lease: &Lease) -> Result<bool, Failure> {
        let (statements, was_held) = (self.request.statements.unlock(), AtomicBool::new(false));
        let was_over = Instant::now() >= lease.ends();
        // As long as the lease may last: of a thousand releases at once, the last replies come after the bound of a
        // call. The statement has taken effect then, and nobody could tell a release from a loss any more.
        let until = lease.ends().max(self.until());
        let done = connection.release(&statements, &was_held, || self.connection.detach(), until).await;
        self.set_phase(Phase::Ended);
        let Err(failure) = done else { return Ok(true) };
        // Only when the connection has ended is it certain that the row is unlocked.
        match (self.end_connection().await, failure) {
            (Some(true), _) => Ok(true),
            (Some(false), _) if was_held.load(Ordering::Relaxed) => Ok(true),
            // The ttl was over before the release, so another claim may have held the lock.
            (_, _) if was_over => Ok(false),
            // The statements may have arrived.
            (_, failure @ Failure::TimedOut) | (None, failure) => Err(failure),
            // The connection broke, and no reply arrived. It may have broken before: then another claim may have held.
            (Some(false), _) => Ok(false),
        }
    }

    async fn renew(&self, connection: &mut Connection<'_>, lease: &mut Lease, ttl: Duration) -> RenewReply {
        match self.try_renew(connection, lease, ttl).await {
            Ok(Some(confirmation)) if lease.waited => RenewReply::Granted(Grant::new(lease.token, confirmation)),
            Ok(Some(confirmation)) => RenewReply::Renewed(confirmation),
            Ok(None) => RenewReply::Lost,
            Err(failure) => RenewReply::Unknown(failure.into()),
        }
    }

    /// Returns `None` if the lease is lost.
    async fn try_renew(
        &self,
        connection: &mut Connection<'_>,
        lease: &mut Lease,
        ttl: Duration,
    ) -> Result<Option<Confirmation>, Failure> {
        let (statements, calls) = (&self.request.statements, self.connections.calls.pool()?);
        let (stamp, now) = (self.core.stamp(), Instant::now());
        // A renewal to this ttl would shorten the lease, so the server is only asked whether the lease is held.
        if lease.ends() >= now + ttl {
            let holds = fences::holds(&calls, statements, connection.endpoint.id, self.until()).await?;
            return Ok(holds.then(|| self.confirmation(ttl, stamp)));
        }
        // First, because a restart of the server could otherwise end the wait for this lease too early.
        if ttl > lease.recorded {
            fences::lengthen(&calls, statements, lease.token, ttl.as_secs(), self.until()).await?;
            lease.recorded = ttl;
        }
        let (sent, seconds) = ((self.core.stamp(), Instant::now()), ttl.as_secs());
        let renew = if seconds == lease.timeout { Statements::renew() } else { Statements::renew_to(seconds) };
        match connection.execute(renew, lease.ends().max(self.until())).await {
            Ok(()) => {
                (lease.ttl, lease.sent, lease.timeout, lease.used) = (ttl, sent, seconds, sent.1);
                Ok(Some(self.confirmation(ttl, sent.0)))
            }
            // Whatever it was: the connection is not usable any more, and the lease ends with it.
            Err(_) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The uses are at most `keepalive` apart, a whole number of seconds before the end, and none is in the last
    /// second.
    #[test]
    fn a_connection_is_used_soon_and_does_not_outlast_its_lease() {
        let begin = Instant::now();
        let mut lease = Lease::new(FencingToken::new(1), Duration::from_secs(10), (Stamp::ZERO, begin), false);
        let keepalive = Duration::from_millis(2700);
        let mut uses = Vec::new();
        while let Some(at) = lease.next_use(keepalive) {
            assert!(at > lease.used && at <= lease.used + keepalive);
            // Late by a little.
            lease.used = at + Duration::from_millis(30);
            uses.push((at - begin).as_millis());
        }
        assert_eq!(uses, [2000, 4000, 6000, 8000]);
        lease.ttl = Duration::from_secs(2);
        assert_eq!(lease.next_use(keepalive), None);
    }
}
