use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use leasehold_core::backend::{Claim, OwnerToken};
use leasehold_core::{HolderInfo, LockName};

use super::*;
use crate::connection::Role;
use crate::exchange::{Terms, Want};
use crate::manager::ConnectionManager;
use crate::settings::Settings;

type Told = PendingReply<Result<Answered>>;

const BOUND: Duration = Duration::from_secs(1);

/// Where nobody listens.
fn shared() -> Arc<Shared> {
    let client = redis::Client::open("redis://127.0.0.1:1").expect("a URL");
    Arc::new(Shared::new(&client, Settings::default()).expect("settings"))
}

fn request(number: u8, want: Want) -> Ask {
    static HOLDER: LazyLock<Arc<HolderInfo>> =
        LazyLock::new(|| Arc::new(HolderInfo::of_this_process("").expect("a label")));
    let name = LockName::new(format!("job{number}")).expect("a name");
    Ask { claim: Claim::new(name, OwnerToken::from_bytes([number; 16]), HOLDER.clone()), want }
}

fn acquire(number: u8, ttl: u64) -> Ask {
    request(number, Want::Acquire(Terms { ttl: Duration::from_secs(ttl), place: true }))
}

fn release(number: u8) -> Ask {
    request(number, Want::Release(None))
}

/// Whether a sender would be woken now. It then looks.
fn wakes(outbox: &Outbox) -> bool {
    pin!(outbox.wake.notified()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// An outbox whose connection is busy with a request that went alone, so that all others wait.
struct Busy<'a> {
    outbox: &'a Outbox,
    _alone: Vec<Alone<'a>>,
}

impl<'a> Busy<'a> {
    fn new(outbox: &'a Outbox) -> Self {
        let alone = (0..ALONE).map(|_| match outbox.put(release(0), Instant::now() + BOUND) {
            Put::Alone(alone, _) => alone,
            Put::Waits(_) => panic!("the connection is idle"),
        });
        Self { outbox, _alone: alone.collect() }
    }

    fn put(&self, ask: Ask) -> Told {
        self.put_until(ask, Instant::now() + BOUND)
    }

    fn put_until(&self, ask: Ask, until: Instant) -> Told {
        match self.outbox.put(ask, until) {
            Put::Waits(told) => told,
            Put::Alone(..) => panic!("the connection is busy"),
        }
    }
}

fn owners(letters: &[Letter]) -> Vec<u8> {
    letters.iter().map(|letter| letter.ask.claim.owner().as_bytes()[0]).collect()
}

/// The answer, if it is there.
fn answer(told: &mut Told) -> Option<Result<Answered>> {
    match Pin::new(told).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer.expect("nobody goes without an answer")),
        Poll::Pending => None,
    }
}

fn refused(told: &mut Told) -> ErrorKind {
    answer(told).expect("it is answered").err().expect("it was not sent").kind()
}

#[tokio::test]
async fn requests_leave_in_their_order_and_those_that_cannot_go_along_keep_theirs() {
    let (shared, outbox) = (shared(), Outbox::default());
    let busy = Busy::new(&outbox);
    let _told: Vec<_> = [acquire(1, 5), acquire(2, 9), release(3), acquire(4, 5), acquire(5, 9), release(6)]
        .map(|ask| busy.put(ask))
        .into();
    let (first, flight) = outbox.next(&shared).expect("it is due");
    assert_eq!(owners(&first), [1, 3, 4, 6]);
    drop(flight);
    let (second, _flight) = outbox.next(&shared).expect("it is due");
    assert_eq!(owners(&second), [2, 5]);
}

#[tokio::test]
async fn a_request_whose_caller_is_gone_is_not_sent() {
    let (shared, outbox) = (shared(), Outbox::default());
    let busy = Busy::new(&outbox);
    drop(busy.put(release(1)));
    let _told = busy.put(release(2));
    assert_eq!(owners(&outbox.next(&shared).expect("it is due").0), [2]);
}

