//! Servers that several cases use, one after the other: a server takes a second to start, and its first replies are
//! slow.

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use leasehold_test_servers::{ZooKeeperServer, ZooKeeperSide};

use super::fixture::{TEAM, set_up};
use super::servers::Servers;

/// How long the sessions of the case before may take to end.
const SESSIONS_BOUND: Duration = Duration::from_secs(3);

/// The servers that no case uses now. They are stopped with the last case that runs: a static would never be dropped.
pub(super) struct Idle<D>(Mutex<State<D>>);

struct State<D> {
    idle: Vec<D>,
    /// How many cases run.
    cases: usize,
}

impl<D> Idle<D> {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(State { idle: Vec::new(), cases: 0 }))
    }

    fn change<T>(&self, change: impl FnOnce(&mut State<D>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Servers of ZooKeeper that are reused.
pub(super) trait Reusable: Servers<Server = ZooKeeperServer, Side = ZooKeeperSide> {
    /// Those that no case uses.
    fn idle() -> &'static Idle<Self>;
}

/// The servers of a case. The next case uses them, unless this one changed them: by [`DerefMut`], by
/// [`spoil`](Self::spoil), or by failing.
pub(super) struct Reused<D: Reusable> {
    servers: Option<D>,
    is_spoiled: bool,
}

impl<D: Reusable> Reused<D> {
    /// Servers with an empty root.
    pub(super) fn take() -> io::Result<Self> {
        let idle = D::idle().change(|state| {
            state.cases += 1;
            state.idle.pop()
        });
        let mut taken = Self { servers: None, is_spoiled: false };
        taken.servers = idle.filter(|servers| is_clean(servers) && set_up(servers.side()).is_ok());
        if taken.servers.is_none() {
            taken.servers = Some(start()?);
        }
        Ok(taken)
    }

    /// Keeps other cases from using them.
    pub(super) fn spoil(&mut self) {
        self.is_spoiled = true;
    }
}

impl<D: Reusable> Deref for Reused<D> {
    type Target = D;

    fn deref(&self) -> &D {
        self.servers.as_ref().expect("taken until it is dropped")
    }
}

impl<D: Reusable> DerefMut for Reused<D> {
    fn deref_mut(&mut self) -> &mut D {
        self.spoil();
        self.servers.as_mut().expect("taken until it is dropped")
    }
}

impl<D: Reusable> Drop for Reused<D> {
    fn drop(&mut self) {
        let is_usable = !self.is_spoiled && !std::thread::panicking();
        let servers = self.servers.take().filter(|_| is_usable);
        let unused = D::idle().change(|state| {
            state.cases -= 1;
            state.idle.extend(servers);
            if state.cases == 0 { std::mem::take(&mut state.idle) } else { Vec::new() }
        });
        drop(unused);
    }
}

fn start<D: Reusable>() -> io::Result<D> {
    let servers = D::start()?;
    set_up(servers.side())?;
    Ok(servers)
}

/// Whether nothing of the case before is left. Deletes what does not go away by itself.
fn is_clean(servers: &impl Reusable) -> bool {
    let clean = || {
        let until = Instant::now() + SESSIONS_BOUND;
        for server in servers.all() {
            while !server.side().connected_sessions()?.is_empty() {
                if Instant::now() > until {
                    return Ok(false);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        let side = servers.side();
        side.sync()?;
        side.delete_all(TEAM)?;
        Ok::<_, io::Error>(true)
    };
    clean().unwrap_or(false)
}
