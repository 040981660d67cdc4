//! Connecting to a host that has several addresses.

use std::io;
use std::net::SocketAddr;

use tokio::task::JoinSet;

/// Connects to all addresses of a host at once by `connect`, and returns the first connection. An address that is silent, or that refuses,
/// takes no time from the others. The caller bounds the call. Cancel safe: attempts that are still open end with it.
///
/// # Errors
/// The last error of `connect`, when all have failed; `NotFound` without an address.
pub async fn connect_to_any<T, F>(
    addresses: impl IntoIterator<Item = SocketAddr>,
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<T>
where
    F: Future<Output = io::Result<T>> + Send + 'static,
    T: Send + 'static,
{
    let mut attempts: JoinSet<_> = addresses.into_iter().map(connect).collect();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
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
    use super::*;

    const SILENT: u16 = 1;
    const REFUSING: u16 = 2;

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
}
