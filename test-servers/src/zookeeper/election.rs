//! The connections by which servers of an ensemble elect a leader.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The longest address of a server.
const MAX_ADDRESS: usize = 1024;

/// Relays a connection between two servers to the proxy of their link.
///
/// A server with a smaller number than the other one sends the address at which the other one reaches it. The other one
/// closes the connection and connects to that address instead. So the relay replaces the address by that of the proxy
/// for the other direction. Otherwise that connection would bypass its proxy.
pub(super) async fn relay(mut client: TcpStream, proxy: SocketAddr, answers_to: SocketAddr) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut server = TcpStream::connect(proxy).await?;
    server.set_nodelay(true)?;
    // The version of the protocol, which is negative, or else the number of the server.
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

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// What the other server receives if these bytes are sent.
    async fn received(sent: &[u8]) -> Vec<u8> {
        let (entrance, proxy) =
            (TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let mut client = TcpStream::connect(entrance.local_addr().unwrap()).await.unwrap();
        let accepted = entrance.accept().await.unwrap().0;
        let relayed = tokio::spawn(relay(accepted, proxy.local_addr().unwrap(), ([127, 0, 0, 1], 7).into()));
        client.write_all(sent).await.unwrap();
        client.shutdown().await.unwrap();
        let (mut server, mut bytes) = (proxy.accept().await.unwrap().0, Vec::new());
        server.read_to_end(&mut bytes).await.unwrap();
        server.write_all(b"reply").await.unwrap();
        drop(server);
        let mut reply = Vec::new();
        client.read_to_end(&mut reply).await.unwrap();
        assert_eq!(reply, b"reply");
        relayed.await.unwrap().unwrap();
        bytes
    }

    #[test]
    fn the_address_of_a_server_is_replaced_and_nothing_else() {
        let message = |address: &str| {
            let mut message = [(-65_536_i64).to_be_bytes(), 1_i64.to_be_bytes()].concat();
            message.extend(i32::try_from(address.len()).unwrap().to_be_bytes());
            [&message, address.as_bytes(), b"notification"].concat()
        };
        let number_only = [&3_i64.to_be_bytes()[..], b"notification"].concat();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            assert_eq!(received(&message("127.0.0.1:23456")).await, message("127.0.0.1:7"));
            assert_eq!(received(&number_only).await, number_only);
        });
    }
}
