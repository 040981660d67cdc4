//! A connection of the test, beside the library under test.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long the server may take to reply to the test.
const REPLY_BOUND: Duration = Duration::from_secs(5);

/// How deep replies may be nested.
const MAX_DEPTH: usize = 8;

/// A reply of the server. An error reply is an error of the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// No value.
    Nil,
    /// A number.
    Int(i64),
    /// A status line, or a value.
    Bytes(Vec<u8>),
    /// Several replies.
    Array(Vec<Reply>),
}

impl Reply {
    /// The text of a status line or value; empty for anything else.
    pub fn text(&self) -> String {
        match self {
            Self::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        }
    }

    /// The number, if it is one.
    pub fn int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            _ => None,
        }
    }

    /// The elements of an array; empty for anything else.
    pub fn items(self) -> Vec<Self> {
        match self {
            Self::Array(items) => items,
            _ => Vec::new(),
        }
    }
}

/// A blocking connection in Redis's protocol (RESP2), minimal on purpose: the test must not use the client crate of the
/// library. It waits for a reply for at most five seconds.
#[derive(Debug)]
pub(super) struct SideConnection {
    stream: BufReader<TcpStream>,
}

impl SideConnection {
    /// Connects without a user.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn open(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, REPLY_BOUND)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_BOUND))?;
        stream.set_write_timeout(Some(REPLY_BOUND))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends one command and reads its reply.
    ///
    /// # Errors
    /// The server's error, or that of the connection, which cannot be used afterwards.
    pub(super) fn command<P: AsRef<[u8]>>(&mut self, parts: &[P]) -> io::Result<Reply> {
        let mut request = format!("*{}\r\n", parts.len()).into_bytes();
        for part in parts {
            let part = part.as_ref();
            request.extend(format!("${}\r\n", part.len()).into_bytes());
            request.extend(part);
            request.extend(b"\r\n");
        }
        self.stream.get_mut().write_all(&request)?;
        self.reply(0)?.map_err(io::Error::other)
    }

    /// One reply, or the server's error.
    fn reply(&mut self, depth: usize) -> io::Result<Result<Reply, String>> {
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| broken(&line))?;
        let count = || rest.parse::<i64>().map_err(|_| broken(&line));
        Ok(Ok(match kind {
            "+" => Reply::Bytes(rest.into()),
            "-" => return Ok(Err(rest.into())),
            ":" => Reply::Int(count()?),
            "$" => match usize::try_from(count()?) {
                Err(_) => Reply::Nil,
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    self.stream.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    Reply::Bytes(bytes)
                }
            },
            "*" if depth < MAX_DEPTH => match usize::try_from(count()?) {
                Err(_) => Reply::Nil,
                Ok(length) => {
                    let mut items = Vec::new();
                    for _ in 0..length {
                        // An error inside an array (EXEC) becomes its text.
                        items.push(self.reply(depth + 1)?.unwrap_or_else(|error| Reply::Bytes(error.into())));
                    }
                    Reply::Array(items)
                }
            },
            _ => return Err(broken(&line)),
        }))
    }

    /// Removes the timeout, and returns the stream, whose shutdown ends a wait.
    pub(super) fn endless(&self) -> io::Result<TcpStream> {
        self.stream.get_ref().set_read_timeout(None)?;
        self.stream.get_ref().try_clone()
    }

    pub(super) fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        let text = String::from_utf8_lossy(&line);
        match text.strip_suffix("\r\n") {
            Some(text) => Ok(text.to_owned()),
            None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")),
        }
    }
}

fn broken(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a reply of Redis: {line:?}"))
}
