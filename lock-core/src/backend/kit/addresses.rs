//! The addresses of a host: their lookup, and connecting to any of them.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Mutex;

use tokio::runtime::{Handle, Id};
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};

use crate::sync::lock;

type Found = Option<Result<Vec<SocketAddr>, (io::ErrorKind, String)>>;

/// The lookups of host names that are in progress. The callers of one runtime share them, and they go on when a caller
/// gives up. Otherwise each attempt would ask a resolver that is silent for 5 s anew, and none would last until its
/// reply. Runtimes do not share them, because a lease must not wait for a runtime of the user that nothing drives.
#[derive(Default)]
pub struct Lookups(Mutex<HashMap<(Id, String), watch::Receiver<Found>>>);

impl Lookups {
    /// The addresses of a host and port, by the resolver of the system. `name` is the same for the same host. Cancel
    /// safe.
    ///
    /// # Errors
    /// Those of the resolver.
    pub async fn of(&self, name: &str, host: impl ToSocketAddrs + Send + 'static) -> io::Result<Vec<SocketAddr>> {
        // In a thread, because the resolver blocks.
        self.addresses(name, || async { spawn_blocking(move || Ok(host.to_socket_addrs()?.collect())).await? }).await
    }

    /// The addresses of a host, by `lookup` in a task of the current runtime.
    async fn addresses<F>(&self, host: &str, lookup: impl FnOnce() -> F) -> io::Result<Vec<SocketAddr>>
    where
        F: Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    {
        let mut found = {
            let mut lookups = lock(&self.0);
            lookups.retain(|_, found| found.borrow().is_none() && found.has_changed().is_ok());
            let begin = || {
                let (sender, receiver) = watch::channel(None);
                let lookup = lookup();
                tokio::spawn(async move {
                    let found = lookup.await.map_err(|error| (error.kind(), error.to_string()));
                    sender.send_replace(Some(found));
                });
                receiver
            };
            lookups.entry((Handle::current().id(), host.to_owned())).or_insert_with(begin).clone()
        };
        let found = found.wait_for(Option::is_some).await.map(|found| found.clone());
        match found {
            Ok(Some(Ok(addresses))) => Ok(addresses),
            Ok(Some(Err((kind, text)))) => Err(io::Error::new(kind, text)),
            Ok(None) | Err(_) => Err(io::Error::other("the runtime of the lookup has ended")),
        }
    }
}

impl fmt::Debug for Lookups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookups").field("in_progress", &lock(&self.0).len()).finish()
    }
}

/// Connects to all addresses of a host at once by `connect`, and returns the first connection. A silent or refusing
/// address takes no time from the others. The caller bounds the call. Cancel safe: attempts that are still open end
/// with it.
///
/// # Errors
/// The last error of `connect` if all have failed; `NotFound` without an address.
pub async fn connect_to_any<T, E, F>(
    addresses: impl IntoIterator<Item = SocketAddr>,
    connect: impl Fn(SocketAddr) -> F,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>> + Send + 'static,
    E: From<io::Error> + Send + 'static,
    T: Send + 'static,
{
    let mut attempts: JoinSet<_> = addresses.into_iter().map(connect).collect();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address").into();
    while let Some(done) = attempts.join_next().await {
        match done {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => last = error,
            Err(_) => {}
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;

    const SILENT: u16 = 1;
    const REFUSING: u16 = 2;
    const SECOND: Duration = Duration::from_secs(1);

    async fn connect(address: SocketAddr) -> io::Result<u16> {
        match address.port() {
            SILENT => std::future::pending().await,
            REFUSING => Err(io::ErrorKind::ConnectionRefused.into()),
            port => Ok(port),
        }
    }

    fn host(ports: &[u16]) -> Vec<SocketAddr> {
        ports.iter().map(|port| SocketAddr::from(([127, 0, 0, 1], *port))).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn silent_and_refusing_addresses_take_no_time_from_the_others() {
        let begin = tokio::time::Instant::now();
        assert_eq!(connect_to_any(host(&[SILENT, REFUSING, 7]), connect).await.unwrap(), 7);
        assert_eq!(connect_to_any(host(&[7, SILENT]), connect).await.unwrap(), 7);
        assert_eq!(begin.elapsed(), std::time::Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_without_a_usable_address_is_an_error() {
        let refused = connect_to_any(host(&[REFUSING, REFUSING]), connect).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(connect_to_any(host(&[]), connect).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn an_address_is_its_own_lookup() {
        let lookups = Lookups::default();
        assert_eq!(lookups.of("127.0.0.1", ("127.0.0.1".to_owned(), 7)).await.unwrap(), host(&[7]));
        assert_eq!(lookups.of("127.0.0.1:7", "127.0.0.1:7".to_owned()).await.unwrap(), host(&[7]));
        assert!(lookups.of("nonsense", "nonsense".to_owned()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn callers_share_a_lookup_and_it_outlives_them() {
        let (lookups, count) = (Lookups::default(), AtomicU32::new(0));
        let address = SocketAddr::from(([127, 0, 0, 1], 7));
        let lookup = || {
            lookups.addresses("host", || {
                count.fetch_add(1, Ordering::Relaxed);
                async move {
                    tokio::time::sleep(SECOND * 5).await;
                    Ok(vec![address])
                }
            })
        };
        for _ in 0..4 {
            assert!(tokio::time::timeout(SECOND, lookup()).await.is_err());
        }
        assert_eq!(tokio::time::timeout(SECOND * 2, lookup()).await.unwrap().unwrap(), [address]);
        assert_eq!(count.load(Ordering::Relaxed), 1);
        // The next call asks again, because an address may change.
        assert!(tokio::time::timeout(SECOND, lookup()).await.is_err());
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_runtime_that_is_not_driven_holds_up_no_other_one() {
        let runtimes = [0, 1].map(|_| tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap());
        let lookups = Lookups::default();
        let lookup = || async {
            tokio::time::sleep(SECOND / 100).await;
            Ok(host(&[7]))
        };
        let addresses = || lookups.addresses("host", lookup);
        let (stuck, used) = (&runtimes[0], &runtimes[1]);
        // It begins the lookup, and nothing drives it after that.
        stuck.block_on(async { tokio::time::timeout(Duration::ZERO, addresses()).await }).unwrap_err();
        let found = used.block_on(async { tokio::time::timeout(SECOND * 10, addresses()).await });
        assert_eq!(found.expect("the other runtime is not waited for").unwrap(), host(&[7]));
    }
}
