//! Acquires and releases on their way out. One that finds the connection idle goes at once, from its own future; those
//! that find it busy wait here together and go out in one script call, as a group commit does.
//!
//! The price of a script call is much the same for one lock and for several, so what fencing and fairness cost is gone
//! under load, and no call is delayed when there is none.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Mutex;

use leasehold_core::{Error, ErrorKind, Result};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::connection::Connection;
use crate::errors::Failure;
use crate::exchange::{Answered, Ask, together};
use crate::manager::Inner;
use crate::reply::{Callers, PendingReply, ReplySender, reply};
use crate::shared::{Shared, lock};

/// How many requests go out together: beyond that nothing is gained, and the server stands still for others meanwhile.
const TOGETHER: usize = 64;

/// How many calls may be under way that carry what has waited: the server works on one, and with many callers the next
/// one and the answers to the last are on their way meanwhile.
const FLIGHTS: usize = 4;

/// How many requests a third call and any further one carry at least. Two small ones cost more than one that is twice as large.
const CROWD: usize = TOGETHER / 2;

/// How many requests may go out alone at a time. Below this number of callers waiting for each other gains nothing.
const ALONE: usize = 2;

#[derive(Default)]
pub(crate) struct Outbox {
    waiting: Mutex<Waiting>,
    /// A sender should look.
    wake: Notify,
    /// Something waits again, and its bound has to be kept.
    begun: Notify,
}

#[derive(Default)]
struct Waiting {
    /// In the order of their bounds.
    queue: VecDeque<Letter>,
    /// Whether [`Outbox::refuse_late`] looks after the queue.
    watched: bool,
    /// Nobody sends any more.
    closed: bool,
    /// How many requests are under way alone.
    alone: usize,
    /// How many went out together the last time.
    together: usize,
    /// How many calls are under way that carry what has waited, and how many requests are in them.
    flights: usize,
    flying: usize,
    /// How many senders are about to look at the queue: nobody has to be woken for it.
    looking: usize,
}

/// How a request goes out.
enum Put<'a> {
    Alone(Alone<'a>, Ask),
    Waits(PendingReply<Result<Answered>>),
}

struct Letter {
    ask: Ask,
    until: Instant,
    answer: ReplySender<Result<Answered>>,
}

impl Inner {
    /// Asks the server, and ends by `until`.
    pub(crate) async fn ask(&self, ask: Ask, until: Instant) -> Result<Answered> {
        match self.outbox.put(ask, until) {
            // On the heap, so that the future of a caller who waits is small.
            Put::Alone(alone, ask) => Box::pin(self.ask_alone(ask, until, alone)).await,
            Put::Waits(told) => {
                self.request_connection();
                // Whoever sends keeps to the bound, for all at once: a timer for each would cost more than the rest of this.
                told.await.unwrap_or_else(|| Err(Failure::aborted().into()))
            }
        }
    }

    async fn ask_alone(&self, ask: Ask, until: Instant, _alone: Alone<'_>) -> Result<Answered> {
        let connection = self.connection(until).await?;
        let mut answers = together(&self.shared, &connection, std::slice::from_ref(&ask), until).await;
        answers.pop().unwrap_or_else(|| Err(Failure::UnexpectedReply.into()))
    }
}

impl Waiting {
    /// Whether a call should leave. The second one waits until it is as large as the one that is under way, or until
    /// that one is back: else the first of many callers that were answered together would leave alone again.
    fn is_due(&self) -> bool {
        match self.flights {
            _ if self.queue.is_empty() => false,
            0 => true,
            1 => self.queue.len() >= self.flying,
            FLIGHTS.. => false,
            _ => self.queue.len() >= CROWD,
        }
    }

    /// Whether a sender has to be woken, who then looks.
    fn wants_sender(&mut self) -> bool {
        let wanted = self.looking == 0 && self.is_due();
        self.looking += usize::from(wanted);
        wanted
    }
}

