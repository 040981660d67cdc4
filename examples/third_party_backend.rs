//! A backend of your own: everything that Leasehold needs of a store that it does not know.
//!
//! The store here is a table in this process, in the place of a table of your database or of a service of your own. It can
//! do what nearly every store can: look at a row and change it in one step, by its own clock. The rest (waiting, renewal, loss,
//! re-entry, cancellation) is Leasehold's.
//!
//! Then run the conformance suite on it. `conformance-tests/tests/third_party.rs` is the one file that it takes, and CI runs
//! it: a fixture that gives backends and looks into the table, and
//!
//! ```text
//! mod table {
//!     leasehold_conformance::suite!(super::TableFixture);
//! }
//! ```
//!
//! `cargo run --example third_party_backend`

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold::backend::{
    AcquireRequest, Acquisition, Answer, Answers, Attachment, Capabilities, Certainty, Confirmation, CoreHandle,
    Extend, Extensions, Grant, LockBackend, OwnerToken, PlaceNumber, Release, ReleaseRequest, RenewRequest, Restart,
    Scope, StoreClock, WITHDRAWN_TTL, Waiting,
};
use leasehold::{Error, ErrorKind, FencingToken, LockName, Result};

/// The store: one row for each lock.
#[derive(Debug, Clone, Default)]
pub struct Table(Arc<Mutex<HashMap<LockName, Row>>>);

/// What the store keeps of a lock. The row stays when the lock is free, or its tokens would begin again.
#[derive(Debug, Clone, Default)]
pub struct Row {
    /// Who holds, and until when by the store's clock.
    pub lease: Option<(OwnerToken, Instant)>,
    /// The token of the last grant.
    pub token: u64,
    /// Claims that were taken back while a request of theirs was under way, and how long that is remembered.
    pub withdrawn: Vec<(OwnerToken, Instant)>,
}

impl Row {
    /// Drops what has expired.
    fn expire(&mut self, now: Instant) {
        self.lease = self.lease.filter(|(_, until)| now < *until);
        self.withdrawn.retain(|(_, until)| now < *until);
    }
}

impl Table {
    /// The rows, for one step.
    pub fn rows(&self) -> MutexGuard<'_, HashMap<LockName, Row>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A transaction on one row.
    fn change<T>(&self, name: &LockName, work: impl FnOnce(&mut Row, Instant) -> T) -> T {
        let mut rows = self.rows();
        let row = rows.entry(name.clone()).or_default();
        let now = Instant::now();
        row.expire(now);
        work(row, now)
    }
}

/// How long a waiter sleeps between two looks. The store tells nobody that a lock is free.
const LOOK: Duration = Duration::from_millis(20);

/// The way of one client to the table.
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

    async fn acquire(&self, AcquireRequest { claim, ttl, .. }: &AcquireRequest) -> Result<Acquisition> {
        // The validity counts from here: before the request is on its way.
        let sent = self.core.core()?.stamp();
        self.table.change(claim.name(), |row, now| {
            if row.withdrawn.iter().any(|(owner, _)| owner == claim.owner()) {
                return Err(Error::new(ErrorKind::Lost, "the claim was withdrawn before this request"));
            }
            let until = match row.lease {
                // A second copy of the request of whoever holds: the same grant, and at least the ttl that it asks for.
                Some((owner, until)) if owner == *claim.owner() => until.max(now + *ttl),
                Some((_, until)) => return Ok(Acquisition::Held { look_in: LOOK.min(until - now) }),
                None => {
                    row.token += 1;
                    now + *ttl
                }
            };
            row.lease = Some((*claim.owner(), until));
            Ok(Acquisition::Granted(Grant::new(
                FencingToken::new(row.token),
                Confirmation { ttl: *ttl, sent, place: PlaceNumber::NONE },
            )))
        })
    }

    async fn renew(&self, requests: &[RenewRequest], answers: &Answers) {
        let Ok(core) = self.core.core() else { return };
        for (index, request) in requests.iter().enumerate() {
            let sent = core.stamp();
            let answer = self.table.change(request.claim.name(), |row, now| match row.lease {
                Some((owner, until)) if owner == *request.claim.owner() => {
                    let asked = now + request.ttl;
                    let until = if request.extend == Extend::Exactly { asked } else { until.max(asked) };
                    row.lease = Some((owner, until));
                    Answer::Renewed(Confirmation { ttl: request.ttl, sent, place: PlaceNumber::NONE })
                }
                _ => Answer::Lost,
            });
            answers.put(index, answer);
        }
    }

    async fn release(&self, ReleaseRequest { claim, certainty, .. }: &ReleaseRequest) -> Result<Release> {
        Ok(self.table.change(claim.name(), |row, now| {
            if *certainty == Certainty::Unsure {
                row.withdrawn.push((*claim.owner(), now + WITHDRAWN_TTL));
            }
            match row.lease {
                Some((owner, _)) if owner == *claim.owner() => {
                    row.lease = None;
                    Release::Released
                }
                _ => Release::NotHeld,
            }
        }))
    }

    fn capabilities(&self) -> Capabilities {
        // Only what is better than the least that a backend can promise: the suite holds each to the truth.
        let mut capabilities = Capabilities::new("table");
        capabilities.scope = Scope::Process;
        capabilities.clock = StoreClock::MachineBoot;
        capabilities.ttl_granularity = Duration::from_nanos(1);
        capabilities.waiting = Waiting::Poll;
        capabilities.takeover_slack = Duration::from_millis(100);
        capabilities.fencing = "a counter in the row, which is never removed";
        capabilities.restart = Restart::KeepsNothing;
        capabilities.call_bound = Duration::from_millis(250);
        capabilities.exclusion_ends = &["somebody changes the table by hand"];
        capabilities
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions::default()
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let table = Table::default();
    // Two clients, as if they were two processes.
    let ann = leasehold::LockClient::new(TableBackend::new(&table));
    let bob = leasehold::LockClient::new(TableBackend::new(&table));

    let guard = ann.lock("orders/42").acquire().await?;
    println!("ann holds {}, fencing token {}", guard.name(), guard.fencing_token());
    assert!(bob.lock("orders/42").try_acquire().await?.is_none(), "one holder at a time");

    let lock = bob.lock("orders/42").wait(Duration::from_secs(5));
    let waiting = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let first = guard.fencing_token();
    guard.release().await?;

    let guard = waiting.await.expect("bob's task does not panic")?;
    println!("bob holds {}, fencing token {}", guard.name(), guard.fencing_token());
    assert!(guard.fencing_token() > first, "tokens rise");
    guard.release().await?;
    ann.shutdown().await?;
    bob.shutdown().await
}
