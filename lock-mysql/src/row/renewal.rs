//! Renews many leases in one round trip.
//!
//! A user's transaction may keep a row locked: a fenced write does so until its end. So the update skips such rows, and
//! the query in the same packet says which rows it has changed. A time limit instead would take a slow path for a
//! locked row.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::kit::lock;
use leasehold_core::backend::{
    Confirmation, CoreHandle, OwnerToken, PlaceNumber, RenewPolicy, RenewReplies, RenewReply, RenewRequest,
};
use leasehold_core::{Error, ErrorKind};
use sqlx::mysql::MySqlRow;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::{Instant, timeout_at};

use crate::errors::Failure;
use crate::row::quarantine;
use crate::row::rows::{self, Rows};
use crate::row::statements::{RENEW_ROWS, renew_rows};
use crate::sql::{get, micros};

/// The renewals that wait for the connection. Those that came while a packet was on its way are sent together: on a
/// slow path, a packet for each call would take longer than the leases last.
pub(crate) struct Renewals {
    rows: Arc<Rows>,
    waiting: Mutex<Vec<Renewal>>,
    sending: tokio::sync::Mutex<()>,
}

/// One request, its index in its call, and where the call expects the reply.
struct Renewal {
    request: RenewRequest,
    index: usize,
    reply: UnboundedSender<(usize, RenewReply)>,
}

impl Renewal {
    fn reply(&self, reply: RenewReply) {
        // The call may have given up.
        let _ = self.reply.send((self.index, reply));
    }
}

impl Renewals {
    pub(crate) fn new(rows: Arc<Rows>) -> Self {
        Self { rows, waiting: Mutex::default(), sending: tokio::sync::Mutex::default() }
    }

    /// Renews leases, and gives a reply for each.
    pub(crate) async fn renew(
        &self,
        core: &CoreHandle,
        requests: &[RenewRequest],
        replies: &RenewReplies,
        until: Instant,
    ) {
        let (reply, mut replied) = unbounded_channel();
        let renewal =
            |(index, request): (_, &RenewRequest)| Renewal { request: request.clone(), index, reply: reply.clone() };
        lock(&self.waiting).extend(requests.iter().enumerate().map(renewal));
        drop(reply);
        let all = async {
            loop {
                tokio::select! {
                    biased;
                    reply = replied.recv() => match reply {
                        Some((index, reply)) => replies.put(index, reply),
                        None => return,
                    },
                    // Whoever gets the mutex sends what all calls have queued, as in a group commit.
                    sending = self.sending.lock() => {
                        let mut waiting = std::mem::take(&mut *lock(&self.waiting));
                        // A call that has given up may be followed by the release of its claim, and that by nothing.
                        waiting.retain(|renewal| !renewal.reply.is_closed());
                        self.send(core, waiting, until).await;
                        drop(sending);
                    }
                }
            }
        };
        if timeout_at(until, all).await.is_err() {
            replies.fail_rest(&Failure::TimedOut.into());
        }
    }

    /// Sends renewals: those with the same ttl and policy together.
    async fn send(&self, core: &CoreHandle, mut rest: Vec<Renewal>, until: Instant) {
        while let Some(first) = rest.first() {
            let key = (first.request.ttl, first.request.policy);
            let (alike, others): (Vec<_>, Vec<_>) =
                rest.into_iter().partition(|it| (it.request.ttl, it.request.policy) == key);
            for some in alike.chunks(RENEW_ROWS) {
                if let Err(failure) = self.send_alike(core, some, key, until).await {
                    let error = Error::from(failure);
                    some.iter().for_each(|renewal| renewal.reply(RenewReply::Unknown(error.clone())));
                }
            }
            rest = others;
        }
    }

    async fn send_alike(
        &self,
        core: &CoreHandle,
        renewals: &[Renewal],
        (ttl, policy): (Duration, RenewPolicy),
        until: Instant,
    ) -> Result<(), Failure> {
        let pool = self.rows.connections.renewals.pool()?;
        let mut connection = pool.checkout(until).await?;
        if let Err(failure) = quarantine::before_renewal(&mut connection, &self.rows.epoch, ttl, until).await {
            connection.put_back();
            return Err(failure);
        }
        let claims = || renewals.iter().map(|renewal| &renewal.request.claim);
        let names = claims().map(|claim| claim.name().as_bytes());
        let text = renew_rows(names, claims().map(rows::owner), micros(ttl), policy == RenewPolicy::Exactly);
        // After the quarantine was checked, which may take a round trip.
        let sent = core.stamp();
        let renewed = connection.fetch_text(text, until).await;
        connection.put_back();
        let renewed = were_renewed(&renewed?)?;
        for renewal in renewals {
            renewal.reply(match renewed.get(renewal.request.claim.owner()) {
                // `None`: the claim does not hold its lock. `false`: it does, and another transaction has locked the
                // row.
                None => RenewReply::Lost,
                Some(false) => RenewReply::Unknown(locked()),
                Some(true) => RenewReply::Renewed(Confirmation { ttl, sent, place: PlaceNumber::NONE }),
            });
        }
        Ok(())
    }
}

/// The claims that hold their locks, and whether the lease of each was renewed.
fn were_renewed(rows: &[MySqlRow]) -> Result<HashMap<OwnerToken, bool>, Failure> {
    let read = |row| {
        let owner: Vec<u8> = get(row, 0)?;
        let owner = OwnerToken::from_bytes(owner.try_into().map_err(|_| Failure::UnexpectedReply)?);
        Ok((owner, get::<i64>(row, 1)? != 0))
    };
    rows.iter().map(read).collect()
}

fn locked() -> Error {
    let text = "another transaction has locked the row of this lock in `leasehold_locks`: end such transactions sooner";
    Error::new(ErrorKind::Unavailable, text)
}
