//! The stored format. It is frozen: tests compare it with golden values.
//!
//! | key | value | attached to |
//! |---|---|---|
//! | `<prefix>/<name>/<claim>` | `1`, a tab, who holds or waits | the etcd lease of the claim |
//! | `<prefix>/.epochs/<lease>` | nothing | that etcd lease |
//!
//! - `<name>` is the name of the lock, percent-encoded. `<claim>` is a number that no other claim has as long as the
//!   key exists, with 32 hexadecimal digits. `<lease>` is the number of an etcd lease, with 16.
//! - The keys of a name are its queue, in the order of their create revisions. The first one is the lease. Its fencing
//!   token is its create revision.
//! - The epoch of an etcd lease is the mod revision of its second key, 0 while there is none. Every transaction that
//!   creates a key compares the epoch. To withdraw a claim, a client changes the epoch: no transaction that it sent
//!   before has any effect after that.

use leasehold_core::backend::Claim;
use leasehold_core::{HolderInfo, LockName};

/// No encoded name contains a dot.
const EPOCHS: &str = ".epochs/";

/// The version of the format.
const VERSION: &str = "1\t";

/// The keys below a prefix.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// Ends with a slash.
    prefix: String,
}

/// A key of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueKey<'a> {
    /// The encoded name.
    pub(crate) name: &'a str,
    pub(crate) is_claim: bool,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: format!("{prefix}/") }
    }

    /// What the keys of all claims of a lock begin with.
    pub(crate) fn queue(&self, name: &LockName) -> String {
        format!("{}{}/", self.prefix, name.encoded_whole())
    }

    pub(crate) fn claim(&self, name: &LockName, id: u128) -> String {
        format!("{}{id:032x}", self.queue(name))
    }

    pub(crate) fn epoch(&self, lease: i64) -> String {
        format!("{}{EPOCHS}{lease:016x}", self.prefix)
    }

    /// What the keys of all locks begin with whose names begin with this text. `None` if no name is as long.
    pub(crate) fn names_with(&self, text: &str) -> Option<String> {
        Some(format!("{}{}", self.prefix, LockName::encoded_prefix(text)?))
    }

    /// Takes the key of a claim apart. `None` for other keys.
    pub(crate) fn parse<'a>(&self, key: &'a [u8]) -> Option<QueueKey<'a>> {
        let (name, claim) = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?.split_once('/')?;
        let is_claim = claim.len() == 32 && claim.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        (!name.starts_with('.')).then_some(QueueKey { name, is_claim })
    }
}

/// The value of the key of a claim.
pub(crate) fn value(claim: &Claim) -> String {
    format!("{VERSION}{}", claim.holder().encode(None))
}

/// Who wrote the value of a key. `None` for a value that this version cannot read.
pub(crate) fn read_value(value: &[u8]) -> Option<Option<HolderInfo>> {
    let text = value.strip_prefix(VERSION.as_bytes())?;
    Some(HolderInfo::decode(&String::from_utf8_lossy(text)).map(|(_, holder)| holder))
}

/// The end of the range of keys that begin with `prefix`.
pub(crate) fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    // No byte of UTF-8 is 255, so the last one can be raised.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// The permissions that a user of locks needs, as commands of `etcdctl` for a POSIX shell: reads and writes below the
/// prefix. etcd has no permission for leases.
pub fn role(prefix: &str, role: &str) -> String {
    commands("readwrite", prefix, role)
}

/// The permissions of a user who can see who holds a lock, and writes nothing.
pub fn read_only_role(prefix: &str, role: &str) -> String {
    commands("read", prefix, role)
}

fn commands(permission: &str, prefix: &str, role: &str) -> String {
    let (role, keys) = (quoted(role), quoted(&format!("{}/", prefix.trim_matches('/'))));
    // What follows `--` is no option, whatever it begins with.
    format!("etcdctl role add -- {role}\netcdctl role grant-permission --prefix=true -- {role} {permission} {keys}\n")
}

/// One word of a POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold_core::backend::OwnerToken;

    use super::*;

    fn claim(name: &str) -> Claim {
        let holder = Arc::new(HolderInfo::of_this_process("label").unwrap());
        Claim::new(LockName::new(name).unwrap(), OwnerToken::from_bytes([7; 16]), holder)
    }

    const ID: u128 = 0x0012_3435_3637_3839_6162_6364_6566_00ff;

    #[test]
    fn the_format_is_frozen() {
        let keys = Keys::new("leasehold");
        for (name, key) in [
            ("job", "leasehold/job/001234353637383961626364656600ff"),
            ("a/b ü.%", "leasehold/a%2Fb%20%C3%BC%2E%25/001234353637383961626364656600ff"),
        ] {
            assert_eq!(keys.claim(&LockName::new(name).unwrap(), ID), key);
            let parsed = keys.parse(key.as_bytes()).unwrap();
            assert!(parsed.is_claim);
            assert_eq!(LockName::decode(parsed.name).unwrap().as_str(), name);
        }
        assert_eq!(keys.epoch(0x7b), "leasehold/.epochs/000000000000007b");
        assert!(value(&claim("job")).starts_with("1\t"));
        let longest = "/".repeat(LockName::MAX_BYTES);
        assert_eq!(keys.queue(&LockName::new(&longest).unwrap()), format!("leasehold/{}/", "%2F".repeat(1024)));
    }

    #[test]
    fn values_of_other_versions_are_unreadable() {
        assert_eq!(read_value(value(&claim("job")).as_bytes()).unwrap().unwrap().label, "label");
        for text in ["", "1", "2\thost", "??", "10\t"] {
            assert_eq!(read_value(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn other_keys_are_no_claims() {
        let keys = Keys::new("leasehold");
        for key in ["leasehold/.epochs/000000000000007b", "other/job/x", "leasehold/job", "leasehold"] {
            assert_eq!(keys.parse(key.as_bytes()), None, "{key}");
        }
        for key in ["leasehold/job/x", "leasehold/job/303132333435363738396162636465fg", "leasehold/job/"] {
            assert_eq!(keys.parse(key.as_bytes()), Some(QueueKey { name: "job", is_claim: false }), "{key}");
        }
    }

    #[test]
    fn a_range_ends_behind_its_prefix() {
        assert_eq!(range_end("a/"), b"a0");
        assert!(keys_between("a/", "a/\u{10ffff}") && !keys_between("a/", "a0") && !keys_between("a/", "a"));
    }

    fn keys_between(prefix: &str, key: &str) -> bool {
        key.as_bytes() >= prefix.as_bytes() && key.as_bytes() < range_end(prefix).as_slice()
    }

    #[test]
    fn roles_name_the_prefix() {
        assert!(role("leasehold", "locks").ends_with("--prefix=true -- 'locks' readwrite 'leasehold/'\n"));
        assert!(read_only_role("/leasehold/", "locks").ends_with("--prefix=true -- 'locks' read 'leasehold/'\n"));
    }
}
