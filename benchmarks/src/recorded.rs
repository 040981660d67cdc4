//! The script calls that Leasehold sends, recorded at the server, so that a bare connection can send the same calls.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leasehold_core::LockClient;

/// The name of the lock whose calls are recorded.
const NAME: &str = "recorded";

/// A command and its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Call(Vec<Vec<u8>>);

impl Call {
    /// The same call for another lock.
    pub(crate) fn about(&self, name: &str) -> redis::Cmd {
        let mut command = redis::Cmd::new();
        for part in &self.0 {
            match std::str::from_utf8(part) {
                Ok(key) if is_key(key) => command.arg(key.replace(NAME, name)),
                _ => command.arg(part),
            };
        }
        command
    }
}

/// The calls of one acquire and one release of `client`, in order.
pub(crate) async fn pair(client: &LockClient, server: SocketAddr) -> Result<[Call; 2]> {
    // The first pair is not recorded, because its calls only load the scripts into the server.
    client.lock("unheard").acquire().await?.release().await?;
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(b"MONITOR\r\n")?;
    let mut lines = BufReader::new(stream).lines();
    let answer = lines.next().context("the server says nothing")??;
    ensure!(answer == "+OK", "the server does not let us listen: {answer}");
    client.lock(NAME).acquire().await?.release().await?;
    let mut calls = Vec::new();
    while calls.len() < 2 {
        let line = lines.next().context("the server ended")??;
        let Some((from, command)) = line.split_once("] ") else { continue };
        let parts = parts(command);
        let about_us = parts.iter().any(|part| std::str::from_utf8(part).is_ok_and(is_key));
        if !from.ends_with(" lua") && about_us {
            calls.push(Call(parts));
        }
    }
    <[Call; 2]>::try_from(calls).ok().context("there are two calls")
}

fn is_key(part: &str) -> bool {
    part.ends_with(&format!("{{{NAME}}}"))
}

/// Reads `"EVALSHA" "…"`, with the escapes that MONITOR writes.
fn parts(line: &str) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    let mut part: Option<Vec<u8>> = None;
    let mut bytes = line.bytes();
    while let Some(byte) = bytes.next() {
        match (&mut part, byte) {
            (None, b'"') => part = Some(Vec::new()),
            (None, _) => {}
            (Some(_), b'"') => parts.extend(part.take()),
            (Some(open), b'\\') => open.push(match bytes.next() {
                Some(b'x') => {
                    let mut digit = || bytes.next().and_then(|byte| char::from(byte).to_digit(16)).unwrap_or(0);
                    (digit() * 16 + digit()) as u8
                }
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(b't') => b'\t',
                Some(b'a') => 7,
                Some(b'b') => 8,
                Some(other) => other,
                None => b'\\',
            }),
            (Some(open), byte) => open.push(byte),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_read() {
        let read = parts(r#""EVALSHA" "a\"b\\" "\x00\xff\n\t" """#);
        assert_eq!(read, [&b"EVALSHA"[..], b"a\"b\\", b"\x00\xff\n\t", b""]);
    }
}
