//! The open watches of one client, for a backend that polls their names or is notified of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::backend::{CoreHandle, Event, WatchGuard};
use crate::name::LockName;
use crate::sync::lock;

/// The open watches of one client, for a backend that polls their names or is notified of them.
#[derive(Clone, Debug, Default)]
pub struct Watches(Arc<Mutex<Open>>);

#[derive(Debug, Default)]
struct Open {
    /// The newest watch of each name.
    names: HashMap<LockName, u64>,
    next: u64,
    /// Something serves the watches.
    is_served: bool,
}

impl Watches {
    /// Opens a watch, which replaces the previous one of this name. Returns whether there was none. The lock may then
    /// have become free since the reply.
    pub fn open(&self, name: &LockName) -> (WatchGuard, bool) {
        let (number, is_new) = {
            let mut open = lock(&self.0);
            open.next += 1;
            let number = open.next;
            (number, open.names.insert(name.clone(), number).is_none())
        };
        let (watches, name) = (self.0.clone(), name.clone());
        let guard = WatchGuard::new(move || {
            let mut open = lock(&watches);
            if open.names.get(&name) == Some(&number) {
                open.names.remove(&name);
            }
        });
        (guard, is_new)
    }

    /// The names of the open watches, in no particular order.
    pub fn names(&self) -> Vec<LockName> {
        lock(&self.0).names.keys().cloned().collect()
    }

    /// Whether no watch is open.
    pub fn is_empty(&self) -> bool {
        lock(&self.0).names.is_empty()
    }

    /// Notes that the caller, which has just opened a watch, starts what serves the watches: a task that polls, or a
    /// thread. Returns `false` if it runs already.
    pub fn begin_serving(&self) -> bool {
        !std::mem::replace(&mut lock(&self.0).is_served, true)
    }

    /// Notes that what serves the watches ends, if none is open, and returns whether it must. A watch that is opened
    /// meanwhile is either open in this call, or its caller starts the service again.
    pub fn end_if_unused(&self) -> bool {
        let mut open = lock(&self.0);
        open.is_served = !open.names.is_empty();
        !open.is_served
    }

    /// Notes that what serves the watches could not be started, so that the next watch tries again.
    pub fn cancel_serving(&self) {
        lock(&self.0).is_served = false;
    }

    /// Reports that a lock may be free, if a watch of its name is open, and closes that watch.
    pub fn report(&self, name: &LockName, core: &CoreHandle) {
        let was_open = lock(&self.0).names.remove(name).is_some();
        if was_open {
            core.event(Event::Changed(name.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    #[tokio::test]
    async fn a_watch_reports_once_and_ends_with_its_guard() {
        let (watches, seen) = (Watches::default(), Arc::new(Mutex::new(Vec::new())));
        let core = CoreHandle::new(Arc::new(SystemClock::new()), tokio::runtime::Handle::current(), {
            let seen = seen.clone();
            move |event| match event {
                Event::Changed(name) => lock(&seen).push(name),
                other => panic!("{other:?}"),
            }
        });
        let name = LockName::new("job").unwrap();
        let reports = || {
            watches.report(&name, &core);
            std::mem::take(&mut *lock(&seen)).len()
        };
        assert_eq!((watches.is_empty(), reports()), (true, 0));
        let (first, is_new) = watches.open(&name);
        assert!(is_new);
        assert_eq!((watches.names(), watches.is_empty()), (vec![name.clone()], false));
        assert_eq!((reports(), reports()), (1, 0));
        let (second, is_new) = watches.open(&name);
        assert!(is_new, "the former one was reported");
        drop(first);
        let (third, is_new) = watches.open(&name);
        assert!(!is_new);
        drop(second);
        assert_eq!(reports(), 1, "the guard of the former watch ends only that");
        let (fourth, _) = watches.open(&name);
        drop((third, fourth));
        assert_eq!((watches.is_empty(), reports()), (true, 0));
        drop(WatchGuard::none());
    }

    #[test]
    fn watches_are_served_while_one_is_open() {
        let watches = Watches::default();
        let (guard, _) = watches.open(&LockName::new("job").unwrap());
        assert!(watches.begin_serving() && !watches.begin_serving() && !watches.end_if_unused());
        drop(guard);
        assert!(watches.end_if_unused() && watches.begin_serving());
        watches.cancel_serving();
        assert!(watches.begin_serving());
    }
}
