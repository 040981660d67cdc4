//! Claims: one attempt of one client to hold a lock.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::{Error, Result};
use crate::name::LockName;
use crate::token::OwnerToken;

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// By one holder at a time.
    #[default]
    Exclusive,
}

/// What a claim wants while another holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum IfHeld {
    /// A place in the server's queue, where the server keeps one.
    #[default]
    Queue,
    /// Nothing: the answer is [`Held`](crate::Acquisition::Held), and nothing is kept at the store.
    Leave,
}

/// One attempt of one client to hold a lock. It exists before, during and after its lease. Cheap to clone.
///
/// Two claims are two owners, even in one task, on one connection, in one session.
#[derive(Clone)]
#[non_exhaustive]
pub struct Claim(Arc<Inner>);

struct Inner {
    name: LockName,
    owner: OwnerToken,
    mode: Mode,
    if_held: IfHeld,
    holder: Arc<HolderInfo>,
}

impl Claim {
    /// A claim of the lock `name` by a fresh `owner`.
    pub fn new(name: LockName, owner: OwnerToken, mode: Mode, holder: Arc<HolderInfo>) -> Self {
        Self(Arc::new(Inner { name, owner, mode, if_held: IfHeld::Queue, holder }))
    }

    /// The same claim with another wish for when the lock is held. [`Claim::new`] wants a place.
    #[must_use]
    pub fn if_held(self, if_held: IfHeld) -> Self {
        let Inner { name, owner, mode, holder, .. } = &*self.0;
        Self(Arc::new(Inner { name: name.clone(), owner: *owner, mode: *mode, if_held, holder: holder.clone() }))
    }

    /// The same claim under another name, for a backend that wraps another one.
    #[must_use]
    pub fn renamed(&self, name: LockName) -> Self {
        Self::new(name, self.0.owner, self.0.mode, self.0.holder.clone()).if_held(self.0.if_held)
    }

    /// The lock.
    pub fn name(&self) -> &LockName {
        &self.0.name
    }

    /// What proves that a lease is this claim's.
    pub fn owner(&self) -> &OwnerToken {
        &self.0.owner
    }

    /// How it wants to hold the lock.
    pub fn mode(&self) -> Mode {
        self.0.mode
    }

    /// What it wants while another holds the lock.
    pub fn wish(&self) -> IfHeld {
        self.0.if_held
    }

    /// Who claims, for people.
    pub fn holder(&self) -> &HolderInfo {
        &self.0.holder
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("name", &self.0.name).field("mode", &self.0.mode).finish_non_exhaustive()
    }
}

/// Who holds or claims a lock, for people who look at the store. Never used for ownership.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderInfo {
    /// The host's name.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// When the client was made, in seconds since the Unix epoch by the host's wall clock.
    pub started: u64,
    /// A label that the user chose; empty when there is none.
    pub label: String,
}

/// The longest stored holder information, in bytes.
pub const MAX_HOLDER_BYTES: usize = 512;

/// The longest label, in bytes.
pub const MAX_LABEL_BYTES: usize = 128;

impl HolderInfo {
    /// The information of this process, with a label.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) when the label is longer than [`MAX_LABEL_BYTES`] or
    /// has a control character.
    pub fn of_this_process(label: &str) -> Result<Self> {
        if label.len() > MAX_LABEL_BYTES || label.chars().any(char::is_control) {
            return Err(Error::invalid(format!(
                "a holder's label has at most {MAX_LABEL_BYTES} bytes and no control characters"
            )));
        }
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        Ok(Self { host: host_name(), pid: std::process::id(), started, label: label.to_owned() })
    }

    /// The stored form: lock name, host, pid, start and label, separated by tabs, at most
    /// [`MAX_HOLDER_BYTES`] bytes. Control characters become spaces, what is too long is cut. A store that knows the
    /// name from elsewhere may leave it out.
    pub fn encode(&self, name: Option<&LockName>) -> String {
        let (pid, started) = (self.pid.to_string(), self.started.to_string());
        let name = name.map_or("", LockName::as_str);
        let parts = [(name, 200), (&*self.host, 100), (&*pid, 10), (&*started, 20), (&*self.label, MAX_LABEL_BYTES)];
        let mut out = String::with_capacity(128);
        for (index, (text, limit)) in parts.into_iter().enumerate() {
            if index > 0 {
                out.push('\t');
            }
            let end = (0..=text.len().min(limit)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
            let text = &text[..end];
            // Every acquire encodes it, and it mostly is what it should be.
            if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
                out.push_str(text);
            } else {
                out.extend(text.chars().map(|c| if c.is_control() { ' ' } else { c }));
            }
        }
        out
    }

    /// Reads the stored form: the lock's name as far as it was kept, and the holder. `None` when it is not one.
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
        assert!(stored.len() <= MAX_HOLDER_BYTES, "{}", stored.len());
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
