//! Opens the socket of a connection and starts the task that drives it.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use leasehold_core::backend::kit::{Attempt, Lookups, connect_to_any, expects_tls, first_reply};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::SockRef;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::errors::Failure;

/// How many bytes of the first reply are recorded. Errors at connect are shorter.
const MAX_RECORDED: usize = 256;

const EXPECTS_TLS: &str =
    "it expects TLS on this port: begin the URL with `rediss` (with `sentinel_tls=on` for Sentinels)";
const EXPECTS_NO_TLS: &str =
    "it expects no TLS on this port: begin the URL with `redis` (with `sentinel_tls=off` for Sentinels alone)";

/// The task that reads and writes the socket. Dropping the driver ends it. With TLS, the client crate runs its own task
/// and does not expose it.
///
/// It is separate from the batcher's task. A single task would wake itself, and then another thread, for every request.
pub(crate) struct Driver(Option<JoinHandle<()>>);

impl Driver {
    fn spawn(driver: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Some(tokio::spawn(driver)))
    }

    /// Resolves when the connection has ended.
    pub(crate) async fn ended(&mut self) {
        match &mut self.0 {
            Some(task) => {
                let _ = task.await;
                self.0 = None;
            }
            None => std::future::pending().await,
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// Connects and logs in. `timeout` is the bound of a call.
pub(crate) async fn connect(
    client: &Client,
    config: AsyncConnectionConfig,
    lookups: &Lookups,
    attempt: &Attempt<'_>,
    timeout: Duration,
) -> Result<(MultiplexedConnection, Driver), Failure> {
    let io = |error: io::Error| Failure::Disconnected(error.into());
    let info = client.get_connection_info();
    match info.addr() {
        ConnectionAddr::Tcp(host, port) => {
            let lookup = lookups.of(host, (host.clone(), *port));
            let addresses = step(attempt, "the lookup of its name", lookup).await?.map_err(io)?;
            let tcp = tcp(addresses.clone(), info.tcp_settings());
            let stream = step(attempt, "the TCP connection", tcp).await?.map_err(io)?;
            match step(attempt, "the log-in", handshake(client, config, stream)).await? {
                // A server that expects TLS closes the connection, as one that is being stopped does.
                Err(Failure::Disconnected(_)) if expects_tls(addresses, TcpStream::connect).await => {
                    Err(Failure::WrongTls(EXPECTS_TLS))
                }
                connected => connected,
            }
        }
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => {
            let stream = tokio::net::UnixStream::connect(path);
            let stream = step(attempt, "the connection", stream).await?.map_err(io)?;
            step(attempt, "the log-in", handshake(client, config, stream)).await?
        }
        ConnectionAddr::TcpTls { host, port, .. } => {
            let mux = client.get_multiplexed_async_connection_with_config(&config);
            let mux = step(attempt, "the lookup of its name, TCP, TLS and the log-in", mux);
            let expects_none = async {
                // Soon enough for the call that waits for this attempt.
                tokio::time::sleep(timeout / 4).await;
                expects_no_tls(lookups, host, *port).await
            };
            tokio::select! {
                mux = mux => Ok((mux?.map_err(Failure::of)?, Driver(None))),
                Some(why) = expects_none => Err(Failure::WrongTls(why)),
            }
        }
        _ => Err(Failure::NotSent(leasehold_core::Error::invalid("the address is not one of Redis"))),
    }
}

/// Why TLS with this server is in vain, if it expects plain text. Such a server waits for the end of what it takes for
/// a line, so the handshake has no end.
async fn expects_no_tls(lookups: &Lookups, host: &str, port: u16) -> Option<&'static str> {
    let addresses = lookups.of(host, (host.to_owned(), port)).await.ok()?;
    // Whatever a Redis server replies begins so, an error too. One that expects TLS replies with bytes that do not.
    match first_reply(addresses, TcpStream::connect, b"PING\r\n").await.first() {
        Some(b'+' | b'-') => Some(EXPECTS_NO_TLS),
        _ => None,
    }
}

async fn step<T>(attempt: &Attempt<'_>, what: &'static str, step: impl Future<Output = T>) -> Result<T, Failure> {
    attempt.step(what, step).await.map_err(Failure::NotSent)
}

async fn handshake<S>(
    client: &Client,
    config: AsyncConnectionConfig,
    stream: S,
) -> Result<(MultiplexedConnection, Driver), Failure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let first = Arc::default();
    let stream = RecordingStream { stream, first: Arc::clone(&first) };
    let server = client.get_connection_info().redis_settings();
    match MultiplexedConnection::new_with_config(server, stream, config).await {
        Ok((mux, driver)) => Ok((mux, Driver::spawn(driver))),
        Err(error) => Err(match (Failure::of(error), first.get()) {
            (Failure::Disconnected(cause), Some(first)) if cause.is_io_error() => {
                refusal(first).unwrap_or(Failure::Disconnected(cause))
            }
            (failure, _) => failure,
        }),
    }
}

async fn tcp(addresses: Vec<SocketAddr>, settings: &TcpSettings) -> io::Result<TcpStream> {
    connect_to_any(addresses, |address| {
        let settings = settings.clone();
        async move { connect_to(address, &settings).await }
    })
    .await
}

async fn connect_to(address: SocketAddr, settings: &TcpSettings) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(settings.nodelay())?;
    let socket = SockRef::from(&stream);
    if let Some(keepalive) = settings.keepalive() {
        socket.set_tcp_keepalive(keepalive)?;
    }
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket.set_tcp_user_timeout(settings.user_timeout())?;
    // Closing the socket resets it: see `settings::prepare`.
    socket.set_linger(Some(Duration::ZERO))?;
    Ok(stream)
}

/// A socket that records the first bytes of the server. A server that accepts no client sends an error and closes at
/// once. The client crate would fail on the write before it reads this error, and it drops all replies of a handshake
/// that failed. So this type hides the failure of a write, and the next read finds the end of the connection.
struct RecordingStream<S> {
    stream: S,
    /// The first bytes from the server.
    first: Arc<OnceLock<Vec<u8>>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for RecordingStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if self.first.get().is_none() && buf.filled().len() > before {
            let _ = self.first.set(buf.filled()[before..].iter().copied().take(MAX_RECORDED).collect());
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for RecordingStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes).map(|written| ignore_closed(written, bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all = bytes.iter().map(|slice| slice.len()).sum();
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes).map(|written| ignore_closed(written, all))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

fn ignore_closed<T>(done: io::Result<T>, instead: T) -> io::Result<T> {
    match done {
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => Ok(instead),
        done => done,
    }
}

/// The error with which the server refused the connection.
fn refusal(first: &[u8]) -> Option<Failure> {
    let line = first.strip_prefix(b"-")?.split(|byte| *byte == b'\r').next()?;
    Some(Failure::ErrorReply(String::from_utf8_lossy(line).into_owned()))
}
