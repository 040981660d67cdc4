//! Why a server takes no session. The client crate only tells that there is none, so another connection asks the
//! server.

use std::io::{self, ErrorKind as IoKind};
use std::time::Duration;

use leasehold_core::backend::kit::{Lookups, connect_to_any, expects_tls};
#[cfg(feature = "tls")]
use leasehold_core::backend::kit::{TlsRefusal, tls_refusal};
use leasehold_core::{Error, ErrorKind};
#[cfg(feature = "tls")]
use rustls::{ClientConnection, pki_types::ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

#[cfg(feature = "tls")]
use crate::settings::Tls;
use crate::shared::Shared;

/// How long this may take, within the bound of the call.
const BOUND: Duration = Duration::from_millis(300);

/// How long one read of a handshake may take. The bound of the call ends the wait sooner, and this the thread.
#[cfg(feature = "tls")]
const HANDSHAKE: Duration = Duration::from_secs(5);

/// A server that has too many connections closes one as soon as it is open.
const CLOSED_WITHIN: Duration = Duration::from_millis(50);

/// No server's reply about its state is longer.
const LONGEST_REPLY: u64 = 4096;

/// The first byte of an alert of TLS.
const TLS_ALERT: u8 = 21;

pub(crate) const SILENT: &str = "no reply in time (`timeout` in the URL)";

const CLOSED: &str =
    "it closes connections at once: it has too many of this host (`maxClientCnxns`), or is being started";

const EXPECTS_TLS: &str = "it expects TLS: begin the URL with `zks://`";

const TLS_FAILS: &str = "TLS with it fails: `ca` must be the authority of its certificate, which must name this host";

/// Asks the server at an address why an attempt to open a session has failed. The error is `Unavailable`, unless the
/// attempt would fail forever.
pub(crate) async fn why(shared: &Shared, address: &str, until: Instant) -> Error {
    let (target, lookups) = (&shared.target, &shared.lookups);
    let asked = timeout_at(until.min(Instant::now() + BOUND), ask(lookups, address, target.is_tls())).await;
    let (kind, why) = match asked {
        Ok(Ok((kind, why))) => (kind, why.to_owned()),
        Ok(Err(error)) => (ErrorKind::Unavailable, error.to_string()),
        Err(_) => (ErrorKind::Unavailable, SILENT.to_owned()),
    };
    // Most servers close a connection without a word if it begins with plain text where they expect TLS.
    if kind == ErrorKind::Unavailable && !target.is_tls() {
        let asked = async {
            let addresses = lookups.of(address, address.to_owned()).await.ok()?;
            expects_tls(addresses, TcpStream::connect).await.then_some(())
        };
        if let Ok(Some(())) = timeout_at(until, asked).await {
            return no_session(ErrorKind::Unsupported, address, EXPECTS_TLS);
        }
    }
    #[cfg(feature = "tls")]
    if let (ErrorKind::Unavailable, Some(tls)) = (kind, &target.tls)
        && let Ok(Some(why)) = timeout_at(until, refusal(tls, address)).await
    {
        return no_session(why.kind(), address, why.advice());
    }
    no_session(kind, address, &why)
}

fn no_session(kind: ErrorKind, address: &str, why: &str) -> Error {
    Error::new(kind, format!("no connection to the server at {address}: {why}"))
}

/// Why no handshake of TLS with the server can succeed. The client crate drops that error.
#[cfg(feature = "tls")]
async fn refusal(tls: &Tls, address: &str) -> Option<TlsRefusal> {
    let (tls, host) = (tls.clone(), address.rsplit_once(':')?.0.to_owned());
    let stream = TcpStream::connect(address).await.ok()?.into_std().ok()?;
    let handshake = move || {
        let (mut stream, name) = (stream, ServerName::try_from(host).map_err(io::Error::other)?);
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(HANDSHAKE))?;
        let config = tls.config().ok_or(IoKind::InvalidInput)?;
        let mut client = ClientConnection::new(config.into(), name).map_err(io::Error::other)?;
        let mut tls = rustls::Stream::new(&mut client, &mut stream);
        // With TLS 1.3, the server refuses a certificate when the client takes the handshake for done. A server that
        // accepts it replies to this command, or closes the connection.
        io::Write::write_all(&mut tls, b"srvr")?;
        io::Read::read(&mut tls, &mut [0])
    };
    let failed = tokio::task::spawn_blocking(handshake).await.ok()?.err()?;
    tls_refusal(&failed)
}

