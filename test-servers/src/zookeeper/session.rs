//! A session of the test.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::wire::{Reply, Request};

/// How long the server may take to reply to the test.
pub(super) const REPLY_BOUND: Duration = Duration::from_secs(5);

const AUTH: i32 = 100;
const CLOSE: i32 = -11;

/// The number of the request that authenticates.
const AUTH_REQUEST: i32 = -4;

/// A session over a connection that blocks, minimal on purpose: the test must not use the client crate of the library.
/// It sets no watches and sends no pings.
#[derive(Debug)]
pub(super) struct Session {
    stream: TcpStream,
    id: i64,
    requests: i32,
}

impl Session {
    /// Opens a session with this ttl, within the server's bounds.
    pub(super) fn open(addr: SocketAddr, ttl: Duration) -> io::Result<Self> {
        Self::connect(addr, ttl, 0, &[0; 16])
    }

    /// Takes over the session with this number from its client.
    pub(super) fn take_over(addr: SocketAddr, id: i64) -> io::Result<Self> {
        Self::connect(addr, REPLY_BOUND, id, &password(id))
    }

    fn connect(addr: SocketAddr, ttl: Duration, id: i64, password: &[u8]) -> io::Result<Self> {
        let mut stream = TcpStream::connect_timeout(&addr, REPLY_BOUND)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_BOUND))?;
        stream.set_write_timeout(Some(REPLY_BOUND))?;
        let ttl = i32::try_from(ttl.as_millis()).unwrap_or(i32::MAX);
        let request = Request::default().int(0).long(0).int(ttl).long(id).bytes(password).bool(false);
        request.send(&mut stream)?;
        let mut reply = Reply::receive(&mut stream)?;
        let (_protocol, ttl, id) = (reply.int()?, reply.int()?, reply.long()?);
        match ttl {
            ..=0 => Err(io::Error::other(Refused::EXPIRED)),
            _ => Ok(Self { stream, id, requests: 0 }),
        }
    }

    /// Its number.
    pub(super) fn id(&self) -> i64 {
        self.id
    }

    /// Authenticates by a scheme such as `digest`.
    pub(super) fn authenticate(&mut self, scheme: &str, secret: &str) -> io::Result<()> {
        let request = Request::default().int(AUTH_REQUEST).int(AUTH).int(0).text(scheme).text(secret);
        request.send(&mut self.stream)?;
        self.receive().map(drop)
    }

    /// Sends a request and waits for the reply.
    pub(super) fn call(&mut self, operation: i32, body: impl FnOnce(Request) -> Request) -> io::Result<Reply> {
        self.requests += 1;
        body(Request::default().int(self.requests).int(operation)).send(&mut self.stream)?;
        self.receive()
    }

    /// Ends the session. The server deletes its ephemeral nodes.
    pub(super) fn close(mut self, bound: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(bound))?;
        self.call(CLOSE, |request| request).map(drop)
    }

    fn receive(&mut self) -> io::Result<Reply> {
        let mut reply = Reply::receive(&mut self.stream)?;
        let (_number, _zxid, code) = (reply.int()?, reply.long()?, reply.int()?);
        match code {
            0 => Ok(reply),
            code => Err(io::Error::other(Refused(code))),
        }
    }
}

/// The server's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused(i32);

impl Refused {
    pub(super) const NO_NODE: Self = Self(-101);
    pub(super) const EXPIRED: Self = Self(-112);

    /// The server's error in an error of a call.
    pub(super) fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(code) = self;
        let text = match code {
            -4 => "connection loss",
            -8 => "bad arguments",
            -101 => "no node",
            -102 => "no authentication",
            -103 => "bad version",
            -110 => "node exists",
            -111 => "not empty",
            -112 => "session expired",
            -118 => "session moved",
            _ => return write!(f, "error {code}"),
        };
        f.write_str(text)
    }
}

impl std::error::Error for Refused {}

/// The password of a session: the server derives it from the number and a constant.
fn password(id: i64) -> [u8; 16] {
    const SECRET: i64 = 0xB341_5C00;
    const MASK: i64 = (1 << 48) - 1;
    const MULTIPLIER: i64 = 0x5_DEEC_E66D;

    // Java's generator of random numbers.
    let mut state = (id ^ SECRET ^ MULTIPLIER) & MASK;
    let mut password = [0; 16];
    for bytes in password.chunks_exact_mut(4) {
        state = state.wrapping_mul(MULTIPLIER).wrapping_add(0xB) & MASK;
        let number = u32::try_from(state >> 16).unwrap_or_default();
        bytes.copy_from_slice(&number.to_le_bytes());
    }
    password
}

/// Sends a four-letter word and returns the reply.
pub(super) fn word(addr: SocketAddr, word: &str, bound: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&addr, bound)?;
    stream.set_read_timeout(Some(bound))?;
    stream.write_all(word.as_bytes())?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    Ok(String::from_utf8_lossy(&reply).into_owned())
}
