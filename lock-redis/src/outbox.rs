//! Acquires and releases on their way out. One that finds the connection idle goes at once, from its own future; those
//! that find it busy wait here together and go out in one script call, as a group commit does.
//!
//! The price of a script call is much the same for one lock and for several, so what fencing and fairness cost is gone
//! under load, and no call is delayed when there is none.

use std::collections::VecDeque;
use std::sync::Mutex;

use lock_core::{Error, ErrorKind, Result};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::calls::{Answered, Ask, together};
use crate::conn::Conn;
use crate::errors::Failure;
use crate::line::Inner;
use crate::shared::{Shared, lock};

/// How many requests go out together: beyond that nothing is gained, and the server stands still for others meanwhile.
const TOGETHER: usize = 64;

/// How many calls may be under way that carry what has waited: one that the server works on, and one on the way.
const FLIGHTS: usize = 2;

/// How many requests may go out alone at a time. Below this number of callers waiting for each other gains nothing.
const ALONE: usize = 2;

#[derive(Default)]
pub(crate) struct Outbox {
    waiting: Mutex<Waiting>,
    wake: Notify,
}

#[derive(Default)]
struct Waiting {
    queue: VecDeque<Letter>,
    next: u64,
    /// How many requests are under way alone.
    alone: usize,
    /// How many went out together the last time.
    together: usize,
    /// How many calls are under way that carry what has waited, and how many requests are in them.
    flights: usize,
    flying: usize,
}

struct Letter {
    number: u64,
    ask: Ask,
    answer: oneshot::Sender<Result<Answered>>,
}

impl Inner {
    /// Asks the server, and ends by `until`.
    pub(crate) async fn ask(&self, ask: Ask, until: Instant) -> Result<Answered> {
        if let Some(_alone) = self.outbox.alone() {
            let conn = self.conn(until).await?;
            let mut answers = together(&self.shared, &conn, std::slice::from_ref(&ask), until).await;
            return answers.pop().unwrap_or_else(|| Err(Failure::Unreadable.into()));
        }
        let (answer, told) = oneshot::channel();
        let number = self.outbox.put(ask, answer);
        self.want();
        match timeout_at(until, told).await {
            Ok(Ok(answered)) => answered,
            Ok(Err(_)) => Err(Failure::closed().into()),
            Err(_) if self.outbox.take_back(number) => Err(Error::new(
                ErrorKind::Unavailable,
                "the request could not be sent within the bound (`timeout` in the URL)",
            )),
            Err(_) => Err(Failure::Silent.into()),
        }
    }
}

impl Waiting {
    /// Whether a call should leave. The second one waits until it is as large as the one that is under way, or until
    /// that one is back: else the first of many callers that were answered together would leave alone again.
    fn is_due(&self) -> bool {
        match self.flights {
            _ if self.queue.is_empty() => false,
            0 => true,
            FLIGHTS.. => false,
            _ => self.queue.len() >= self.flying.min(TOGETHER),
        }
    }
}

impl Outbox {
    fn alone(&self) -> Option<Alone<'_>> {
        let mut waiting = lock(&self.waiting);
        // Where many went out together, many will again: one that leaves before them costs as much as all of them.
        let few = waiting.together <= ALONE && waiting.alone < ALONE;
        let free = few && waiting.flights == 0 && waiting.queue.is_empty();
        waiting.alone += usize::from(free);
        free.then(|| Alone(self))
    }

    fn put(&self, ask: Ask, answer: oneshot::Sender<Result<Answered>>) -> u64 {
        let (number, due) = {
            let mut waiting = lock(&self.waiting);
            waiting.next += 1;
            let number = waiting.next;
            waiting.queue.push_back(Letter { number, ask, answer });
            (number, waiting.is_due())
        };
        if due {
            self.wake.notify_one();
        }
        number
    }

    /// Whether it was still here.
    fn take_back(&self, number: u64) -> bool {
        let mut waiting = lock(&self.waiting);
        let at = waiting.queue.iter().position(|letter| letter.number == number);
        at.and_then(|at| waiting.queue.remove(at)).is_some()
    }

    /// The letters that should leave now, and the flight that they are on: the oldest that can go together, which are
    /// releases, and acquires on the terms of the oldest one. The others keep their order. Letters whose sender has gone
    /// away are dropped: what was not sent has no effect.
    fn next(&self) -> Option<(Vec<Letter>, Flight<'_>)> {
        let mut waiting = lock(&self.waiting);
        if !waiting.is_due() {
            return None;
        }
        let mut letters = Vec::with_capacity(waiting.queue.len().min(TOGETHER));
        let mut others = Vec::new();
        let mut terms = None;
        while letters.len() < TOGETHER && others.len() < TOGETHER {
            let Some(letter) = waiting.queue.pop_front() else { break };
            let wanted = letter.ask.terms;
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
        waiting.flights += 1;
        waiting.flying += letters.len();
        waiting.together = letters.len();
        let flight = Flight { outbox: self, letters: letters.len() };
        if waiting.is_due() {
            self.wake.notify_one();
        }
        Some((letters, flight))
    }

    /// Answers everything that waits with an error: it was not sent.
    pub(crate) fn refuse_all(&self, why: &Error) {
        let letters = std::mem::take(&mut lock(&self.waiting).queue);
        for letter in letters {
            let _ = letter.answer.send(Err(why.clone()));
        }
    }

    /// Sends what waits, call after call, over this connection. It never depends on a caller that is not polled.
    pub(crate) async fn flush(&self, shared: &Shared, conn: &Conn) {
        loop {
            // Whoever was just answered may ask again in his next turn, and goes along.
            tokio::task::yield_now().await;
            let Some((letters, _flight)) = self.next() else {
                self.wake.notified().await;
                continue;
            };
            let (asks, senders): (Vec<_>, Vec<_>) =
                letters.into_iter().map(|letter| (letter.ask, letter.answer)).unzip();
            let until = Instant::now() + shared.bound();
            let answers = together(shared, conn, &asks, until).await;
            for (sender, answer) in senders.into_iter().zip(answers) {
                let _ = sender.send(answer);
            }
        }
    }
}

/// A request that is under way alone.
struct Alone<'a>(&'a Outbox);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        lock(&self.0.waiting).alone -= 1;
    }
}

/// A call that is under way with what has waited.
struct Flight<'a> {
    outbox: &'a Outbox,
    letters: usize,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut waiting = lock(&self.outbox.waiting);
        waiting.flights -= 1;
        waiting.flying -= self.letters;
        // Nobody is woken: whoever was on the flight looks for the next one himself.
    }
}
