//! Renews leases and places.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::{Confirmation, Grant, LONGEST_PLACE_TTL, RenewPolicy, RenewReply, RenewRequest, Stamp};
use leasehold_core::{ErrorKind, FencingToken, Result};
use tokio::time::Instant;

use crate::cluster::{Declared, Refusal};
use crate::connection::{Connection, script_call};
use crate::errors::Failure;
use crate::put_back::{self, Confirmed, Lease};
use crate::replies::{self, Renewed};
use crate::run::Run;
use crate::shared::millis;

/// Renews leases and places in one call. A single server refuses nothing.
///
/// # Errors
/// Nothing is known of the outcome, or nothing was sent: see the kind.
pub(crate) async fn renew(
    connection: &Connection,
    requests: &[RenewRequest],
    declared: Declared,
    until: Instant,
) -> Result<Vec<Result<RenewReply, Refusal>>> {
    let shared = connection.protocol();
    let all = |refusal: Refusal| Ok(requests.iter().map(|_| Err(refusal.clone())).collect());
    // One reading serves the whole batch: a ttl that other clients know of covers every shorter one.
    let longest = requests.iter().map(|request| request.ttl).max().unwrap_or_default();
    let quarantine = match connection.prepare(longest, declared, until).await {
        Ok(quarantine) => quarantine,
        Err(error) => return all(connection.unsent(error)?),
    };
    let mut command = script_call(&shared.scripts.renew, declared.count(requests.len()));
    for request in requests {
        shared.keys.add_lock(&mut command, &request.claim, declared);
    }
    // Most renewals have the same ttl and never shorten a lease. That ttl is sent once, and the others as
    // exceptions (`renew.lua`).
    let common_ttl = requests.first().map_or(Duration::ZERO, |request| request.ttl);
    command.arg(shared.common_to_renewals(declared, quarantine.is_none(), common_ttl));
    let (mut packed, mut exceptions) = (Vec::with_capacity(24 * requests.len()), Vec::new());
    for (number, request) in (1_u16..).zip(requests) {
        packed.extend(request.place.get().to_be_bytes());
        packed.extend(request.claim.owner().as_bytes());
        if request.ttl != common_ttl || request.policy == RenewPolicy::Exactly {
            exceptions.extend(number.to_be_bytes());
            exceptions.extend(millis(request.ttl).to_be_bytes());
            exceptions.push(if request.policy == RenewPolicy::Exactly { b'e' } else { b'm' });
        }
    }
    command.arg(packed).arg(exceptions);
    let core = shared.core()?;
    // After `prepare`, which may take a round trip: the validity counts from the request itself.
    let (sent, run) = (core.stamp(), connection.run_read());
    let put_back = run.as_ref().map(|run| put_back::argument(requests, run, sent, shared)).unwrap_or_default();
    if !put_back.is_empty() {
        command.arg(put_back);
    }
    let request = connection.run_declared(&shared.scripts.renew, &command, declared, until);
    let shortest = requests.iter().map(|request| request.ttl).min().unwrap_or_default();
    let primary = connection.primary().map(|primary| (primary, primary.now()));
    let value = match primary {
        None => request.await,
        Some((primary, _)) => primary.ask_beside(request, shortest, until).await,
    };
    let value = match connection.refusals(value)? {
        Ok(value) => value,
        Err(refusal) => return all(refusal),
    };
    let (time, renewals) = replies::renewed(value, requests.len()).ok_or(Failure::UnexpectedReply)?;
    shared.server_clock.observe(time, sent, core.stamp());
    let is_new = |(request, renewed): (&RenewRequest, &Renewed)| match renewed {
        Renewed::Granted { token, .. } => !Lease::of(&request.claim).has(*token),
        _ => false,
    };
    let unreplicated = match renewals.iter().any(Renewed::is_lease) {
        true => connection.count_replicas(run.clone(), until).await.err(),
        false => None,
    };
    let unconfirmed = match primary {
        Some((primary, _)) if requests.iter().zip(&renewals).any(is_new) => primary.confirm_grant(until).await.err(),
        _ => None,
    };
    let doubt = |request: &RenewRequest, renewed: &Renewed| {
        let is_place = renewed.is_lease() || matches!(renewed, Renewed::Waiting { .. });
        // The next renewal finds the grant again.
        let grant = unconfirmed.as_ref().filter(|_| is_new((request, renewed)));
        let lease = unreplicated.as_ref().filter(|_| renewed.is_lease());
        // A former primary goes on confirming requests for a while.
        let former = || match primary {
            Some((primary, at)) if is_place => primary.check(request.ttl, at).err(),
            _ => None,
        };
        grant.or(lease).cloned().or_else(former)
    };
    let answer = |(request, renewed): (&RenewRequest, Renewed)| {
        if let Some(why) = doubt(request, &renewed) {
            return Ok(RenewReply::Unknown(why.with_kind(ErrorKind::Indeterminate)));
        }
        let confirmation = |ttl, place| Confirmation { ttl, sent, place };
        note_renewal(request, &renewed, run.as_ref(), sent);
        Ok(match renewed {
            Renewed::Held | Renewed::PutBack => RenewReply::Renewed(confirmation(request.ttl, request.place)),
            Renewed::Granted { place, token } => {
                RenewReply::Granted(Grant::new(FencingToken::new(token), confirmation(request.ttl, place)))
            }
            // The lock is granted to nobody before the quarantine ends, so an earlier retry is wasted.
            Renewed::Waiting { place, retry_after } => RenewReply::Waiting {
                confirmation: confirmation(request.ttl.min(LONGEST_PLACE_TTL), place),
                retry_after: retry_after.max(quarantine.unwrap_or_default()),
            },
            Renewed::Lost => RenewReply::Lost,
            Renewed::Failed(text) => match connection.redirection(&text) {
                Some(refusal) => return Err(refusal),
                None => RenewReply::Unknown(connection.refused(&text)),
            },
        })
    };
    Ok(requests.iter().zip(renewals).map(answer).collect())
}

/// Notes what a reply to a renewal says about the lease of its claim.
fn note_renewal(request: &RenewRequest, renewed: &Renewed, run: Option<&Arc<Run>>, sent: Stamp) {
    let Some(run) = run else { return };
    let confirmed = || Confirmed { run: run.clone(), sent, ttl: request.ttl };
    let lease = || Lease::of(&request.claim);
    match renewed {
        Renewed::Held => lease().renewed(confirmed()),
        Renewed::PutBack => {
            lease().renewed(confirmed());
            tracing::info!(
                backend = crate::errors::BACKEND,
                lock = %request.claim.name(),
                "the server had lost this lease, and it was put back: it was not interrupted"
            );
        }
        Renewed::Granted { token, .. } => lease().granted(*token, confirmed()),
        Renewed::Lost => lease().lost(),
        Renewed::Waiting { .. } | Renewed::Failed(_) => {}
    }
}
