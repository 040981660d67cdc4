//! What a client refuses, and its messages: the bounds of every input, the texts of errors, and the bounds of slow
//! calls.

mod support;

use std::error::Error as _;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use leasehold_core::admin::{Check, Listing};
use leasehold_core::backend::{
    AcquireOutcome, AcquireRequest, Admin, Capabilities, CoreHandle, LockBackend, NoAdmin, ReleaseOutcome,
    ReleaseRequest, RenewReplies, RenewRequest, WatchNames, async_trait,
};
use leasehold_core::memory::{MemoryBackend, MemoryStore};
use leasehold_core::{
    Error, ErrorKind, FencingToken, HolderInfo, KeeperRuntime, LockClient, LockInfo, LockName, Loss, LossReason, Result,
};
use support::eventually;

fn client() -> LockClient {
    LockClient::new(MemoryBackend::new(&MemoryStore::default()))
}

fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

const NS: Duration = Duration::from_nanos(1);

#[tokio::test]
async fn every_bound_of_an_acquire_is_inclusive() {
    let client = client();
    let Capabilities { min_ttl, max_ttl, .. } = client.capabilities();
    let name = std::sync::atomic::AtomicU32::new(0);
    let lock = || client.lock(format!("job {}", name.fetch_add(1, Ordering::Relaxed)));
    let hold = Duration::from_secs(5);
    for good in [
        lock().ttl(min_ttl),
        lock().ttl(max_ttl),
        lock().min_hold(max_ttl),
        lock().min_hold(hold).max_hold(hold),
        client.lock("x".repeat(LockName::MAX_BYTES)),
    ] {
        assert_eq!(kind(good.try_acquire().await), None, "{good:?}");
    }
    for bad in [
        lock().ttl(min_ttl - NS),
        lock().ttl(max_ttl + NS),
        lock().min_hold(max_ttl + NS),
        lock().min_hold(hold + NS).max_hold(hold),
        lock().max_hold(Duration::ZERO),
        client.lock("x".repeat(LockName::MAX_BYTES + 1)),
        client.lock(""),
    ] {
        assert_eq!(kind(bad.try_acquire().await), Some(ErrorKind::InvalidInput), "{bad:?}");
    }
}

#[tokio::test]
async fn every_bound_of_a_list_is_inclusive() {
    let client = client();
    for limit in [1, Listing::MAX] {
        assert_eq!(kind(client.list("", limit).await), None, "{limit}");
    }
    for limit in [0, Listing::MAX + 1] {
        assert_eq!(kind(client.list("", limit).await), Some(ErrorKind::InvalidInput), "{limit}");
    }
    assert_eq!(kind(client.examine().await), Some(ErrorKind::Unsupported));
}