async fn ask(lookups: &Lookups, address: &str, with_tls: bool) -> io::Result<(ErrorKind, &'static str)> {
    let closed = Ok((ErrorKind::Unavailable, CLOSED));
    let addresses = lookups.of(address, address.to_owned()).await;
    let addresses = addresses.map_err(|error| io::Error::new(error.kind(), format!("unknown host name: {error}")))?;
    let mut stream = match connect_to_any(addresses, TcpStream::connect).await {
        Err(error) if matches!(error.kind(), IoKind::BrokenPipe | IoKind::ConnectionReset) => return closed,
        connected => connected?,
    };
    if let Ok(Ok(0) | Err(_)) = timeout(CLOSED_WITHIN, stream.peek(&mut [0])).await {
        return closed;
    }
    // A port that expects TLS replies to no less than five bytes.
    let _ = stream.write_all(b"srvr\n").await;
    let mut reply = Vec::new();
    let _ = stream.take(LONGEST_REPLY).read_to_end(&mut reply).await;
    Ok(meaning(&reply, with_tls))
}

fn meaning(reply: &[u8], with_tls: bool) -> (ErrorKind, &'static str) {
    let has = |text: &str| reply.windows(text.len()).any(|part| part == text.as_bytes());
    let passing = |why| (ErrorKind::Unavailable, why);
    // Only a server that expects TLS sends an alert, and only one that expects none replies to a command.
    let certain = |why| (ErrorKind::Unsupported, why);
    match reply.first() {
        None if with_tls => passing(TLS_FAILS),
        None => passing("it replies nothing: does this port expect TLS (`zks://`), and is it one of ZooKeeper?"),
        Some(&TLS_ALERT) if !with_tls => certain(EXPECTS_TLS),
        Some(&TLS_ALERT) => passing(TLS_FAILS),
        _ if has("Mode: read-only") => passing("it is read-only, because it reaches no majority of the servers"),
        _ if has("not currently serving") => {
            passing("it serves no clients, because it reaches no majority of the servers")
        }
        _ if !has("Zookeeper") && !has("whitelist") => passing("it is no ZooKeeper"),
        _ if with_tls => certain("it expects no TLS on this port: begin the URL with `zk://`"),
        _ => passing("the connection broke while a session was opened"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What servers of version 3.8 reply.
    #[test]
    fn a_reply_names_the_reason() {
        for (reply, with_tls, reason, is_certain) in [
            (&b""[..], false, "zks://", false),
            (b"", true, "authority", false),
            (b"\x15\x03\x03\x00\x02\x02\x46", false, "expects TLS", true),
            (b"Zookeeper version: 3.8.0\nMode: read-only\n", false, "read-only", false),
            (b"This ZooKeeper instance is not currently serving requests\n", false, "no majority", false),
            (b"HTTP/1.1 400 Bad Request\r\n", false, "no ZooKeeper", false),
            (b"Zookeeper version: 3.8.0\nMode: standalone\n", true, "zk://", true),
            (b"srvr is not executed because it is not in the whitelist.\n", true, "zk://", true),
            (b"Zookeeper version: 3.8.0\nMode: standalone\n", false, "broke", false),
        ] {
            let (kind, why) = meaning(reply, with_tls);
            assert!(why.contains(reason), "{}", String::from_utf8_lossy(reply));
            assert_eq!(kind == ErrorKind::Unsupported, is_certain, "{why}");
        }
    }
}
