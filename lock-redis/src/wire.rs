//! Makes the socket of a connection, and the future that drives it.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::SockRef;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, RedisResult};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;

/// Reads and writes the socket while it is polled, and ends with the connection.
pub(crate) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Connects. Whoever sends also polls the driver, where that can be had: a request then goes from the task that collects
/// it straight to the socket. (The client crate keeps what TLS needs to itself; there it drives the socket in a task of
/// its own.)
pub(crate) async fn connect(
    client: &Client,
    config: AsyncConnectionConfig,
) -> RedisResult<(MultiplexedConnection, Driver)> {
    let info = client.get_connection_info();
    match info.addr() {
        ConnectionAddr::Tcp(host, port) => driven(client, config, tcp(host, *port, info.tcp_settings()).await?).await,
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => driven(client, config, tokio::net::UnixStream::connect(path).await?).await,
        _ => {
            let mux = client.get_multiplexed_async_connection_with_config(&config).await?;
            Ok((mux, Box::pin(std::future::pending())))
        }
    }
}

async fn driven<S>(
    client: &Client,
    config: AsyncConnectionConfig,
    stream: S,
) -> RedisResult<(MultiplexedConnection, Driver)>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let server = client.get_connection_info().redis_settings();
    let (mux, driver) = MultiplexedConnection::new_with_config(server, stream, config).await?;
    Ok((mux, Box::pin(driver)))
}

/// Tries all addresses of a host at once and takes the first that answers: one that is silent must not use up the bound.
async fn tcp(host: &str, port: u16, settings: &TcpSettings) -> io::Result<TcpStream> {
    let mut attempts = JoinSet::new();
    for address in lookup_host((host, port)).await? {
        let settings = settings.clone();
        attempts.spawn(async move { connect_to(address, &settings).await });
    }
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    while let Some(done) = attempts.join_next().await {
        match done {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(why)) => last = why,
            Err(_) => {}
        }
    }
    Err(last)
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
    // A socket that is given up is reset.
    socket.set_linger(Some(std::time::Duration::ZERO))?;
    Ok(stream)
}
