//! The file of a server's data.

use std::io;
use std::path::{Path, PathBuf};

/// Between the data of a node and the counter of its children: its ACL, four numbers of 8 bytes, and its own version.
const TO_COUNTER: usize = 8 + 4 * 8 + 4;

/// A file of a stopped server's data, of which one number can be changed: the counter of a node's children, from which
/// the server takes the numbers of sequential nodes. No request sets it.
pub(super) struct Snapshot {
    file: PathBuf,
    bytes: Vec<u8>,
}

impl Snapshot {
    /// Reads the newest snapshot of a folder.
    pub(super) fn newest(folder: &Path) -> io::Result<Self> {
        let mut newest = None;
        for entry in std::fs::read_dir(folder)? {
            let file = entry?.path();
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let zxid = name.strip_prefix("snapshot.").and_then(|zxid| u64::from_str_radix(zxid, 16).ok());
            newest = newest.max(zxid.map(|zxid| (zxid, file)));
        }
        let (_, file) = newest.ok_or_else(|| io::Error::other("the server has written no snapshot"))?;
        Ok(Self { bytes: std::fs::read(&file)?, file })
    }

    /// Changes the counter of a node's children, and writes the file.
    pub(super) fn set_counter(mut self, path: &str, counter: i32) -> io::Result<()> {
        let absent = || io::Error::other(format!("the snapshot has no node {path}"));
        // Each seal covers all bytes before it, including an earlier seal.
        let seals = self.seals();
        let mut name = u32::try_from(path.len()).map_err(io::Error::other)?.to_be_bytes().to_vec();
        name.extend(path.as_bytes());
        let found = self.bytes.windows(name.len()).position(|window| *window == *name).ok_or_else(absent)?;
        let data = found + name.len();
        let length = self.bytes.get(data..data + 4).and_then(|length| length.try_into().ok()).map(i32::from_be_bytes);
        let length = usize::try_from(length.ok_or_else(absent)?).unwrap_or(0);
        let at = data + 4 + length + TO_COUNTER;
        self.bytes.get_mut(at..at + 4).ok_or_else(absent)?.copy_from_slice(&counter.to_be_bytes());
        for seal in seals {
            let sum = u64::from(adler32(&self.bytes[..seal])).to_be_bytes();
            self.bytes[seal..seal + 8].copy_from_slice(&sum);
        }
        std::fs::write(self.file, self.bytes)
    }

    /// Where the seals begin: 8 bytes with the sum of all bytes before them, then the path `/`.
    fn seals(&self) -> Vec<usize> {
        const END: &[u8] = &[0, 0, 0, 1, b'/'];

        let mut seals = Vec::new();
        let (mut low, mut high) = (1, 0);
        for (at, byte) in self.bytes.iter().enumerate() {
            let sum = (u64::from(high) << 16 | u64::from(low)).to_be_bytes();
            if self.bytes[at..].starts_with(&sum) && self.bytes[at + 8..].starts_with(END) {
                seals.push(at);
            }
            (low, high) = next(low, high, *byte);
        }
        seals
    }
}

fn adler32(bytes: &[u8]) -> u32 {
    let (low, high) = bytes.iter().fold((1, 0), |(low, high), byte| next(low, high, *byte));
    high << 16 | low
}

fn next(low: u32, high: u32, byte: u8) -> (u32, u32) {
    const MODULUS: u32 = 65_521;

    let low = (low + u32::from(byte)) % MODULUS;
    (low, (high + low) % MODULUS)
}
