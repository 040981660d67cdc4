use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use leasehold_core::backend::kit::TlsFiles;
use leasehold_core::backend::{Claim, OwnerToken};
use leasehold_core::{HolderInfo, LockName};

use super::*;
use crate::connection::Role;
use crate::endpoint::Endpoint;
use crate::exchange::{AcquireOptions, Operation, Reply, Request};
use crate::manager::ConnectionManager;
use crate::settings::Settings;

type Pending = PendingReply<Result<Reply>>;

const BOUND: Duration = Duration::from_secs(1);

/// A server address on which nothing listens.
fn shared() -> Arc<Shared> {
    let client = redis::Client::open("redis://127.0.0.1:1").expect("a URL");
    let settings = Settings::default();
    let endpoint = Endpoint::new(&client, TlsFiles::default(), settings.timeout, settings.connect_timeout);
    Arc::new(Shared::new(endpoint.expect("an address"), settings))
}

fn request(number: u8, operation: Operation) -> Request {
    static HOLDER: LazyLock<Arc<HolderInfo>> =
        LazyLock::new(|| Arc::new(HolderInfo::of_this_process("").expect("a label")));
    let name = LockName::new(format!("job{number}")).expect("a name");
    Request { claim: Claim::new(name, OwnerToken::from_bytes([number; 16]), HOLDER.clone()), operation }
}

fn acquire(number: u8, ttl: u64) -> Request {
    request(number, Operation::Acquire(AcquireOptions { ttl: Duration::from_secs(ttl), queue: true }))
}

fn release(number: u8) -> Request {
    request(number, Operation::Release(None))
}

/// Whether a sender would be woken now. It then checks the queue.
fn wakes(batcher: &Batcher) -> bool {
    pin!(batcher.wake.notified()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// A batcher whose connection is busy with unbatched requests, so that all others wait.
struct Busy<'a> {
    batcher: &'a Batcher,
    _unbatched: Vec<Unbatched<'a, Shared>>,
}

impl<'a> Busy<'a> {
    fn new(batcher: &'a Batcher) -> Self {
        let unbatched = (0..MAX_UNBATCHED).map(|_| match batcher.enqueue(release(0), Instant::now() + BOUND) {
            Enqueued::SendNow(unbatched, _) => unbatched,
            Enqueued::Queued(_) => panic!("the connection is idle"),
        });
        Self { batcher, _unbatched: unbatched.collect() }
    }

    fn enqueue(&self, request: Request) -> Pending {
        self.enqueue_until(request, Instant::now() + BOUND)
    }

    fn enqueue_until(&self, request: Request, until: Instant) -> Pending {
        match self.batcher.enqueue(request, until) {
            Enqueued::Queued(reply) => reply,
            Enqueued::SendNow(..) => panic!("the connection is busy"),
        }
    }
}

fn owners(batch: &[QueuedRequest<Shared>]) -> Vec<u8> {
    batch.iter().map(|queued| queued.request.claim.owner().as_bytes()[0]).collect()
}

/// The reply, if it has arrived.
fn poll_reply(reply: &mut Pending) -> Option<Result<Reply>> {
    match Pin::new(reply).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => Some(reply.expect("every caller gets a reply")),
        Poll::Pending => None,
    }
}

fn refused(reply: &mut Pending) -> ErrorKind {
    poll_reply(reply).expect("a reply").err().expect("it was not sent").kind()
}

#[tokio::test]
async fn requests_are_sent_in_order_and_those_that_cannot_share_a_call_keep_theirs() {
    let (shared, batcher) = (shared(), Batcher::default());
    let busy = Busy::new(&batcher);
    let _pending: Vec<_> = [acquire(1, 5), acquire(2, 9), release(3), acquire(4, 5), acquire(5, 9), release(6)]
        .map(|request| busy.enqueue(request))
        .into();
    let (first, in_flight) = batcher.next(&shared).expect("it is due");
    assert_eq!(owners(&first), [1, 3, 4, 6]);
    drop(in_flight);
    let (second, _in_flight) = batcher.next(&shared).expect("it is due");
    assert_eq!(owners(&second), [2, 5]);
}

#[tokio::test]
async fn a_request_whose_caller_is_gone_is_not_sent() {
    let (shared, batcher) = (shared(), Batcher::default());
    let busy = Busy::new(&batcher);
    drop(busy.enqueue(release(1)));
    let _pending = busy.enqueue(release(2));
    assert_eq!(owners(&batcher.next(&shared).expect("it is due").0), [2]);
}

#[tokio::test(start_paused = true)]
async fn a_request_fails_at_its_own_time_behind_one_with_more_time() {
    let batcher = Batcher::default();
    let busy = Busy::new(&batcher);
    let mut long = busy.enqueue_until(release(1), Instant::now() + 4 * BOUND);
    let mut short = busy.enqueue_until(release(2), Instant::now() + BOUND);
    let _ = tokio::time::timeout(2 * BOUND, batcher.fail_overdue()).await;
    assert_eq!(refused(&mut short), ErrorKind::Unavailable);
    assert!(poll_reply(&mut long).is_none(), "it has more time");
}