#[tokio::test]
async fn a_sender_is_woken_whenever_a_call_is_due_and_none_is_about_to_look() {
    let (shared, outbox) = (shared(), Outbox::default());
    let busy = Busy::new(&outbox);
    let mut told = vec![busy.put(release(1))];
    assert!(wakes(&outbox), "the first that waits");
    told.push(busy.put(release(2)));
    assert!(!wakes(&outbox), "one is about to look already");
    let (_, first) = outbox.next(&shared).expect("it is due");
    told.push(busy.put(release(3)));
    assert!(!wakes(&outbox), "a second call waits until it is as large as the first");
    told.push(busy.put(release(4)));
    assert!(wakes(&outbox), "now it is");
    let (letters, second) = outbox.next(&shared).expect("it is due");
    assert_eq!(owners(&letters), [3, 4]);
    for number in 0..u8::try_from(CROWD).unwrap() - 1 {
        told.push(busy.put(release(number)));
    }
    assert!(!wakes(&outbox), "a third call carries a crowd");
    told.push(busy.put(release(99)));
    assert!(wakes(&outbox), "that is one");
    let (_, third) = outbox.next(&shared).expect("it is due");
    told.push(busy.put(release(100)));
    assert!(!wakes(&outbox));
    // The senders of calls that are back look by themselves, and count as about to.
    drop((first, second, third));
    told.push(busy.put(release(101)));
    assert!(!wakes(&outbox) && outbox.next(&shared).is_some());
    for _ in 0..3 {
        assert!(outbox.next(&shared).is_none(), "nothing waits");
    }
    told.push(busy.put(release(102)));
    assert!(wakes(&outbox), "all have looked: the next one is woken again");
}

#[tokio::test]
async fn more_than_fits_wakes_the_next_sender() {
    let (shared, outbox) = (shared(), Outbox::default());
    let busy = Busy::new(&outbox);
    let _told: Vec<_> = (0..=u8::try_from(2 * TOGETHER).unwrap()).map(|number| busy.put(release(number))).collect();
    assert!(wakes(&outbox));
    let (letters, _flight) = outbox.next(&shared).expect("it is due");
    assert_eq!(letters.len(), TOGETHER);
    assert!(wakes(&outbox), "as much waits again");
}

#[tokio::test]
async fn what_cannot_be_sent_within_its_bound_had_no_effect() {
    let outbox = Outbox::default();
    let busy = Busy::new(&outbox);
    let callers = async {
        // The watch finds nothing at first.
        tokio::task::yield_now().await;
        for _ in 0..2 {
            let soon = busy.put_until(release(1), Instant::now() + Duration::from_millis(20));
            let mut later = busy.put(release(2));
            let late =
                tokio::time::timeout(BOUND / 2, soon).await.expect("it is refused at its bound").expect("an answer");
            assert_eq!(late.err().expect("it was not sent").kind(), ErrorKind::Unavailable);
            assert!(answer(&mut later).is_none(), "its bound is later");
            outbox.refuse_all(&shut_down());
            // The watch sees that nothing waits.
            tokio::time::sleep(BOUND).await;
        }
    };
    tokio::select! {
        () = outbox.refuse_late() => panic!("it never ends"),
        () = callers => {}
    }
}

#[tokio::test]
async fn what_waits_when_connecting_fails_or_the_runtime_ends_had_no_effect() {
    let outbox = Outbox::default();
    let busy = Busy::new(&outbox);
    let mut told = busy.put(release(1));
    outbox.refuse_all(&Error::new(ErrorKind::Auth, "planted"));
    assert_eq!(refused(&mut told), ErrorKind::Auth);
    let mut told = busy.put(release(2));
    outbox.close();
    assert_eq!(refused(&mut told), ErrorKind::Unavailable);
    assert_eq!(refused(&mut busy.put(release(3))), ErrorKind::Unavailable, "nobody sends any more");
}

#[test]
fn a_line_whose_runtime_is_shut_down_answers_all_that_waits_and_says_so() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let manager = ConnectionManager::new(shared(), Role::Commands, runtime.handle());
    let inner = manager.inner().clone();
    let mut told = {
        let busy = Busy::new(&inner.outbox);
        busy.put(release(1))
    };
    assert!(!manager.is_stopped());
    drop(runtime);
    assert!(manager.is_stopped(), "another one has to take its place");
    assert_eq!(refused(&mut told), ErrorKind::Unavailable);
}
