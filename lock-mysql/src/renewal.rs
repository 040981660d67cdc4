//! Renews many leases in one statement.
//!
//! A user's transaction may keep a row locked: a fenced write does so until its end. The statement then waits, and blocks the rows that it
//! has renewed so far. So it is cancelled soon, and the rows that nobody has locked are renewed without it.

use std::time::Duration;

use leasehold_core::backend::{
    Confirmation, CoreHandle, OwnerToken, PlaceNumber, RenewPolicy, RenewReplies, RenewReply, RenewRequest, Stamp,
};
use leasehold_core::{Error, ErrorKind};
use tokio::time::{Instant, timeout_at};

use crate::errors::Failure;
use crate::pool::{Checkout, Pool};
use crate::quarantine;
use crate::rows::{self, owners_and_rests};
use crate::statements::{HELD, LOCK_HELD, RENEW, RENEW_EXACTLY, SIZES, Sized};

/// A statement that takes longer waits for a row that another transaction has locked, or the server is slow.
const CANCEL_AFTER: Duration = Duration::from_millis(100);

/// A request, and its index in the call.
pub(crate) type Indexed<'a> = (usize, &'a RenewRequest);

/// Renews leases, and gives a reply for each.
pub(crate) async fn renew(
    pool: &Pool,
    core: &CoreHandle,
    requests: &[RenewRequest],
    replies: &RenewReplies,
    until: Instant,
) {
    let mut rest: Vec<Indexed<'_>> = requests.iter().enumerate().collect();
    while let Some((_, first)) = rest.first() {
        let key = (first.ttl, first.policy);
        let (alike, others): (Vec<_>, Vec<_>) =
            rest.into_iter().partition(|(_, request)| (request.ttl, request.policy) == key);
        for some in alike.chunks(SIZES[SIZES.len() - 1]) {
            if let Err(failure) = renew_alike(pool, core, some, replies, until).await {
                let error = Error::from(failure);
                for (index, _) in some {
                    replies.put(*index, RenewReply::Unknown(error.clone()));
                }
            }
        }
        rest = others;
    }
}

/// Renews leases that have the same ttl and policy.
async fn renew_alike(
    pool: &Pool,
    core: &CoreHandle,
    requests: &[Indexed<'_>],
    replies: &RenewReplies,
    until: Instant,
) -> Result<(), Failure> {
    let mut connection = pool.checkout(until).await?;
    let ttl = requests.first().map_or(Duration::ZERO, |(_, request)| request.ttl);
    if let Err(failure) = quarantine::before_renewal(&mut connection, ttl, until).await {
        connection.put_back();
        return Err(failure);
    }
    let sent = core.stamp();
    match update(pool, &mut connection, requests, until).await {
        Ok(renewed) if renewed == requests.len() as u64 => {
            connection.put_back();
            for (index, request) in requests {
                replies.put(*index, confirmed(request.ttl, sent));
            }
            Ok(())
        }
        Ok(_) => {
            connection.put_back();
            reply(pool, core, requests, |_| false, replies, until).await
        }
        // This statement had no effect.
        Err(Failure::Conflict(_)) => {
            connection.put_back();
            renew_unlocked(pool, core, requests, replies, until).await
        }
        Err(failure) => Err(failure),
    }
}

/// Sends the update, and cancels it if it takes long.
async fn update(
    pool: &Pool,
    connection: &mut Checkout<'_>,
    requests: &[Indexed<'_>],
    until: Instant,
) -> Result<u64, Failure> {
    let id = connection.id();
    let mut update = std::pin::pin!(connection.execute(update_of(requests), until));
    if let Ok(done) = timeout_at(until.min(Instant::now() + CANCEL_AFTER), &mut update).await {
        return Ok(done?.rows_affected());
    }
    let mut cancel = std::pin::pin!(cancel(pool, id, until));
    let done = tokio::select! {
        // A cancellation that arrives after the statement has ended has no effect.
        done = &mut update => done,
        _ = &mut cancel => update.await,
    };
    Ok(done?.rows_affected())
}

/// Cancels the statement of a connection.
async fn cancel(pool: &Pool, id: u64, until: Instant) -> Result<(), Failure> {
    let mut other = pool.checkout(until).await?;
    other.execute_text(format!("KILL QUERY {id}"), until).await?;
    other.put_back();
    Ok(())
}

/// Renews the rows that no other transaction has locked.
async fn renew_unlocked(
    pool: &Pool,
    core: &CoreHandle,
    requests: &[Indexed<'_>],
    replies: &RenewReplies,
    until: Instant,
) -> Result<(), Failure> {
    let mut connection = pool.checkout(until).await?;
    connection.execute_text("BEGIN".to_owned(), until).await?;
    let unlocked = owners_and_rests(&connection.fetch(of_claims(&LOCK_HELD, None, requests), until).await?)?;
    let some: Vec<Indexed<'_>> =
        requests.iter().filter(|(_, request)| unlocked.contains_key(request.claim.owner())).copied().collect();
    if !some.is_empty() {
        connection.execute(update_of(&some), until).await?;
    }
    connection.execute_text("COMMIT".to_owned(), until).await?;
    connection.put_back();
    reply(pool, core, requests, |owner| !unlocked.contains_key(owner), replies, until).await
}

/// Replies by what the store has for each claim after the renewal. A claim that holds its lock, but whose row was locked, was not renewed.
async fn reply(
    pool: &Pool,
    core: &CoreHandle,
    requests: &[Indexed<'_>],
    was_locked: impl Fn(&OwnerToken) -> bool,
    replies: &RenewReplies,
    until: Instant,
) -> Result<(), Failure> {
    let mut connection = pool.checkout(until).await?;
    let sent = core.stamp();
    let held = owners_and_rests(&connection.fetch(of_claims(&HELD, None, requests), until).await?)?;
    connection.put_back();
    for (index, request) in requests {
        let owner = request.claim.owner();
        let reply = match held.get(owner) {
            None => RenewReply::Lost,
            Some(_) if was_locked(owner) => RenewReply::Unknown(locked()),
            Some(rest) => confirmed(request.ttl.min(*rest), sent),
        };
        replies.put(*index, reply);
    }
    Ok(())
}

fn confirmed(ttl: Duration, sent: Stamp) -> RenewReply {
    RenewReply::Renewed(Confirmation { ttl, sent, place: PlaceNumber::NONE })
}

fn locked() -> Error {
    let text = "another transaction has locked the row of this lock in `leasehold_locks`: end such transactions sooner";
    Error::new(ErrorKind::Unavailable, text)
}

fn update_of<'q>(requests: &[Indexed<'q>]) -> rows::Statement<'q> {
    let Some((_, first)) = requests.first() else { return sqlx::query("DO 0") };
    let statements = match first.policy {
        RenewPolicy::Exactly => &RENEW_EXACTLY,
        _ => &RENEW,
    };
    of_claims(statements, Some(first.ttl), requests)
}

fn of_claims<'q>(statements: &Sized, ttl: Option<Duration>, requests: &[Indexed<'q>]) -> rows::Statement<'q> {
    let (text, size) = rows::sized(statements, requests.len());
    let mut statement = sqlx::query(text);
    if let Some(ttl) = ttl {
        statement = statement.bind(rows::micros(ttl));
    }
    let statement = rows::bind_all(statement, requests, size, |&(_, request)| rows::bytes(request.claim.name()));
    rows::bind_all(statement, requests, size, |&(_, request)| request.claim.owner().as_bytes())
}
