//! The fixture of a server that Sentinels name. Both routes to the server have a name at the Sentinels.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use leasehold_test_servers::{RedisServer, RedisSettings};

use super::fixture::{Access, Guarded, RedisFixture};

pub(super) type Named = RedisFixture<Guarded<BySentinels>>;

/// Three Sentinels, which all cases share. The last case that runs stops them.
static SENTINELS: Mutex<Weak<[RedisServer; 3]>> = Mutex::new(Weak::new());

fn sentinels() -> Arc<[RedisServer; 3]> {
    let mut shared = SENTINELS.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let start = |_| RedisSettings::new().sentinel().start().unwrap_or_else(|error| panic!("{error}"));
        let started = Arc::new([0, 1, 2].map(start));
        *shared = Arc::downgrade(&started);
        started
    })
}

/// By names that the Sentinels know: one for each address of the server. The faults of a path do not affect the
/// Sentinels, because a fault has to meet a request and not the question that may come before it. `minority.rs` breaks
/// Sentinels.
pub(super) struct BySentinels {
    sentinels: Arc<[RedisServer; 3]>,
    names: [(SocketAddr, String); 2],
}

impl BySentinels {
    fn tell(&self, command: &[&str]) {
        for sentinel in &*self.sentinels {
            sentinel.command(command).unwrap_or_else(|error| panic!("{command:?} fails: {error}"));
        }
    }
}

impl Access for BySentinels {
    const SCHEME: &'static str = "redis+sentinel";
    /// After a restart no lock is granted for the longest ttl, a third of it and two seconds.
    const BACK_WITHIN: Duration = Duration::from_secs(12);

    fn new(server: SocketAddr, proxy: SocketAddr) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let names = [(server, format!("clear-{number}")), (proxy, format!("faulty-{number}"))];
        let it = Self { sentinels: sentinels(), names };
        for (addr, name) in &it.names {
            it.tell(&["SENTINEL", "MONITOR", name, &addr.ip().to_string(), &addr.port().to_string(), "2"]);
            // The server has no replicas, and cases stop it.
            it.tell(&["SENTINEL", "SET", name, "down-after-milliseconds", "3600000"]);
        }
        it
    }

    fn location(&self, addr: SocketAddr) -> String {
        let (_, name) = self.names.iter().find(|(named, _)| *named == addr).expect("the address of a route");
        let hosts: Vec<_> = self.sentinels.iter().map(|sentinel| sentinel.addr().to_string()).collect();
        format!("{}/{name}", hosts.join(","))
    }
}

impl Drop for BySentinels {
    fn drop(&mut self) {
        for (_, name) in &self.names {
            for sentinel in &*self.sentinels {
                let _ = sentinel.command(&["SENTINEL", "REMOVE", name]);
            }
        }
    }
}