impl Outbox {
    /// Takes a request, unless it should leave alone.
    fn put(&self, ask: Ask, until: Instant) -> Put<'_> {
        let mut waiting = lock(&self.waiting);
        // Where many went out together, many will again: one that leaves before them costs as much as all of them.
        let few = waiting.together <= ALONE && waiting.alone < ALONE;
        if few && waiting.flights == 0 && waiting.queue.is_empty() {
            waiting.alone += 1;
            return Put::Alone(Alone(self), ask);
        }
        let (answer, told) = reply();
        if waiting.closed {
            answer.send(Err(shut_down()), &mut Callers::default());
            return Put::Waits(told);
        }
        waiting.queue.push_back(Letter { ask, until, answer });
        let (wanted, begun) = (waiting.wants_sender(), !std::mem::replace(&mut waiting.watched, true));
        drop(waiting);
        if wanted {
            self.wake.notify_one();
        }
        if begun {
            self.begun.notify_one();
        }
        Put::Waits(told)
    }

    /// The letters that should leave now, and the flight that they are on: the oldest that can go together, which are
    /// releases, and acquires on the terms of the oldest one. The others keep their order. Letters whose sender has gone
    /// away are dropped: what was not sent has no effect.
    fn next(&self, shared: &Shared) -> Option<(Vec<Letter>, Flight<'_>)> {
        let mut waiting = lock(&self.waiting);
        // A sender may also have been woken over the connection before.
        waiting.looking = waiting.looking.saturating_sub(1);
        if !waiting.is_due() {
            return None;
        }
        let mut letters: Vec<Letter> = Vec::with_capacity(waiting.queue.len().min(TOGETHER));
        let mut others = Vec::new();
        let mut first: Option<usize> = None;
        while letters.len() < TOGETHER && others.len() < TOGETHER {
            let Some(letter) = waiting.queue.pop_front() else { break };
            if letter.answer.is_abandoned() {
                continue;
            }
            if letter.ask.is_acquire() {
                if first.is_some_and(|first| !letters[first].ask.goes_with(&letter.ask, shared)) {
                    others.push(letter);
                    continue;
                }
                first.get_or_insert(letters.len());
            }
            letters.push(letter);
        }
        for letter in others.into_iter().rev() {
            waiting.queue.push_front(letter);
        }
        waiting.flights += 1;
        waiting.flying += letters.len();
        waiting.together = letters.len();
        let flight = Flight { outbox: self, letters: letters.len() };
        if waiting.wants_sender() {
            self.wake.notify_one();
        }
        Some((letters, flight))
    }

    /// Answers everything that waits with an error: it was not sent.
    pub(crate) fn refuse_all(&self, why: &Error) {
        let letters = std::mem::take(&mut lock(&self.waiting).queue);
        let mut callers = Callers::default();
        for letter in letters {
            letter.answer.send(Err(why.clone()), &mut callers);
        }
    }

    /// Refuses everything, also what comes later.
    pub(crate) fn close(&self) {
        lock(&self.waiting).closed = true;
        self.refuse_all(&shut_down());
    }

    /// Answers what could not be sent within its bound. Never ends.
    pub(crate) async fn refuse_late(&self) {
        loop {
            let now = Instant::now();
            let (late, next) = {
                let mut waiting = lock(&self.waiting);
                let late = waiting.queue.partition_point(|letter| letter.until <= now);
                let late: Vec<_> = waiting.queue.drain(..late).collect();
                let next = waiting.queue.front().map(|letter| letter.until);
                waiting.watched = next.is_some();
                (late, next)
            };
            let mut callers = Callers::default();
            for letter in late {
                let text = "the request could not be sent within the bound (`timeout` in the URL)";
                letter.answer.send(Err(Error::new(ErrorKind::Unavailable, text)), &mut callers);
            }
            drop(callers);
            match next {
                Some(next) => sleep_until(next).await,
                None => self.begun.notified().await,
            }
        }
    }

    /// Sends what waits, call after call, over this connection. It never depends on a caller that is not polled. Never ends.
    pub(crate) async fn flush(&self, shared: &Shared, connection: &Connection) {
        // Each begins with a look.
        lock(&self.waiting).looking = FLIGHTS;
        let sender = || self.send(shared, connection);
        const { assert!(FLIGHTS == 4, "one sender for each") };
        tokio::join!(sender(), sender(), sender(), sender());
    }

    async fn send(&self, shared: &Shared, connection: &Connection) {
        loop {
            // Whoever was just answered may ask again in his next turn, and goes along.
            tokio::task::yield_now().await;
            let Some((letters, _flight)) = self.next(shared) else {
                self.wake.notified().await;
                continue;
            };
            carry(shared, connection, letters).await;
        }
    }
}

fn shut_down() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection's runtime was shut down")
}

/// Sends letters together, and answers each within its own bound.
async fn carry(shared: &Shared, connection: &Connection, letters: Vec<Letter>) {
    let (asks, mut open): (Vec<_>, VecDeque<_>) =
        letters.into_iter().map(|letter| (letter.ask, (letter.until, letter.answer))).unzip();
    let mut call = pin!(together(shared, connection, &asks, Instant::now() + shared.bound()));
    let mut answers = loop {
        // Also when nobody is left: the call finds out about a silent connection.
        let Some(&(first, _)) = open.front() else { break call.await };
        tokio::select! {
            biased;
            answers = &mut call => break answers,
            () = sleep_until(first) => {
                if let Some((_, answer)) = open.pop_front() {
                    answer.send(Err(Failure::TimedOut.into()), &mut Callers::default());
                }
            }
        }
    };
    let answers = answers.drain(asks.len() - open.len()..);
    let mut callers = Callers::default();
    for ((_, sender), answer) in open.into_iter().zip(answers) {
        sender.send(answer, &mut callers);
    }
    callers.wake_together();
    // They are woken now, and the next call leaves after their turn.
    tokio::task::yield_now().await;
}

/// A request that is under way alone.
struct Alone<'a>(&'a Outbox);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        lock(&self.0.waiting).alone -= 1;
    }
}

/// A call that is under way with what has waited. Whoever sent it looks for the next one when it is back.
struct Flight<'a> {
    outbox: &'a Outbox,
    letters: usize,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut waiting = lock(&self.outbox.waiting);
        waiting.flights -= 1;
        waiting.flying -= self.letters;
        waiting.looking += 1;
    }
}

#[cfg(test)]
mod tests;
