//! Saboteurs with wrong times.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Capabilities, Clock, Confirmation, Delivery, PlaceNumber, ReleaseOutcome,
    ReleaseRequest, RenewPolicy, RenewReply, RenewRequest, Stamp, StoreClock, SystemClock,
};
use leasehold_core::{LockClientBuilder, Result};

use super::{Saboteur, plain, stateful};
use crate::fault::{ServerFault, Unsupported};
use crate::faulty::lock;
use crate::hooks::{Hooks, Inner};

plain! {
    /// Keeps leases for half of the ttl that it reports.
    ShortLeases;
    /// Keeps leases for three times their ttl.
    LongLeases;
    /// Reports twice the ttl.
    ReportsTooMuch;
    /// Rounds a ttl down to a multiple of 10 ms, while it claims a granularity of 1 ms.
    RoundsDown;
    /// Stamps replies when they arrive and not when the request is sent.
    StampsTheReply;
    /// Stamps the replies of renewals when they arrive and not when the request is sent.
    StampsRenewalsLate;
    /// Confirms the whole ttl for a place that the store keeps for less.
    ConfirmsTheWholeTtl;
    /// Stamps replies two ttls into the future.
    StampsTheFuture;
    /// Lets every renewal shorten the lease.
    RenewalsShorten;
    /// Lets no renewal shorten the lease.
    NeverShortens;
    /// Renews all leases of a call to the ttl of the first.
    OneTtlForAll;
    /// Ends a lease at once instead of after its ttl.
    RunsOutAtOnce;
}

/// Stamps every grant as the first one.
#[derive(Default)]
pub struct StampsAllAsTheFirst {
    first: Mutex<Option<Stamp>>,
}

stateful! {
    StampsAllAsTheFirst;
}

#[async_trait]
impl Hooks for StampsAllAsTheFirst {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        confirmed(inner, request, |it| it.sent = *lock(&self.first).get_or_insert(it.sent)).await
    }
}

/// The same request with another ttl.
fn with_ttl(request: &AcquireRequest, ttl: Duration) -> AcquireRequest {
    let mut request = request.clone();
    request.ttl = ttl;
    request
}

/// Changes what an acquire confirms.
async fn confirmed(
    inner: &Inner,
    request: &AcquireRequest,
    change: impl Fn(&mut Confirmation),
) -> Result<AcquireOutcome> {
    let mut reply = inner.backend.acquire(request).await;
    if let Ok(AcquireOutcome::Granted(grant)) = &mut reply {
        change(&mut grant.confirmation);
    }
    if let Ok(AcquireOutcome::Queued { confirmation, .. }) = &mut reply {
        change(confirmation);
    }
    reply
}

/// Changes what a renewal confirms.
async fn renewed(
    inner: &Inner,
    leases: &[RenewRequest],
    change: impl Fn(&mut Confirmation),
) -> Vec<(usize, RenewReply)> {
    let mut replies = inner.renew(leases).await;
    for (_, reply) in &mut replies {
        match reply {
            RenewReply::Renewed(confirmation) | RenewReply::Waiting { confirmation, .. } => change(confirmation),
            RenewReply::Granted(grant) => change(&mut grant.confirmation),
            _ => {}
        }
    }
    replies
}

#[async_trait]
impl Hooks for ShortLeases {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let half = with_ttl(request, request.ttl / 2);
        confirmed(inner, &half, |confirmation| confirmation.ttl = request.ttl).await
    }
}

#[async_trait]
impl Hooks for LongLeases {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let thrice = with_ttl(request, request.ttl * 3);
        confirmed(inner, &thrice, |confirmation| confirmation.ttl = request.ttl).await
    }
}

#[async_trait]
impl Hooks for ReportsTooMuch {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        confirmed(inner, request, |confirmation| confirmation.ttl *= 2).await
    }
}

#[async_trait]
impl Hooks for RoundsDown {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let steps = u64::try_from(request.ttl.as_millis() / 10).unwrap_or(u64::MAX);
        inner.backend.acquire(&with_ttl(request, Duration::from_millis(steps * 10))).await
    }
}

#[async_trait]
impl Hooks for StampsTheReply {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        confirmed(inner, request, |confirmation| confirmation.sent = inner.now()).await
    }

    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        renewed(inner, leases, |confirmation| confirmation.sent = inner.now()).await
    }
}

#[async_trait]
impl Hooks for StampsRenewalsLate {
    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        StampsTheReply.renew(inner, leases).await
    }
}

#[async_trait]
impl Hooks for ConfirmsTheWholeTtl {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        confirmed(inner, request, |confirmation| confirmation.ttl = request.ttl).await
    }
}

fn from_the_future(inner: &Inner, confirmation: &mut Confirmation) {
    confirmation.sent = inner.now().plus(confirmation.ttl * 2);
}

#[async_trait]
impl Hooks for StampsTheFuture {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        confirmed(inner, request, |confirmation| from_the_future(inner, confirmation)).await
    }

    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        renewed(inner, leases, |confirmation| from_the_future(inner, confirmation)).await
    }
}

async fn extended(inner: &Inner, leases: &[RenewRequest], policy: RenewPolicy) -> Vec<(usize, RenewReply)> {
    let mut leases = leases.to_vec();
    for lease in &mut leases {
        lease.policy = policy;
    }
    inner.renew(&leases).await
}

#[async_trait]
impl Hooks for RenewalsShorten {
    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        extended(inner, leases, RenewPolicy::Exactly).await
    }
}

#[async_trait]
impl Hooks for NeverShortens {
    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        extended(inner, leases, RenewPolicy::AtLeast).await
    }
}

