//! The servers of a store, and the one that a client connects to.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The most parts into which a request that may be sent to several servers divides the bound of a call.
const ATTEMPTS: u32 = 3;

/// The servers of a store, by their index. A client stays with one, and moves to the next one when that does not serve
/// it.
#[derive(Debug)]
pub struct Servers<S> {
    list: Vec<S>,
    preferred: AtomicUsize,
}

impl<S> Servers<S> {
    /// These servers, at least one. The client begins with the first of them.
    pub const fn new(list: Vec<S>) -> Self {
        Self { list, preferred: AtomicUsize::new(0) }
    }

    /// All of them.
    pub fn all(&self) -> &[S] {
        &self.list
    }

    /// Whether there is more than one.
    pub fn are_several(&self) -> bool {
        self.list.len() > 1
    }

    /// The preferred server for `nth` = 0, and the `nth` after it otherwise. The order begins anew after the last one.
    pub fn nth(&self, nth: usize) -> usize {
        (self.preferred.load(Ordering::Relaxed) + nth) % self.list.len()
    }

    /// All of them, beginning with the preferred one.
    pub fn order(&self) -> impl Iterator<Item = usize> + use<S> {
        let (first, count) = (self.nth(0), self.list.len());
        (0..count).map(move |nth| (first + nth) % count)
    }

    /// This server has served the client.
    pub fn prefer(&self, server: usize) {
        self.preferred.store(server, Ordering::Relaxed);
    }

    /// This server has not served the client: the next one is tried first from now on, unless another task has reported
    /// the same.
    pub fn avoid(&self, server: usize) {
        let next = (server + 1) % self.list.len();
        let _ = self.preferred.compare_exchange(server, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The bound of one attempt within that of a call, if another server can be tried after it.
    pub fn attempt(&self, timeout: Duration) -> Duration {
        timeout / u32::try_from(self.list.len()).unwrap_or(ATTEMPTS).clamp(1, ATTEMPTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_stay_with_a_server_until_it_fails() {
        let servers = Servers::new(vec!["a", "b", "c"]);
        let order = || servers.order().collect::<Vec<_>>();
        assert_eq!((order(), order()), (vec![0, 1, 2], vec![0, 1, 2]));
        servers.avoid(0);
        // Another task reports the same failure.
        servers.avoid(0);
        assert_eq!((order(), servers.nth(0), servers.nth(2)), (vec![1, 2, 0], 1, 0));
        servers.prefer(2);
        servers.avoid(2);
        assert_eq!(order(), [0, 1, 2]);
    }

    #[test]
    fn attempts_at_several_servers_share_the_bound_of_a_call() {
        for (count, part) in [(1, 1), (2, 2), (3, 3), (5, 3)] {
            let servers = Servers::new(vec![(); count]);
            let timeout = Duration::from_secs(6);
            assert_eq!((servers.attempt(timeout), servers.are_several()), (timeout / part, count > 1));
        }
    }
}