#[test]
fn every_bound_of_a_client_is_inclusive() {
    let builder = || LockClient::builder(MemoryBackend::new(&MemoryStore::default()));
    let longest = HolderInfo::MAX_LABEL_BYTES;
    for (percent, label, expected) in [
        (1, longest, None),
        (50, 0, None),
        (0, 0, Some(ErrorKind::InvalidInput)),
        (51, 0, Some(ErrorKind::InvalidInput)),
        (10, longest + 1, Some(ErrorKind::InvalidInput)),
    ] {
        let built = builder().margin_percent(percent).label("x".repeat(label)).build();
        assert_eq!(kind(built), expected, "{percent} %, {label} bytes");
    }
    let hour = Duration::from_secs(3600);
    for (call_bound, expected) in [
        (hour, None),
        (hour + Duration::from_secs(1), Some(ErrorKind::InvalidInput)),
        (Duration::MAX, Some(ErrorKind::InvalidInput)),
    ] {
        let slow = Slow { call_bound, ..Slow::default() };
        assert_eq!(kind(LockClient::builder(slow).build()), expected, "{call_bound:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn holder_information_names_the_host() {
    let host = HolderInfo::of_this_process("").unwrap().host;
    assert_eq!(host, std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim());
}

#[test]
fn an_error_says_what_it_was_about() {
    let name = LockName::new("orders/42").unwrap();
    let error = Error::new(ErrorKind::Unavailable, "no reply").with_source(std::io::Error::other("refused"));
    assert_eq!((error.lock(), error.backend()), (None, None));
    let error = error.during("acquire", &name, "redis");
    assert_eq!((error.lock(), error.backend()), (Some(&name), Some("redis")));
    assert_eq!(error.to_string(), "cannot acquire lock \"orders/42\" on redis: no reply");
    assert_eq!(error.source().unwrap().to_string(), "refused");
    let debug = format!("{error:?}");
    assert!(debug.contains("Unavailable") && debug.contains("refused"), "{debug}");
    assert_eq!(format!("{name}, token {}", FencingToken::new(7)), "orders/42, token 7");
}

#[tokio::test]
async fn a_loss_says_why() {
    let client = client();
    let guard = client.lock("job").acquire().await.unwrap();
    client.shutdown().await.unwrap();
    let loss: Loss = guard.lost().await;
    assert_eq!((loss.reason, &*loss.to_string()), (LossReason::Shutdown, "the client was shut down"));
}

/// A backend whose reads take a while. It notes when one was dropped.
#[derive(Clone, Debug, Default)]
struct Slow {
    call_bound: Duration,
    takes: Duration,
    started: Arc<AtomicBool>,
    dropped: Arc<AtomicBool>,
}

struct NoteDrop(Arc<AtomicBool>);

impl Drop for NoteDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[async_trait]
impl LockBackend for Slow {
    fn attach(&self, _: CoreHandle) {}

    async fn acquire(&self, _: &AcquireRequest) -> Result<AcquireOutcome> {
        std::future::pending().await
    }

    async fn renew(&self, _: &[RenewRequest], _: &RenewReplies) {}

    async fn release(&self, _: &ReleaseRequest) -> Result<ReleaseOutcome> {
        Ok(ReleaseOutcome::NotHeld)
    }

    fn capabilities(&self) -> Capabilities {
        let mut it = Capabilities::new("slow");
        it.call_bound = self.call_bound;
        it
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }

    fn watch_names(&self) -> Option<&dyn WatchNames> {
        None
    }
}

#[async_trait]
impl Admin for Slow {
    async fn inspect(&self, _: &LockName) -> Result<Option<LockInfo>> {
        let _note = NoteDrop(self.dropped.clone());
        self.started.store(true, Ordering::SeqCst);
        tokio::time::sleep(self.takes).await;
        Ok(None)
    }

    async fn list(&self, _: &str, _: usize) -> Result<Listing> {
        tokio::time::sleep(self.takes).await;
        Ok(Listing::default())
    }

    async fn break_lock(&self, name: &LockName, token: FencingToken) -> Result<Option<FencingToken>> {
        NoAdmin.break_lock(name, token).await
    }

    async fn examine(&self) -> Result<Vec<Check>> {
        NoAdmin.examine().await
    }
}

#[tokio::test]
async fn what_a_backend_lacks_is_unsupported() {
    let (name, token) = (LockName::new("job").unwrap(), FencingToken::new(1));
    let kinds = [
        kind(NoAdmin.inspect(&name).await),
        kind(NoAdmin.list("", 1).await),
        kind(NoAdmin.break_lock(&name, token).await),
        kind(NoAdmin.examine().await),
    ];
    assert_eq!(kinds, [Some(ErrorKind::Unsupported); 4]);
    let refused = client().examine().await.unwrap_err();
    assert_eq!(refused.to_string(), "this backend cannot examine its store");
}

/// An inspection may take 1.25 call bounds, and a list ten times that.
#[tokio::test(start_paused = true)]
async fn reads_end_within_their_bounds() {
    let second = Duration::from_secs(1);
    for (takes, inspected, listed) in [
        (second, None, None),
        (second * 12, Some(ErrorKind::Unavailable), None),
        (second * 13, Some(ErrorKind::Unavailable), Some(ErrorKind::Unavailable)),
    ] {
        let slow = Slow { call_bound: second, takes, ..Slow::default() };
        let client = LockClient::builder(slow).keeper(KeeperRuntime::CurrentRuntime).build().unwrap();
        assert_eq!(kind(client.inspect("job").await), inspected, "{takes:?}");
        assert_eq!(kind(client.list("", 1).await), listed, "{takes:?}");
    }
}

/// Without tokio a call runs on the keeper's runtime. It is dropped there if its caller drops it.
#[test]
fn a_call_that_is_dropped_elsewhere_ends() {
    let slow = Slow { call_bound: Duration::from_secs(60), takes: Duration::from_secs(60), ..Slow::default() };
    let client = LockClient::builder(slow.clone()).build().unwrap();
    {
        let mut inspection = pin!(client.inspect("job"));
        assert!(inspection.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        eventually("the call begins", || slow.started.load(Ordering::SeqCst));
        assert!(!slow.dropped.load(Ordering::SeqCst));
    }
    eventually("the call ends", || slow.dropped.load(Ordering::SeqCst));
}

/// A backend behind an `Arc` is a backend too.
#[tokio::test]
async fn a_backend_behind_an_arc_keeps_its_verbs() {
    let store = MemoryStore::default();
    let client = LockClient::builder(Arc::new(MemoryBackend::new(&store))).ttl(Duration::from_secs(3)).build().unwrap();
    let guard = client.lock("job").acquire().await.unwrap();
    eventually("it is renewed", || client.stats().renewed > 0);
    guard.release().await.unwrap();
    assert_eq!(store.resource_counts().leases, 0);
}

#[test]
fn the_worst_takeover_counts_the_renewal_of_a_place() {
    let memory = client().capabilities();
    let ttl = Duration::from_secs(6);
    assert_eq!(memory.takeover_at_worst(ttl), memory.takeover_slack + ttl / 3);
    assert_eq!(memory.takeover_at_worst(ttl * 100), memory.takeover_slack + memory.max_place_ttl / 3);
    let polls = Capabilities::new("polls");
    assert_eq!(polls.takeover_at_worst(ttl), polls.takeover_slack);
}
