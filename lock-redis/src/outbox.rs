//! Acquires and releases on their way out. One that finds the connection idle goes at once, from its own future; those
//! that find it busy wait here together and go out in one script call, as a group commit does.
//!
//! The price of a script call is much the same for one lock and for several, so what fencing and fairness cost is gone
//! under load, and no call is delayed when there is none.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use lock_core::{Error, ErrorKind, Result};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::calls::{Answered, Ask, together};
use crate::errors::Failure;
use crate::line::Inner;
use crate::shared::lock;

/// How many calls about waiting requests may be under way at a time.
pub(crate) const FLUSHES: usize = 2;

/// How many requests go out together: beyond that nothing is gained, and the server stands still for others meanwhile.
const TOGETHER: usize = 64;

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
            let mut answers = together(&self.shared, &conn, std::slice::from_ref(&ask), until).await;
            return answers.pop().unwrap_or_else(|| Err(Failure::Unreadable.into()));
        }
        let (answer, told) = oneshot::channel();
        let number = self.outbox.put(ask, answer);
        match timeout_at(until, told).await {
            Ok(Ok(answered)) => answered,
            Ok(Err(_)) => Err(Failure::Silent.into()),
            Err(_) if self.outbox.take_back(number) => Err(Error::new(
                ErrorKind::Unavailable,
                "the request could not be sent within the bound (`timeout` in the URL)",
            )),
            Err(_) => Err(Failure::Silent.into()),
        }
    }
}

impl Outbox {
    fn turn_if_idle(&self) -> Option<Turn<'_>> {
        self.busy.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).ok().map(|_| Turn(&self.busy))
    }

    fn turn(&self) -> Turn<'_> {
        self.busy.fetch_add(1, Ordering::AcqRel);
        Turn(&self.busy)
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

    /// The oldest letters that can go together: releases, and acquires on the terms of the oldest one. The others keep
    /// their order. Letters whose sender has gone away are dropped: what was not sent has no effect.
    fn next(&self) -> Vec<Letter> {
        let mut waiting = lock(&self.waiting);
        let mut letters = Vec::with_capacity(waiting.queue.len().min(TOGETHER));
        let mut others = Vec::new();
        let mut terms = None;
        while letters.len() < TOGETHER && others.len() < TOGETHER {
            let Some(letter) = waiting.queue.pop_front() else { break };
            let wanted = letter.ask.terms();
            if letter.answer.is_closed() {
                continue;
            } else if wanted.is_none() || terms.is_none() || terms == wanted {
                terms = terms.or(wanted);
                letters.push(letter);
            } else {
                others.push(letter);
            }
        }
        for letter in others.into_iter().rev() {
            waiting.queue.push_front(letter);
        }
        if !waiting.queue.is_empty() {
            self.wake.notify_one();
        }
        letters
    }

    /// Everything that waits.
    fn all(&self) -> VecDeque<Letter> {
        std::mem::take(&mut lock(&self.waiting).queue)
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
        let _turn = line.outbox.turn();
        let until = Instant::now() + line.shared.bound();
        // What waits for the connection is still here, and can be taken back.
        let conn = match line.conn(until).await {
            Ok(conn) => conn,
            Err(why) => {
                for letter in line.outbox.all() {
                    let _ = letter.answer.send(Err(why.clone()));
                }
                continue;
            }
        };
        let (asks, senders): (Vec<_>, Vec<_>) =
            line.outbox.next().into_iter().map(|letter| (letter.ask, letter.answer)).unzip();
        if asks.is_empty() {
            continue;
        }
        let until = Instant::now() + line.shared.bound();
        let answers = together(&line.shared, &conn, &asks, until).await;
        for (sender, answer) in senders.into_iter().zip(answers) {
            let _ = sender.send(answer);
        }
    }
}
