//! The wire format of ZooKeeper, as far as the test needs it.

use std::io::{self, Read, Write};

/// A reply is never larger: the server refuses larger nodes and lists.
const MAX_REPLY: usize = 64 << 20;

/// A request under construction.
#[derive(Default)]
pub(super) struct Request(Vec<u8>);

impl Request {
    pub(super) fn bool(mut self, value: bool) -> Self {
        self.0.push(value.into());
        self
    }

    pub(super) fn int(mut self, value: i32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(super) fn long(mut self, value: i64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(super) fn bytes(self, bytes: &[u8]) -> Self {
        let mut request = self.int(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
        request.0.extend(bytes);
        request
    }

    pub(super) fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }

    /// Sends it with its length.
    pub(super) fn send(self, to: &mut impl Write) -> io::Result<()> {
        let packet = Self::default().bytes(&self.0).0;
        to.write_all(&packet)
    }
}

/// A reply that is read from its beginning to its end.
pub(super) struct Reply {
    bytes: Vec<u8>,
    read: usize,
}

impl Reply {
    pub(super) fn receive(from: &mut impl Read) -> io::Result<Self> {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let length = usize::try_from(i32::from_be_bytes(length)).ok().filter(|length| *length <= MAX_REPLY);
        let mut bytes = vec![0; length.ok_or_else(broken)?];
        from.read_exact(&mut bytes)?;
        Ok(Self { bytes, read: 0 })
    }

    fn take(&mut self, length: usize) -> io::Result<&[u8]> {
        let end = self.read.checked_add(length).ok_or_else(broken)?;
        let taken = self.bytes.get(self.read..end).ok_or_else(broken)?;
        self.read = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| broken())
    }

    pub(super) fn int(&mut self) -> io::Result<i32> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    pub(super) fn long(&mut self) -> io::Result<i64> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    pub(super) fn bytes(&mut self) -> io::Result<Vec<u8>> {
        // -1 for no bytes.
        let length = usize::try_from(self.int()?).unwrap_or(0);
        Ok(self.take(length)?.to_vec())
    }

    pub(super) fn text(&mut self) -> io::Result<String> {
        String::from_utf8(self.bytes()?).map_err(|_| broken())
    }

    pub(super) fn texts(&mut self) -> io::Result<Vec<String>> {
        let count = usize::try_from(self.int()?).unwrap_or(0);
        (0..count).map(|_| self.text()).collect()
    }
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not a reply of ZooKeeper")
}