#[async_trait]
impl Hooks for OneTtlForAll {
    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        let mut leases = leases.to_vec();
        let first = leases.first().map_or(Duration::ZERO, |lease| lease.ttl);
        for lease in &mut leases {
            lease.ttl = first;
        }
        inner.renew(&leases).await
    }
}

#[async_trait]
impl Hooks for RunsOutAtOnce {
    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        let replies = inner.renew(leases).await;
        for lease in leases.iter().filter(|lease| lease.policy == RenewPolicy::Exactly) {
            let _ = inner.backend.release(&ReleaseRequest::new(lease.claim.clone(), Delivery::Confirmed)).await;
        }
        replies
    }
}

/// A client whose clock stops while it is not read, like some clocks during a suspend.
pub struct ClockStopsWhileIdle;

struct IdleClock {
    real: SystemClock,
    seen: Mutex<(Stamp, Stamp)>,
}

/// Longer than a keeper sleeps between two reads of the clock, and far shorter than a pause.
const NOTICED: Duration = Duration::from_millis(60);

impl Clock for IdleClock {
    fn now(&self) -> Stamp {
        let mut seen = lock(&self.seen);
        let real = self.real.now();
        let (last_real, last) = *seen;
        let now = last.plus(real.since(last_real).min(NOTICED));
        *seen = (real, now);
        now
    }

    fn sleep_time(&self, until: Stamp) -> Duration {
        until.since(self.now()).min(NOTICED / 4)
    }
}

impl Hooks for ClockStopsWhileIdle {}

impl Saboteur for ClockStopsWhileIdle {
    fn new() -> Self {
        Self
    }

    fn tune(&self, builder: LockClientBuilder) -> LockClientBuilder {
        builder.clock(Arc::new(IdleClock { real: SystemClock::new(), seen: Mutex::new((Stamp::ZERO, Stamp::ZERO)) }))
    }
}

/// A server's wall clock that is stepped.
struct Stepped {
    real: SystemClock,
    /// The step in nanoseconds.
    step: AtomicI64,
}

/// More than any step back.
const BEFORE_ANY_STEP: Duration = Duration::from_secs(24 * 3600);

impl Stepped {
    /// How long a lease of `ttl` by a clock without steps lasts by this clock.
    fn by_this_clock(&self, ttl: Duration) -> Duration {
        let step = self.step.load(Ordering::SeqCst);
        let by = Duration::from_nanos(step.unsigned_abs());
        if step > 0 { ttl.saturating_sub(by) } else { ttl + by }
    }
}

impl Stepped {
    fn step(&self, fault: &ServerFault) -> Option<Result<(), Unsupported>> {
        let (by, forward) = match fault {
            ServerFault::ClockForward(by) => (by, true),
            ServerFault::ClockBack(by) => (by, false),
            _ => return None,
        };
        let nanos = i64::try_from(by.as_nanos()).expect("no case steps a clock so far");
        self.step.fetch_add(if forward { nanos } else { -nanos }, Ordering::SeqCst);
        Some(Ok(()))
    }
}

impl Clock for Stepped {
    fn now(&self) -> Stamp {
        let step = self.step.load(Ordering::SeqCst);
        let now = self.real.now().plus(BEFORE_ANY_STEP);
        let by = Duration::from_nanos(step.unsigned_abs());
        if step > 0 { now.plus(by) } else { now.minus(by) }
    }

    fn sleep_time(&self, until: Stamp) -> Duration {
        until.since(self.now())
    }
}

/// Writes deadlines of the client's clock into a store that ends leases by its own clock.
pub struct SendsTheClientsClock {
    server: Arc<Stepped>,
}

/// Releases a lease by setting its deadline to the present, and keeps its owner.
pub struct ReleasesByTheDeadline {
    server: Arc<Stepped>,
}

macro_rules! with_a_wall_clock {
    ($($name:ident;)*) => {
        $(impl Saboteur for $name {
            fn new() -> Self {
                Self { server: Arc::new(Stepped { real: SystemClock::new(), step: 0.into() }) }
            }

            fn store_clock(&self) -> Option<Arc<dyn Clock>> {
                Some(self.server.clone())
            }

            fn server(&self, fault: &ServerFault) -> Option<Result<(), Unsupported>> {
                self.server.step(fault)
            }
        })*
    };
}

with_a_wall_clock! {
    SendsTheClientsClock;
    ReleasesByTheDeadline;
}

#[async_trait]
impl Hooks for ReleasesByTheDeadline {
    async fn release(&self, inner: &Inner, request: &ReleaseRequest) -> Result<ReleaseOutcome> {
        if request.delivery == Delivery::InDoubt {
            return inner.backend.release(request).await;
        }
        let mut now = RenewRequest::new(request.claim.clone(), PlaceNumber::NONE, Duration::ZERO);
        now.policy = RenewPolicy::Exactly;
        Ok(match inner.renew_one(&now).await {
            RenewReply::Renewed(_) | RenewReply::Granted(_) => ReleaseOutcome::Released,
            _ => ReleaseOutcome::NotHeld,
        })
    }
}

#[async_trait]
impl Hooks for SendsTheClientsClock {
    async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
        let at_server = with_ttl(request, self.server.by_this_clock(request.ttl));
        confirmed(inner, &at_server, |confirmation| confirmation.ttl = request.ttl).await
    }

    async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
        let mut sent = leases.to_vec();
        for lease in &mut sent {
            lease.ttl = self.server.by_this_clock(lease.ttl);
        }
        let longest = leases.iter().map(|lease| lease.ttl).max().unwrap_or_default();
        renewed(inner, &sent, |confirmation| confirmation.ttl = longest).await
    }

    fn capabilities(&self, real: Capabilities) -> Capabilities {
        let mut claimed = real;
        claimed.clock = StoreClock::ServerWall;
        claimed
    }
}
