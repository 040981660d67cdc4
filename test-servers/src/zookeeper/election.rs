//! The connections by which servers of an ensemble elect a leader.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The longest address of a server.
const MAX_ADDRESS: usize = 1024;

/// Relays a connection between two servers to the proxy of their link.
///
/// A server with a smaller number than the other one names the address at which the other one reaches it. The other one closes the
/// connection and connects to that address instead. So the relay replaces it by that of the proxy of the other direction: no
/// connection may bypass its proxy.
pub(super) async fn relay(mut client: TcpStream, proxy: SocketAddr, answers_to: SocketAddr) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut server = TcpStream::connect(proxy).await?;
    server.set_nodelay(true)?;
    // The version of the protocol, which is negative, or the number of the server.
    let version = client.read_i64().await?;
    server.write_i64(version).await?;
    if version < 0 {
        server.write_i64(client.read_i64().await?).await?;
        let length = usize::try_from(client.read_i32().await?).ok().filter(|length| *length <= MAX_ADDRESS);
        client.read_exact(&mut vec![0; length.ok_or(io::ErrorKind::InvalidData)?]).await?;
        let address = answers_to.to_string();
        server.write_i32(i32::try_from(address.len()).map_err(io::Error::other)?).await?;
        server.write_all(address.as_bytes()).await?;
    }
    tokio::io::copy_bidirectional(&mut client, &mut server).await.map(drop)
}
