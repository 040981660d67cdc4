//! Who holds a lock, for people.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::{Error, Result};
use crate::name::LockName;

/// Who holds or claims a lock, for people who inspect the store. Never used for ownership.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderInfo {
    /// The host's name.
    pub host: String,
    /// The id of the process.
    pub pid: u32,
    /// When the client was created, in seconds since the Unix epoch by the host's wall clock.
    pub started: u64,
    /// A label that the user chose; empty if there is none.
    pub label: String,
}

impl HolderInfo {
    /// The longest stored form, in bytes.
    pub const MAX_BYTES: usize = 512;

    /// The longest label, in bytes.
    pub const MAX_LABEL_BYTES: usize = 128;

    /// The information of this process, with a label.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) when the label is longer than [`Self::MAX_LABEL_BYTES`] or
    /// has a control character.
    pub fn of_this_process(label: &str) -> Result<Self> {
        if label.len() > Self::MAX_LABEL_BYTES || label.chars().any(char::is_control) {
            return Err(Error::invalid(format!(
                "a holder's label must have at most {} bytes and no control characters",
                Self::MAX_LABEL_BYTES
            )));
        }
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        Ok(Self { host: host_name(), pid: std::process::id(), started, label: label.to_owned() })
    }

    /// The stored form: lock name, host, pid, start and label, separated by tabs, at most
    /// [`Self::MAX_BYTES`] bytes. Control characters become spaces, and a part that is too long is cut. A store
    /// that has the name elsewhere may leave it out.
    pub fn encode(&self, name: Option<&LockName>) -> String {
        let (pid, started) = (self.pid.to_string(), self.started.to_string());
        let name = name.map_or("", LockName::as_str);
        let parts =
            [(name, 200), (&*self.host, 100), (&*pid, 10), (&*started, 20), (&*self.label, Self::MAX_LABEL_BYTES)];
        let mut out = String::with_capacity(128);
        for (index, (text, limit)) in parts.into_iter().enumerate() {
            if index > 0 {
                out.push('\t');
            }
            let end = (0..=text.len().min(limit)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
            let text = &text[..end];
            // Each acquire encodes it, so the common case, plain ASCII, is copied whole.
            if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
                out.push_str(text);
            } else {
                out.extend(text.chars().map(|c| if c.is_control() { ' ' } else { c }));
            }
        }
        out
    }

    /// Decodes the stored form into the name of the lock, as far as it was stored, and the holder. Returns `None` for
    /// any other text.
    pub fn decode(stored: &str) -> Option<(String, Self)> {
        let mut parts = stored.split('\t');
        let mut next = || parts.next().map(str::to_owned);
        let (name, host) = (next()?, next()?);
        let (pid, started) = (next()?.parse().ok()?, next()?.parse().ok()?);
        let label = next()?;
        Some((name, Self { host, pid, started, label }))
    }
}

fn host_name() -> String {
    #[cfg(unix)]
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    let name = std::env::var("COMPUTERNAME").unwrap_or_default();
    if name.is_empty() { "unknown".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_information_survives_the_store_and_keeps_its_bound() {
        let info = HolderInfo { host: "h".repeat(300), pid: u32::MAX, started: u64::MAX, label: "l".repeat(128) };
        let name = LockName::new("n\töb".repeat(200)).unwrap();
        let stored = info.encode(Some(&name));
        assert!(stored.len() <= HolderInfo::MAX_BYTES, "{}", stored.len());
        let (kept, read) = HolderInfo::decode(&stored).unwrap();
        assert!(kept.starts_with("n öbn"));
        assert_eq!((read.pid, read.started, read.label), (info.pid, info.started, info.label));
    }

    #[test]
    fn a_label_is_checked() {
        assert!(HolderInfo::of_this_process("nightly").is_ok());
        assert!(HolderInfo::of_this_process("a\tb").is_err());
        assert!(HolderInfo::of_this_process(&"x".repeat(129)).is_err());
    }
}
