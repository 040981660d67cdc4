//! A backend of your own: everything that Leasehold needs from a store that it does not know.
//!
//! The store here is a table in this process, which stands for a table of your database. It does what nearly every
//! store can do: change one row in one step, by its own clock. Leasehold does the rest. The chapter "Write a backend"
//! in `conformance-tests/README.md` explains this example, and `conformance-tests/tests/third_party.rs` runs the suite
//! on it. `cargo run --example third_party_backend` runs the example.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold::backend::kit::Attachment;
use leasehold::backend::{
    AcquireOutcome, AcquireRequest, Admin, Capabilities, Confirmation, CoreHandle, Delivery, Grant, LockBackend,
    OwnerToken, PlaceNumber, ReleaseOutcome, ReleaseRequest, RenewPolicy, RenewReplies, RenewReply, RenewRequest,
    Scope, StoreClock, WITHDRAWN_TTL, WatchNames,
};
use leasehold::{Error, ErrorKind, FencingToken, LockName, Result};

/// The store: one row for each lock.
#[derive(Debug, Clone, Default)]
pub struct Table(Arc<Mutex<HashMap<LockName, Row>>>);

/// What the store keeps about a lock. The row stays when the lock is free, because otherwise its tokens would start
/// again.
#[derive(Debug, Clone, Default)]
pub struct Row {
    /// The holder, and when its lease ends by the store's clock.
    pub lease: Option<(OwnerToken, Instant)>,
    /// The token of the last grant.
    pub token: u64,
    /// Withdrawn claims, and until when the store remembers each.
    pub withdrawn: Vec<(OwnerToken, Instant)>,
}

impl Table {
    /// Locks the rows for one step.
    pub fn rows(&self) -> MutexGuard<'_, HashMap<LockName, Row>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A transaction on one row, from which it first removes everything that has expired.
    fn change<T>(&self, name: &LockName, work: impl FnOnce(&mut Row, Instant) -> T) -> T {
        let (mut rows, now) = (self.rows(), Instant::now());
        let row = rows.entry(name.clone()).or_default();
        row.lease = row.lease.filter(|(_, until)| now < *until);
        row.withdrawn.retain(|(_, until)| now < *until);
        work(row, now)
    }
}

/// How long a waiter sleeps between two attempts. The store sends no notification when a lock becomes free.
const POLL: Duration = Duration::from_millis(20);

/// The connection of one client to the table.
#[derive(Debug)]
pub struct TableBackend {
    table: Table,
    core: Attachment,
}

impl TableBackend {
    /// A backend for one client.
    pub fn new(table: &Table) -> Self {
        Self { table: table.clone(), core: Attachment::new() }
    }
}

#[async_trait]
impl LockBackend for TableBackend {
    fn attach(&self, core: CoreHandle) {
        self.core.attach(core);
    }

    async fn acquire(&self, AcquireRequest { claim, ttl, .. }: &AcquireRequest) -> Result<AcquireOutcome> {
        // The validity is counted from here, before the request is sent.
        let sent = self.core.core()?.stamp();
        self.table.change(claim.name(), |row, now| {
            if row.withdrawn.iter().any(|(owner, _)| owner == claim.owner()) {
                return Err(Error::new(ErrorKind::Lost, "the claim was withdrawn before this request"));
            }
            let until = match row.lease {
                // A second copy of the holder's request gets the same grant, with at least the ttl that it asks for.
                Some((owner, until)) if owner == *claim.owner() => until.max(now + *ttl),
                Some((_, until)) => return Ok(AcquireOutcome::Contended { retry_after: POLL.min(until - now) }),
                None => {
                    row.token += 1;
                    now + *ttl
                }
            };
            row.lease = Some((*claim.owner(), until));
            let confirmation = Confirmation { ttl: *ttl, sent, place: PlaceNumber::NONE };
            Ok(AcquireOutcome::Granted(Grant::new(FencingToken::new(row.token), confirmation)))
        })
    }

    async fn renew(&self, requests: &[RenewRequest], replies: &RenewReplies) {
        let Ok(core) = self.core.core() else { return };
        for (index, RenewRequest { claim, ttl, policy, .. }) in requests.iter().enumerate() {
            let sent = core.stamp();
            let answer = self.table.change(claim.name(), |row, now| match &mut row.lease {
                Some((owner, until)) if owner == claim.owner() => {
                    *until = if *policy == RenewPolicy::Exactly { now + *ttl } else { (*until).max(now + *ttl) };
                    RenewReply::Renewed(Confirmation { ttl: *ttl, sent, place: PlaceNumber::NONE })
                }
                _ => RenewReply::Lost,
            });
            replies.put(index, answer);
        }
    }

    async fn release(&self, ReleaseRequest { claim, delivery, .. }: &ReleaseRequest) -> Result<ReleaseOutcome> {
        Ok(self.table.change(claim.name(), |row, now| {
            if *delivery == Delivery::InDoubt {
                row.withdrawn.push((*claim.owner(), now + WITHDRAWN_TTL));
            }
            row.lease
                .take_if(|(owner, _)| owner == claim.owner())
                .map_or(ReleaseOutcome::NotHeld, |_| ReleaseOutcome::Released)
        }))
    }

    fn capabilities(&self) -> Capabilities {
        // Only the values that are better than the least that a backend can promise. The suite verifies each of them.
        let mut it = Capabilities::new("table");
        it.scope = Scope::Process;
        it.clock = StoreClock::MachineBoot;
        it.takeover_slack = Duration::from_millis(100);
        it.fencing = "a counter in the row, which is never removed";
        it.call_bound = Duration::from_millis(250);
        it.limits_of_exclusion = &["somebody changes the table by hand"];
        it
    }

    fn admin(&self) -> Option<&dyn Admin> {
        None
    }

    fn watch_names(&self) -> Option<&dyn WatchNames> {
        None
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let table = Table::default();
    let [ann, bob] = [(); 2].map(|()| leasehold::LockClient::new(TableBackend::new(&table)));
    let guard = ann.lock("orders/42").acquire().await?;
    let first = guard.fencing_token();
    println!("ann holds {}, fencing token {first}", guard.name());
    assert!(bob.lock("orders/42").try_acquire().await?.is_none(), "one holder at a time");
    guard.release().await?;
    let guard = bob.lock("orders/42").acquire().await?;
    println!("bob holds {}, fencing token {}", guard.name(), guard.fencing_token());
    assert!(guard.fencing_token() > first, "tokens rise");
    guard.release().await
}