#[tokio::test]
async fn a_sender_is_woken_whenever_a_batch_is_due_and_none_is_about_to_check() {
    let (shared, batcher) = (shared(), Batcher::default());
    let busy = Busy::new(&batcher);
    let mut pending = vec![busy.enqueue(release(1))];
    assert!(wakes(&batcher), "the first that waits");
    pending.push(busy.enqueue(release(2)));
    assert!(!wakes(&batcher), "one is about to check already");
    let (_, first) = batcher.next(&shared).expect("it is due");
    pending.push(busy.enqueue(release(3)));
    assert!(!wakes(&batcher), "a second call waits until it is as large as the first");
    pending.push(busy.enqueue(release(4)));
    assert!(wakes(&batcher), "now it is");
    let (batch, second) = batcher.next(&shared).expect("it is due");
    assert_eq!(owners(&batch), [3, 4]);
    for number in 0..u8::try_from(MIN_BATCH).unwrap() - 1 {
        pending.push(busy.enqueue(release(number)));
    }
    assert!(!wakes(&batcher), "a third batch needs a minimal size");
    pending.push(busy.enqueue(release(99)));
    assert!(wakes(&batcher), "it has that size");
    let (_, third) = batcher.next(&shared).expect("it is due");
    pending.push(busy.enqueue(release(100)));
    assert!(!wakes(&batcher));
    // The senders of returned batches check the queue by themselves, and count as about to.
    drop((first, second, third));
    pending.push(busy.enqueue(release(101)));
    assert!(!wakes(&batcher) && batcher.next(&shared).is_some());
    for _ in 0..3 {
        assert!(batcher.next(&shared).is_none(), "nothing waits");
    }
    pending.push(busy.enqueue(release(102)));
    assert!(wakes(&batcher), "all have checked: the next one is woken again");
}

#[tokio::test]
async fn more_than_a_batch_wakes_the_next_sender() {
    let (shared, batcher) = (shared(), Batcher::default());
    let busy = Busy::new(&batcher);
    let _pending: Vec<_> =
        (0..=u8::try_from(2 * MAX_BATCH).unwrap()).map(|number| busy.enqueue(release(number))).collect();
    assert!(wakes(&batcher));
    let (batch, _in_flight) = batcher.next(&shared).expect("it is due");
    assert_eq!(batch.len(), MAX_BATCH);
    assert!(wakes(&batcher), "as much is queued again");
}

#[tokio::test]
async fn a_request_that_is_not_sent_within_its_bound_has_no_effect() {
    let batcher = Batcher::default();
    let busy = Busy::new(&batcher);
    let callers = async {
        // The task first finds the queue empty.
        tokio::task::yield_now().await;
        for _ in 0..2 {
            let soon = busy.enqueue_until(release(1), Instant::now() + Duration::from_millis(20));
            let mut later = busy.enqueue(release(2));
            let late = tokio::time::timeout(BOUND / 2, soon).await.expect("it fails at its bound").expect("a reply");
            assert_eq!(late.err().expect("it was not sent").kind(), ErrorKind::Unavailable);
            assert!(poll_reply(&mut later).is_none(), "its bound is later");
            batcher.fail_all(&shut_down());
            // The task finds the queue empty.
            tokio::time::sleep(BOUND).await;
        }
    };
    tokio::select! {
        () = batcher.fail_overdue() => panic!("it never returns"),
        () = callers => {}
    }
}

#[tokio::test]
async fn a_queued_request_has_no_effect_when_connecting_fails_or_the_runtime_ends() {
    let batcher = Batcher::default();
    let busy = Busy::new(&batcher);
    let mut reply = busy.enqueue(release(1));
    batcher.fail_all(&Error::new(ErrorKind::Auth, "planted"));
    assert_eq!(refused(&mut reply), ErrorKind::Auth);
    let mut reply = busy.enqueue(release(2));
    batcher.close();
    assert_eq!(refused(&mut reply), ErrorKind::Unavailable);
    assert_eq!(refused(&mut busy.enqueue(release(3))), ErrorKind::Unavailable, "nobody sends any more");
}

#[test]
fn a_manager_whose_runtime_is_shut_down_fails_all_queued_requests_and_is_stopped() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let manager = ConnectionManager::new(shared(), Role::Commands, runtime.handle());
    let inner = manager.inner().clone();
    let mut reply = {
        let busy = Busy::new(&inner.batcher);
        busy.enqueue(release(1))
    };
    assert!(!manager.is_stopped());
    drop(runtime);
    assert!(manager.is_stopped(), "a new manager has to replace it");
    assert_eq!(refused(&mut reply), ErrorKind::Unavailable);
}
