//! The switches of [`Faulty`](super::Faulty) backends.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_core::backend::{CoreHandle, Event, LockBackend};
use leasehold_core::{LockName, Result};
use tokio::sync::{oneshot, watch};

use super::{Faulty, unreadable};
use crate::fault::{PathFault, Room, ServerFault, Unsupported};
use crate::fixture::Route;

/// Injects and ends faults of the path and the server of all wrapped backends, and counts their requests.
///
/// A [`Fixture`](crate::Fixture) without a real server owns one and delegates its methods to it. Cheap to clone.
#[derive(Clone)]
pub struct Faults(Arc<Shared>);

impl Faults {
    /// No fault yet. Delayed and held requests run on this runtime.
    pub fn new(runtime: tokio::runtime::Handle) -> Self {
        Self(Arc::new(Shared {
            runtime,
            path: Mutex::default(),
            cuts: watch::Sender::new(0),
            server: watch::Sender::new(Health::Up),
            spoilt: Mutex::default(),
            served: AtomicU64::new(0),
        }))
    }

    /// A backend that reaches its server by `route`.
    pub fn wrap<B: LockBackend + ?Sized>(&self, inner: Arc<B>, route: Route) -> Faulty<B> {
        Faulty::new(self.0.clone(), route, inner)
    }

    /// [`Fixture::path`](crate::Fixture::path).
    pub fn path(&self, fault: PathFault) {
        let cut = fault == PathFault::Disconnect;
        lock(&self.0.path).fault = Some(fault);
        if cut {
            self.0.cuts.send_modify(|cuts| *cuts += 1);
        }
    }

    /// [`Fixture::heal`](crate::Fixture::heal). Clients on the faulty route get `Event::Resync`, as after a reconnect.
    pub fn heal(&self) {
        let (fault, cores) = {
            let mut path = lock(&self.0.path);
            (path.fault.take(), path.cores.clone())
        };
        if let Some(PathFault::Disconnect | PathFault::DropTraffic) = fault {
            for attached in cores.iter().filter(|attached| attached.route == Route::Faulty) {
                attached.core.event(Event::Resync);
            }
        }
    }

    /// [`Fixture::deliver`](crate::Fixture::deliver).
    pub async fn deliver(&self) {
        let held = std::mem::take(&mut lock(&self.0.path).held);
        for held in held {
            let (done, arrived) = oneshot::channel();
            if held.send(done).is_ok() {
                let _ = arrived.await;
            }
        }
    }

    /// [`Fixture::server`](crate::Fixture::server), for faults that do not need the store. Start and
    /// [`Data`](crate::Data) are the fixture's: it replaces what is stored and then starts.
    ///
    /// # Errors
    /// Faults that only a real server can have.
    pub fn server(&self, fault: &ServerFault) -> Result<(), Unsupported> {
        let health = match fault {
            ServerFault::Stop | ServerFault::Kill => Health::Down,
            ServerFault::Start(_) | ServerFault::Resume | ServerFault::Restore => Health::Up,
            ServerFault::Pause => Health::Paused,
            ServerFault::RefuseUser => Health::RefusesUser,
            ServerFault::ReadOnly => Health::ReadOnly,
            ServerFault::Fill(room) => Health::Full(*room),
            ServerFault::FlushScripts => return Err(Unsupported::because("it runs no scripts")),
            ServerFault::ClockForward(_) | ServerFault::ClockBack(_) => {
                return Err(Unsupported::because("it has no wall clock"));
            }
        };
        self.0.server.send_replace(health);
        if matches!(fault, ServerFault::Stop | ServerFault::Kill) {
            self.0.cuts.send_modify(|cuts| *cuts += 1);
        }
        if matches!(fault, ServerFault::Start(_)) {
            let cores = lock(&self.0.path).cores.clone();
            for attached in cores {
                attached.core.event(Event::Resync);
            }
        }
        Ok(())
    }

    /// Makes the record of a lock unreadable for its backends, or readable again.
    pub fn spoil(&self, name: &LockName, spoilt: bool) {
        let mut names = lock(&self.0.spoilt);
        if spoilt {
            names.insert(name.clone());
        } else {
            names.remove(name);
        }
    }

    /// [`Fixture::served`](crate::Fixture::served).
    pub fn served(&self) -> u64 {
        self.0.served.load(Ordering::SeqCst)
    }

    /// How many backends are attached and not dropped.
    pub fn connections(&self) -> u64 {
        lock(&self.0.path).cores.len() as u64
    }
}

/// The state behind the switches.
pub(crate) struct Shared {
    runtime: tokio::runtime::Handle,
    path: Mutex<Path>,
    /// Incremented by each cut. Requests in flight get no reply then, and those that have not arrived never arrive.
    pub(super) cuts: watch::Sender<u64>,
    pub(super) server: watch::Sender<Health>,
    spoilt: Mutex<HashSet<LockName>>,
    served: AtomicU64,
}

#[derive(Default)]
struct Path {
    fault: Option<PathFault>,
    held: Vec<oneshot::Sender<oneshot::Sender<()>>>,
    cores: Vec<Attached>,
    next_id: u64,
}

#[derive(Clone)]
struct Attached {
    id: u64,
    route: Route,
    core: CoreHandle,
}

/// The state of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Up,
    Down,
    Paused,
    RefusesUser,
    ReadOnly,
    Full(Room),
}

impl Shared {
    pub(super) fn runtime(&self) -> &tokio::runtime::Handle {
        &self.runtime
    }

    /// Registers a backend, and returns its id.
    pub(super) fn attached(&self, route: Route, core: &CoreHandle) -> u64 {
        let mut path = lock(&self.path);
        path.next_id += 1;
        let id = path.next_id;
        path.cores.push(Attached { id, route, core: core.clone() });
        id
    }

    pub(super) fn detached(&self, id: u64) {
        lock(&self.path).cores.retain(|attached| attached.id != id);
    }

    pub(super) fn path_of(&self, route: Route) -> Option<PathFault> {
        if route == Route::Clear {
            return None;
        }
        lock(&self.path).fault.clone()
    }

    /// Waits until the held requests are delivered. The caller drops the returned sender when the request has arrived.
    pub(super) fn hold(&self) -> oneshot::Receiver<oneshot::Sender<()>> {
        let (go, gone) = oneshot::channel();
        lock(&self.path).held.push(go);
        gone
    }

    pub(super) fn check_record(&self, name: &LockName) -> Result<()> {
        if lock(&self.spoilt).contains(name) { Err(unreadable(name)) } else { Ok(()) }
    }

    pub(super) fn count(&self) {
        self.served.fetch_add(1, Ordering::SeqCst);
    }
}

/// Locks a mutex, even after a panic of a case.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
