//! Why a server takes no session. The client crate only tells that there is none, so another connection asks the
//! server.

use std::io::{self, ErrorKind};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout, timeout_at};

/// How long this may take, within the bound of the call.
const BOUND: Duration = Duration::from_millis(300);

/// A server that has too many connections closes one as soon as it is open.
const CLOSED_WITHIN: Duration = Duration::from_millis(50);

/// No server's reply about its state is longer.
const LONGEST_REPLY: u64 = 4096;

/// The first byte of an alert of TLS.
const TLS_ALERT: u8 = 21;

pub(crate) const SILENT: &str = "no reply in time (`timeout` in the URL)";

const CLOSED: &str =
    "it closes connections at once: it has too many of this host (`maxClientCnxns`), or is being started";

const UNTRUSTED: &str = "TLS with it fails: `ca` must be the authority of its certificate, which must name this host";

/// Asks the server at an address why an attempt to open a session has failed.
pub(crate) async fn why(address: &str, with_tls: bool, until: Instant) -> String {
    match timeout_at(until.min(Instant::now() + BOUND), ask(address, with_tls)).await {
        Ok(Ok(why)) => why.to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => SILENT.to_owned(),
    }
}

async fn ask(address: &str, with_tls: bool) -> io::Result<&'static str> {
    let addresses = lookup_host(address).await;
    let addresses = addresses.map_err(|error| io::Error::new(error.kind(), format!("unknown host name: {error}")))?;
    let mut stream = match TcpStream::connect(&*addresses.collect::<Vec<_>>()).await {
        Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => return Ok(CLOSED),
        connected => connected?,
    };
    if let Ok(Ok(0) | Err(_)) = timeout(CLOSED_WITHIN, stream.peek(&mut [0])).await {
        return Ok(CLOSED);
    }
    // A port that expects TLS replies to no less than five bytes.
    let _ = stream.write_all(b"srvr\n").await;
    let mut reply = Vec::new();
    let _ = stream.take(LONGEST_REPLY).read_to_end(&mut reply).await;
    Ok(meaning(&reply, with_tls))
}

fn meaning(reply: &[u8], with_tls: bool) -> &'static str {
    let has = |text: &str| reply.windows(text.len()).any(|part| part == text.as_bytes());
    match reply.first() {
        None if with_tls => UNTRUSTED,
        None => "it replies nothing: does this port expect TLS (`zks://`), and is it one of ZooKeeper?",
        Some(&TLS_ALERT) if !with_tls => "it expects TLS: begin the URL with `zks://`",
        Some(&TLS_ALERT) => UNTRUSTED,
        _ if has("Mode: read-only") => "it is read-only, because it reaches no majority of the servers",
        _ if has("not currently serving") => "it serves no clients, because it reaches no majority of the servers",
        _ if !has("Zookeeper") && !has("whitelist") => "it is no ZooKeeper",
        _ if with_tls => "it expects no TLS on this port: begin the URL with `zk://`",
        _ => "the connection broke while a session was opened",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What servers of version 3.8 reply.
    #[test]
    fn a_reply_names_the_reason() {
        for (reply, with_tls, reason) in [
            (&b""[..], false, "zks://"),
            (b"", true, "authority"),
            (b"\x15\x03\x03\x00\x02\x02\x46", false, "expects TLS"),
            (b"Zookeeper version: 3.8.0\nMode: read-only\n", false, "read-only"),
            (b"This ZooKeeper instance is not currently serving requests\n", false, "no majority"),
            (b"HTTP/1.1 400 Bad Request\r\n", false, "no ZooKeeper"),
            (b"Zookeeper version: 3.8.0\nMode: standalone\n", true, "zk://"),
            (b"srvr is not executed because it is not in the whitelist.\n", true, "zk://"),
            (b"Zookeeper version: 3.8.0\nMode: standalone\n", false, "broke"),
        ] {
            assert!(meaning(reply, with_tls).contains(reason), "{}", String::from_utf8_lossy(reply));
        }
    }
}
