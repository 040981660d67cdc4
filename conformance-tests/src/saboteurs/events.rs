//! Saboteurs whose events are wrong, as after a reconnect.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use leasehold_core::backend::{CoreHandle, Event};

use super::{plain, stateful};
use crate::faulty::lock;
use crate::hooks::{Hooks, Inner};

plain! {
    /// Does not report that messages may have been lost.
    HidesReconnects;
}

#[async_trait]
impl Hooks for HidesReconnects {
    fn event(&self, _: &Arc<Inner>, core: &CoreHandle, event: Event) {
        if !matches!(event, Event::Resync) {
            core.event(event);
        }
    }
}

plain! {
    /// Reports with each event that any other lock may have changed too.
    WakesWaitersOfAllLocks;
}

#[async_trait]
impl Hooks for WakesWaitersOfAllLocks {
    fn event(&self, _: &Arc<Inner>, core: &CoreHandle, event: Event) {
        core.event(event);
        core.event(Event::Resync);
    }
}

plain! {
    /// Does not notify clients of a shortened lease.
    HidesShortenedLeases;
}

#[async_trait]
impl Hooks for HidesShortenedLeases {
    fn event(&self, _: &Arc<Inner>, core: &CoreHandle, event: Event) {
        if !matches!(event, Event::EndsSooner { .. }) {
            core.event(event);
        }
    }
}

/// Does not renew its subscriptions after a reconnect.
#[derive(Default)]
pub struct SubscribesOnce {
    reconnected: Mutex<HashSet<usize>>,
}

stateful! {
    SubscribesOnce;
}

#[async_trait]
impl Hooks for SubscribesOnce {
    fn event(&self, inner: &Arc<Inner>, core: &CoreHandle, event: Event) {
        if matches!(event, Event::Resync) {
            lock(&self.reconnected).insert(inner.nth);
            core.event(event);
        } else if !lock(&self.reconnected).contains(&inner.nth) {
            core.event(event);
        }
    }
}
