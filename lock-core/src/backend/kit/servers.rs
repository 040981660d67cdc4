//! The servers of a store, and the one that a client connects to.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

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

    /// Opens a connection to the first server that can be reached, by `open`, beginning with the preferred one. If a
    /// server fails, or does not reply within its [part](Self::attempt) of `timeout`, the next one is tried as well. So
    /// a slow path is no fault, and a server that is paused is a short delay. `open` must have a bound of its own.
    /// The caller prefers or avoids servers. Cancel safe: attempts that are still open end with it.
    ///
    /// # Errors
    /// The failure of a server that `is_final` names, alone, as soon as there is one. Otherwise those of all servers.
    pub async fn open_any<T, E, F>(
        &self,
        timeout: Duration,
        open: impl Fn(usize) -> F,
        is_final: impl Fn(&E) -> bool,
    ) -> Result<T, Vec<E>>
    where
        F: Future<Output = Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        let (mut attempts, mut failures) = (JoinSet::new(), Vec::new());
        let mut servers = self.order().peekable();
        loop {
            if let Some(server) = servers.next() {
                attempts.spawn(open(server));
            }
            let ended = match servers.peek() {
                Some(_) => tokio::time::timeout(self.attempt(timeout), attempts.join_next()).await,
                None => Ok(attempts.join_next().await),
            };
            match ended {
                Ok(Some(Ok(Ok(opened)))) => return Ok(opened),
                Ok(Some(Ok(Err(failure)))) if is_final(&failure) => return Err(vec![failure]),
                Ok(Some(Ok(Err(failure)))) => failures.push(failure),
                Ok(None) => return Err(failures),
                // Its turn is over, or its task has panicked.
                Ok(Some(Err(_))) | Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

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

    const SECOND: Duration = Duration::from_secs(1);

    /// A server that does what its name says.
    async fn open(what: &'static str) -> Result<&'static str, &'static str> {
        match what {
            "silent" => std::future::pending().await,
            "slow" => tokio::time::sleep(SECOND * 4).await,
            "refuses" | "fails" => return Err(what),
            _ => {}
        }
        Ok(what)
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_server_that_replies_counts() {
        for (list, opened, seconds) in [
            (vec!["works"], Ok("works"), 0),
            (vec!["silent", "works"], Ok("works"), 3),
            (vec!["fails", "silent", "works"], Ok("works"), 2),
            // A late reply of the first one.
            (vec!["slow", "silent", "silent"], Ok("slow"), 4),
            (vec!["silent", "refuses", "works"], Err(vec!["refuses"]), 2),
            (vec!["fails", "fails"], Err(vec!["fails", "fails"]), 0),
        ] {
            let (servers, begin) = (Servers::new(list.clone()), Instant::now());
            let done = servers.open_any(SECOND * 6, |server| open(list[server]), |failure| *failure == "refuses");
            assert_eq!((done.await, begin.elapsed()), (opened, SECOND * seconds), "{list:?}");
        }
    }
}
