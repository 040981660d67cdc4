//! The acquires of a local queue, in order.

use std::collections::VecDeque;
use std::time::Duration;

use crate::backend::OnContention;
use crate::clock::Stamp;
use crate::error::Result;
use crate::terms::Terms;

/// Names an acquire within a client.
pub type AcquireId = u64;

/// An acquire that enters a queue.
#[derive(Clone, Debug)]
pub struct Joining<T> {
    pub acquire: AcquireId,
    pub terms: Terms,
    pub on_contention: OnContention,
    /// The store must reply to a request that is sent at this time or later. Otherwise the state of the lock is not
    /// known when the wait ends.
    pub confirm_after: Stamp,
    pub to: T,
}

/// One turn in the local queue. Acquires with the same holder share it.
#[derive(Clone, Debug)]
pub(super) struct Waiter<T> {
    pub(super) terms: Terms,
    acquires: Vec<PendingAcquire<T>>,
}

#[derive(Clone, Debug)]
struct PendingAcquire<T> {
    id: AcquireId,
    on_contention: OnContention,
    confirm_after: Stamp,
    to: T,
}

impl<T> Waiter<T> {
    fn new(Joining { acquire, terms, on_contention, confirm_after, to }: Joining<T>) -> Self {
        Self { terms, acquires: vec![PendingAcquire { id: acquire, on_contention, confirm_after, to }] }
    }

    /// A place at the store, if one of the acquires waits.
    pub(super) fn on_contention(&self) -> OnContention {
        let waits = self.acquires.iter().any(|acquire| acquire.on_contention == OnContention::Queue);
        if waits { OnContention::Queue } else { OnContention::Fail }
    }
}

/// Never empty while its queue exists.
#[derive(Clone, Debug)]
pub(super) struct Waiters<T>(VecDeque<Waiter<T>>);

impl<T> Waiters<T> {
    pub(super) fn new(first: Joining<T>) -> Self {
        Self(VecDeque::from([Waiter::new(first)]))
    }

    /// Adds an acquire: to the waiter with the same holder, or at the end.
    pub(super) fn join(&mut self, joining: Joining<T>) -> Result<()> {
        let holder = joining.terms.holder;
        let same = |waiter: &&mut Waiter<T>| holder.is_some() && waiter.terms.holder == holder;
        match self.0.iter_mut().find(same) {
            Some(waiter) => {
                waiter.terms.require_same_lease(&joining.terms)?;
                waiter.acquires.extend(Waiter::new(joining).acquires);
            }
            None => self.0.push_back(Waiter::new(joining)),
        }
        Ok(())
    }

    /// Removes an acquire. Returns its `confirm_after` if it still waited.
    pub(super) fn remove(&mut self, id: AcquireId) -> Option<Stamp> {
        let find = |waiter: &Waiter<T>| waiter.acquires.iter().position(|acquire| acquire.id == id);
        let (index, at) = self.0.iter().enumerate().find_map(|(index, waiter)| Some((index, find(waiter)?)))?;
        let acquire = self.0[index].acquires.remove(at);
        if self.0[index].acquires.is_empty() {
            self.0.remove(index);
        }
        Some(acquire.confirm_after)
    }

    pub(super) fn front(&self) -> Option<&Waiter<T>> {
        self.0.front()
    }

    /// Removes the front. Returns its terms and the channels of its acquires.
    pub(super) fn pop_front(&mut self) -> Option<(Terms, Vec<T>)> {
        let front = self.0.pop_front()?;
        Some((front.terms, front.acquires.into_iter().map(|acquire| acquire.to).collect()))
    }

    /// Removes the acquires at the front that do not wait. Returns whether there was no other acquire at the front.
    pub(super) fn refuse_tries(&mut self, mut refuse: impl FnMut(T)) -> bool {
        let Some(front) = self.0.front_mut() else { return false };
        let tries = front.acquires.extract_if(.., |acquire| acquire.on_contention == OnContention::Fail);
        tries.for_each(|acquire| refuse(acquire.to));
        let is_empty = front.acquires.is_empty();
        if is_empty {
            self.0.pop_front();
        }
        is_empty
    }

    /// Removes the waiters with this ttl. Returns the channels of their acquires.
    pub(super) fn take_with_ttl(&mut self, ttl: Duration) -> Vec<T> {
        let all = std::mem::take(&mut self.0).into_iter();
        let (taken, rest) = all.partition::<VecDeque<_>, _>(|waiter| waiter.terms.ttl == ttl);
        self.0 = rest;
        taken.into_iter().flat_map(|waiter| waiter.acquires).map(|acquire| acquire.to).collect()
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.0.drain(..).flat_map(|waiter| waiter.acquires).map(|acquire| acquire.to)
    }

    /// When to send the next request, so that each acquire has a reply from after its `confirm_after`. The newest
    /// request that has a reply was sent at `newest`.
    pub(super) fn confirmation_due(&self, newest: Stamp) -> Option<Stamp> {
        let acquires = self.0.iter().flat_map(|waiter| &waiter.acquires);
        acquires.map(|acquire| acquire.confirm_after).filter(|after| *after > newest).min()
    }

    /// How many acquires there are.
    pub(super) fn acquires(&self) -> usize {
        self.0.iter().map(|waiter| waiter.acquires.len()).sum()
    }
}
