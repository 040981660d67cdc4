//! TLS on which the URL and the server do not agree. Waiting does not cure that, so it must not look like a server that
//! cannot be reached.

use std::error::Error as StdError;
use std::io::{self, ErrorKind as IoKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::connect_to_any;
use crate::error::ErrorKind;

/// Why no handshake can succeed before somebody changes a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsRefusal {
    /// The server sends plain text.
    NoTls,
    /// The server's certificate is for another host name.
    OtherName,
    /// The server's certificate is from an authority that the client does not know.
    UnknownAuthority,
    /// The server demands a client's certificate, or refuses that of the client.
    ClientCertificate,
}

impl TlsRefusal {
    /// The kind of an error with this cause. It ends a wait at once.
    pub const fn kind(self) -> ErrorKind {
        match self {
            Self::NoTls | Self::OtherName | Self::UnknownAuthority => ErrorKind::Unsupported,
            Self::ClientCertificate => ErrorKind::Auth,
        }
    }

    /// What is wrong with the server, and what to do about it. For the end of an error's text.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::NoTls => {
                "it expects no TLS on this port: use the scheme without TLS in the URL, or the server's port for TLS"
            }
            Self::OtherName => "its certificate is for another host name: write a name of the certificate into the URL",
            Self::UnknownAuthority => {
                "its certificate is not from a known authority: name the file of its authority by `ca=` in the URL"
            }
            Self::ClientCertificate => {
                "it demands a client's certificate, or refuses that of this client: name one of an authority that it \
                 trusts by `cert=` and `key=` in the URL"
            }
        }
    }
}

