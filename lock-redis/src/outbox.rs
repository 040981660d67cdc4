//! Acquires and releases on their way out. One that finds the connection idle goes at once, from its own future; those
//! that find it busy wait here together and go out in one script call, as a group commit does.
//!
//! The price of a script call is much the same for one lock and for several, so what fencing and fairness cost is gone
//! under load, and no call is delayed when there is none.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::{Error, ErrorKind, Result, Stamp};
use redis::Value;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::conn::{Conn, script_call};
use crate::errors::{Failure, refused};
use crate::line::Inner;
use crate::replies::{self, Acquired};
use crate::scripts::Script;
use crate::shared::{Shared, lock};

/// How many script calls of waiting requests may be under way at a time.
pub(crate) const FLUSHES: usize = 2;

/// How many requests go out together: beyond that nothing is gained, and the server stands still for others meanwhile.
const TOGETHER: usize = 64;

/// What is asked about one lock.
pub(crate) struct Ask {
    /// The record's key.
    pub(crate) key: String,
    pub(crate) owner: [u8; 16],
    pub(crate) what: What,
}

pub(crate) enum What {
    Acquire {
        ttl: Duration,
        leave: bool,
        holder: String,
    },
    /// With a time to remember, the owner is withdrawn.
    Release {
        remember: Duration,
    },
}

/// An answer, with the stamp from just before its request was sent.
pub(crate) struct Answered {
    pub(crate) sent: Stamp,
    pub(crate) answer: Told,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Told {
    Acquired(Acquired),
    Released(bool),
}

#[derive(Default)]
pub(crate) struct Outbox {
    waiting: Mutex<Waiting>,
    wake: Notify,
    /// How many calls are under way, alone or together.
    busy: AtomicUsize,
}

#[derive(Default)]
struct Waiting {
    queue: VecDeque<Letter>,
    next: u64,
}

struct Letter {
    number: u64,
    ask: Ask,
    answer: oneshot::Sender<Result<Answered>>,
}

impl Inner {
    /// Asks the server, and ends by `until`.
    pub(crate) async fn ask(&self, ask: Ask, until: Instant) -> Result<Answered> {
        if let Some(_turn) = self.outbox.turn_if_idle() {
            let conn = self.conn(until).await?;
            return together(&self.shared, &conn, std::slice::from_ref(&ask), until)
                .await
                .pop()
                .unwrap_or_else(|| Err(Failure::Unreadable.into()));
        }
        let (answer, told) = oneshot::channel();
        let number = self.outbox.put(ask, answer);
        match timeout_at(until, told).await {
            Ok(Ok(answered)) => answered,
            Ok(Err(_)) => Err(Failure::Silent.into()),
            Err(_) if self.outbox.take_back(number) => Err(Error::new(
                ErrorKind::Unavailable,
                "the request could not be sent within the bound (`timeout` in the URL): the connection is too busy",
            )),
            Err(_) => Err(Failure::Silent.into()),
        }
    }
}

impl Outbox {
    fn turn_if_idle(&self) -> Option<Turn<'_>> {
        self.busy.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).ok().map(|_| Turn(&self.busy))
    }

    fn put(&self, ask: Ask, answer: oneshot::Sender<Result<Answered>>) -> u64 {
        let number = {
            let mut waiting = lock(&self.waiting);
            waiting.next += 1;
            let number = waiting.next;
            waiting.queue.push_back(Letter { number, ask, answer });
            number
        };
        self.wake.notify_one();
        number
    }

    /// Whether it was still here.
    fn take_back(&self, number: u64) -> bool {
        let mut waiting = lock(&self.waiting);
        let at = waiting.queue.iter().position(|letter| letter.number == number);
        at.and_then(|at| waiting.queue.remove(at)).is_some()
    }

    /// The oldest letters. Those whose sender has gone away are dropped: what was not sent has no effect.
    fn next(&self) -> Vec<Letter> {
        let mut waiting = lock(&self.waiting);
        let mut letters = Vec::with_capacity(waiting.queue.len().min(TOGETHER));
        while letters.len() < TOGETHER {
            let Some(letter) = waiting.queue.pop_front() else { break };
            if !letter.answer.is_closed() {
                letters.push(letter);
            }
        }
        if !waiting.queue.is_empty() {
            self.wake.notify_one();
        }
        letters
    }
}

/// A call that is under way.
struct Turn<'a>(&'a AtomicUsize);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Sends what waits, call after call. It never depends on a caller that is not polled.
pub(crate) async fn flush(line: Arc<Inner>) {
    loop {
        line.outbox.wake.notified().await;
        let letters = line.outbox.next();
        if letters.is_empty() {
            continue;
        }
        line.outbox.busy.fetch_add(1, Ordering::AcqRel);
        let _turn = Turn(&line.outbox.busy);
        let until = Instant::now() + line.shared.bound();
        let conn = match line.conn(until).await {
            Ok(conn) => conn,
            Err(why) => {
                for letter in letters {
                    let _ = letter.answer.send(Err(why.clone()));
                }
                continue;
            }
        };
        let (asks, senders): (Vec<_>, Vec<_>) = letters.into_iter().map(|letter| (letter.ask, letter.answer)).unzip();
        let answers = together(&line.shared, &conn, &asks, until).await;
        for (sender, answer) in senders.into_iter().zip(answers) {
            let _ = sender.send(answer);
        }
    }
}

/// Sends several requests, acquires in one script call and releases in another, and answers each.
async fn together(shared: &Shared, conn: &Conn, asks: &[Ask], until: Instant) -> Vec<Result<Answered>> {
    let longest = asks.iter().map(|ask| match ask.what {
        What::Acquire { ttl, .. } => ttl,
        What::Release { .. } => Duration::ZERO,
    });
    let wait = match conn.prepare(longest.max().unwrap_or_default(), until).await {
        Ok(wait) => wait,
        Err(why) => return asks.iter().map(|_| Err(why.clone())).collect(),
    };
    let is_acquire = |ask: &&Ask| matches!(ask.what, What::Acquire { .. });
    let acquires = async {
        let count = asks.iter().filter(is_acquire).count();
        match wait {
            _ if count == 0 => Vec::new(),
            Some(wait) => (0..count).map(|_| Err(quarantined(shared, wait))).collect(),
            None => {
                let call = Call::new(shared, conn, &shared.scripts.acquire, asks.iter().filter(is_acquire), true);
                call.answers(until, replies::acquired, Told::Acquired).await
            }
        }
    };
    let releases = async {
        let releases = asks.iter().filter(|ask| !is_acquire(ask));
        match releases.clone().count() {
            0 => Vec::new(),
            _ => {
                let call = Call::new(shared, conn, &shared.scripts.release, releases, wait.is_none());
                call.answers(until, replies::released, Told::Released).await
            }
        }
    };
    let (acquires, releases) = tokio::join!(acquires, releases);
    let (mut acquires, mut releases) = (acquires.into_iter(), releases.into_iter());
    asks.iter()
        .map(|ask| if is_acquire(&ask) { acquires.next() } else { releases.next() })
        .map(|answer| answer.unwrap_or_else(|| Err(Failure::Unreadable.into())))
        .collect()
}

pub(crate) fn quarantined(shared: &Shared, wait: Duration) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "the server at {} was restarted and may have forgotten leases: no new grants for another {} ms, until those \
             have ended (`restart=trust` in the URL does not wait)",
            shared.address,
            wait.as_millis()
        ),
    )
}

/// One script call about several locks.
struct Call<'a> {
    shared: &'a Shared,
    conn: &'a Conn,
    script: &'a Script,
    command: redis::Cmd,
    count: usize,
}

impl<'a> Call<'a> {
    fn new<'b>(
        shared: &'a Shared,
        conn: &'a Conn,
        script: &'a Script,
        asks: impl Iterator<Item = &'b Ask> + Clone,
        grants: bool,
    ) -> Self {
        let count = asks.clone().count();
        let mut command = script_call(script, count);
        for ask in asks.clone() {
            command.arg(&ask.key);
        }
        command.arg(&shared.retention).arg(shared.keys.told(grants));
        for ask in asks {
            match &ask.what {
                What::Acquire { ttl, leave, holder } => {
                    let ms = i64::from(millis(*ttl));
                    command.arg(if *leave { -ms } else { ms });
                    command.arg(&[&ask.owner, holder.as_bytes()].concat());
                }
                What::Release { remember } if remember.is_zero() => {
                    command.arg(&ask.owner);
                }
                What::Release { remember } => {
                    command.arg(&[&ask.owner[..], &millis(*remember).to_be_bytes()].concat());
                }
            }
        }
        Self { shared, conn, script, command, count }
    }

    async fn answers<T>(
        self,
        until: Instant,
        read: impl FnOnce(Value, usize) -> Option<(i64, Vec<replies::PerLock<T>>)>,
        tell: impl Fn(T) -> Told,
    ) -> Vec<Result<Answered>> {
        let all = |why: Error| (0..self.count).map(|_| Err(why.clone())).collect();
        let core = match self.shared.core() {
            Ok(core) => core,
            Err(why) => return all(why),
        };
        let sent = core.stamp();
        let value = match self.conn.run(self.script, &self.command, until).await {
            Ok(value) => value,
            Err(failure) => return all(failure.into()),
        };
        let Some((time, answers)) = read(value, self.count) else { return all(Failure::Unreadable.into()) };
        self.shared.server_clock.saw(time, sent, core.stamp());
        answers
            .into_iter()
            .map(|answer| match answer {
                Ok(answer) => Ok(Answered { sent, answer: tell(answer) }),
                Err(text) => Err(refused(&text)),
            })
            .collect()
    }
}

/// In whole milliseconds, rounded up. The longest ttl is a fiftieth of what fits.
pub(crate) fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)
}