/// Why a handshake can never succeed, if its error proves that. `cause` is the error of a connection that uses rustls,
/// of whatever version: the kit knows no library of TLS, so it recognizes the texts.
///
/// `None` if it may pass: a connection that was cut, a certificate that has expired or is not valid yet (it is replaced
/// while clients wait, and they read theirs for each connection), or an alert that has other causes as well, such as
/// `HandshakeFailure`.
pub fn tls_refusal(cause: &(dyn StdError + 'static)) -> Option<TlsRefusal> {
    std::iter::successors(Some(unshared(cause)), |&error| error.source().map(unshared)).find_map(|error| {
        let error = error.downcast_ref::<io::Error>()?;
        // What rustls finds wrong has this kind. A connection that was cut has another one.
        let inner = error.get_ref().filter(|_| error.kind() == IoKind::InvalidData)?;
        meaning(&inner.to_string())
    })
}

/// A client library may share the error of a connection among its requests.
fn unshared<'a>(error: &'a (dyn StdError + 'static)) -> &'a (dyn StdError + 'static) {
    match error.downcast_ref::<Arc<dyn StdError + Send + Sync>>() {
        Some(shared) => &**shared,
        None => error,
    }
}

fn meaning(text: &str) -> Option<TlsRefusal> {
    let begins = |texts: &[&str], text: &str| texts.iter().any(|begin| text.starts_with(begin));
    if let Some(why) = text.strip_prefix("invalid peer certificate: ") {
        return match why {
            why if begins(OTHER_NAME, why) => Some(TlsRefusal::OtherName),
            why if begins(UNTRUSTED, why) => Some(TlsRefusal::UnknownAuthority),
            _ => None,
        };
    }
    if let Some(alert) = text.strip_prefix("received fatal alert: ") {
        return OF_THE_CLIENT.contains(&alert).then_some(TlsRefusal::ClientCertificate);
    }
    (text == NOT_TLS).then_some(TlsRefusal::NoTls)
}

/// The name in the URL is not one of the certificate.
const OTHER_NAME: &[&str] = &["certificate not valid for name", "NotValidForName"];

/// `BadSignature`: the authority of `ca` has the same name as that of the server, and another key. The last two: a
/// certificate that is its own authority, and one that is not for servers.
const UNTRUSTED: &[&str] = &[
    "UnknownIssuer",
    "BadSignature",
    "Other(OtherError(CaUsedAsEndEntity",
    "InvalidPurpose",
    "certificate does not allow extended key usage",
];

/// Alerts about the client's certificate. `BadCertificate` is what servers in Go and Java send if there is none, and for
/// one of an unknown authority. `CertificateExpired` is not among them: it passes with the next certificate.
const OF_THE_CLIENT: &[&str] =
    &["CertificateRequired", "BadCertificate", "UnknownCA", "UnsupportedCertificate", "CertificateUnknown"];

/// A byte that begins no record of TLS.
const NOT_TLS: &str = "received corrupt message of type InvalidContentType";

/// A server that replies at all replies within this time.
const PATIENCE: Duration = Duration::from_millis(500);

/// A ClientHello without contents. Every TLS server refuses it with an alert, and other servers wait for more.
const EMPTY_HELLO: &[u8] = b"\x16\x03\x01\x00\x04\x01\x00\x00\x00";

/// Whether the server at these addresses expects TLS, for a client that has sent it plain text and got no reply. Asks on
/// another connection, by `connect`. `false` if it is not certain. Takes at most half a second.
pub async fn expects_tls<S, F>(addresses: Vec<SocketAddr>, connect: impl Fn(SocketAddr) -> F) -> bool
where
    F: Future<Output = io::Result<S>> + Send + 'static,
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    is_alert(&first_reply(addresses, connect, EMPTY_HELLO).await)
}

fn is_alert(reply: &[u8]) -> bool {
    matches!(reply, [21, 3, ..])
}

/// The first bytes with which the server at these addresses replies to `greeting`, on another connection, by `connect`.
/// Empty if there are none within half a second.
pub async fn first_reply<S, F>(
    addresses: Vec<SocketAddr>,
    connect: impl Fn(SocketAddr) -> F,
    greeting: &[u8],
) -> Vec<u8>
where
    F: Future<Output = io::Result<S>> + Send + 'static,
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut reply = Vec::new();
    let ask = async {
        let mut stream = connect_to_any(addresses, connect).await?;
        stream.write_all(greeting).await?;
        stream.read_buf(&mut reply).await
    };
    // What is certain is in `reply`. All else may pass.
    let _ = tokio::time::timeout(PATIENCE, ask).await;
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of rustls 0.23. Those of real errors are in the tests of the backends with real servers.
    #[test]
    fn only_what_waiting_cannot_cure_is_certain() {
        use TlsRefusal::{ClientCertificate, NoTls, OtherName, UnknownAuthority};
        for (text, certain) in [
            ("invalid peer certificate: UnknownIssuer", Some(UnknownAuthority)),
            ("invalid peer certificate: BadSignature", Some(UnknownAuthority)),
            ("invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))", Some(UnknownAuthority)),
            (
                "invalid peer certificate: certificate not valid for name \"127.0.0.1\"; certificate is only valid for a",
                Some(OtherName),
            ),
            ("received corrupt message of type InvalidContentType", Some(NoTls)),
            ("received fatal alert: CertificateRequired", Some(ClientCertificate)),
            ("received fatal alert: BadCertificate", Some(ClientCertificate)),
            ("received fatal alert: UnknownCA", Some(ClientCertificate)),
            // They pass with the next certificate, or have other causes as well.
            ("invalid peer certificate: certificate expired: verification time 7 (UNIX), but", None),
            ("invalid peer certificate: Expired", None),
            ("invalid peer certificate: certificate not valid yet: verification time 7 (UNIX), but", None),
            ("received fatal alert: CertificateExpired", None),
            ("received fatal alert: HandshakeFailure", None),
            ("received fatal alert: InternalError", None),
            ("received fatal alert: UnrecognisedName", None),
            ("cannot decrypt peer's message", None),
            ("tls handshake eof", None),
        ] {
            let error = || io::Error::new(IoKind::InvalidData, text);
            let shared: Arc<dyn StdError + Send + Sync> = Arc::new(error());
            let nested = crate::Error::no_reply().with_source(shared.clone());
            for cause in [&error() as &(dyn StdError + 'static), &shared, &nested] {
                assert_eq!(tls_refusal(cause), certain, "{text}");
            }
            // The same text from anywhere else proves nothing.
            assert_eq!(tls_refusal(&io::Error::new(IoKind::UnexpectedEof, text)), None);
            assert_eq!(tls_refusal(&crate::Error::no_reply().with_cause(text)), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_an_alert_proves_that_a_server_expects_tls() {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        for (reply, is_tls) in
            [(&b"\x15\x03\x01\x00\x02\x02\x0a"[..], true), (b"-ERR\r\n", false), (b"\x15 years", false), (b"", false)]
        {
            let connect = move |_| async move {
                let (client, mut server) = tokio::io::duplex(64);
                tokio::spawn(async move {
                    let mut hello = [0; 9];
                    server.read_exact(&mut hello).await?;
                    assert_eq!(hello, EMPTY_HELLO);
                    server.write_all(reply).await?;
                    // A server that says nothing keeps the connection open.
                    server.read(&mut hello).await
                });
                Ok(client)
            };
            assert_eq!(expects_tls(vec![address], connect).await, is_tls, "{reply:?}");
        }
        let refuse = |_| async { Err::<tokio::io::DuplexStream, _>(IoKind::ConnectionRefused.into()) };
        assert!(!expects_tls(vec![address], refuse).await);
    }
}
