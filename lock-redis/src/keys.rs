//! Keys, channels and the permissions on them.

use std::fmt;

use leasehold_core::backend::{Claim, OwnerToken};
use leasehold_core::{LockName, Result};
use redis::{Cmd, RedisWrite};

use crate::cluster::Declared;
use crate::scripts::ScriptCalls;
use crate::settings::check_prefix;

/// The longest encoded name in a key. Longer names take the digest form of [`LockName::encode`].
const MAX_ENCODED: usize = 200;

/// The keys and channels of one prefix.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
    /// The channel on which this client receives its grants.
    pub(crate) channel: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str, client_id: u64) -> Self {
        Self { prefix: prefix.to_owned(), channel: format!("{prefix}c:{client_id:016x}") }
    }

    /// The record of a lock, `prefix{name}`. The scripts derive all other keys of the lock from it.
    pub(crate) fn record(&self, name: &LockName) -> String {
        RecordKey(&self.prefix, name).to_string()
    }

    /// Adds the key of the record to a command.
    pub(crate) fn add_record(&self, command: &mut Cmd, name: &LockName) {
        command.write_arg_fmt(RecordKey(&self.prefix, name));
    }

    /// Adds the record of a claim's lock, and the keys that a call declares beside it.
    pub(crate) fn add_lock(&self, command: &mut Cmd, claim: &Claim, declared: Declared) {
        self.add_record(command, claim.name());
        if let Declared::OneLock { .. } = declared {
            Self::add_more(command, &self.record(claim.name()), Some(claim.owner()), declared);
        }
    }

    /// Adds the keys of the lock with this record that a call declares beside it. A call without an `owner` has no
    /// tombstone.
    pub(crate) fn add_more(command: &mut Cmd, record: &str, owner: Option<&OwnerToken>, declared: Declared) {
        let Declared::OneLock { keys, .. } = declared else { return };
        if keys.queue {
            command.arg(format!("{record}:q"));
        }
        if let Some(owner) = owner.filter(|_| keys.tombstone) {
            command.arg([format!("{record}:t:").as_bytes(), owner.as_bytes()].concat());
        }
    }

    /// Whether the key of the record contains the lock's name, not only its digest.
    pub(crate) fn contains_name(&self, name: &LockName) -> bool {
        name.is_plain_within(MAX_ENCODED)
    }

    /// A pattern that matches all records and little else.
    pub(crate) fn records(&self) -> String {
        format!("{}{{*}}", escaped(&self.prefix))
    }

    /// The encoded name in the key of a record, or `None` for any other key.
    pub(crate) fn encoded_name<'a>(&self, key: &'a str) -> Option<&'a str> {
        let encoded = key.strip_prefix(&*self.prefix)?.strip_prefix('{')?.strip_suffix('}')?;
        (!encoded.contains(['{', '}', ':'])).then_some(encoded)
    }

    /// A key of the user that may be written under the fence of a lock.
    pub(crate) fn fenced(&self, name: &LockName, suffix: &str) -> String {
        format!("{}:f:{suffix}", self.record(name))
    }

    /// The epoch key, which names the last run of the server and the ttls in use.
    pub(crate) fn epoch(&self) -> String {
        format!("{}epoch", self.prefix)
    }

    /// The epoch key of the node of a cluster that serves the slot of this hash tag.
    pub(crate) fn epoch_of_node(&self, tag: &str) -> String {
        format!("{}epoch{{{tag}}}", self.prefix)
    }

    /// The key that says in which run a server of a quorum may vote.
    pub(crate) fn quorum(&self) -> String {
        format!("{}quorum", self.prefix)
    }

    /// The key that says since when a run of a server of a quorum is known to be unsettled.
    pub(crate) fn quorum_since(&self) -> String {
        format!("{}quorum:since", self.prefix)
    }

    /// The channel of messages that replicas confirm.
    pub(crate) fn replicas_channel(&self) -> String {
        format!("{}c:replicas", self.prefix)
    }

    /// The channel on which all clients receive the writes to the epoch key.
    pub(crate) fn epoch_channel(&self) -> String {
        format!("{}c:epoch", self.prefix)
    }
}

/// The prefix and the name.
struct RecordKey<'a>(&'a str, &'a LockName);

impl fmt::Display for RecordKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{{{}}}", self.0, self.1.encoded(MAX_ENCODED))
    }
}

/// The minimal permissions of a user who locks under `prefix`, as rules of `ACL SETUSER`: the keys and channels of the
/// prefix, and the commands that Leasehold sends. The test suite runs with them. `SCAN` is not among them, because it
/// shows the names of all keys of the database: see [`operator_acl`]. With [`ScriptCalls::Functions`], the user needs no
/// `EVAL`.
///
/// For `leasehold:` the result is `resetkeys ~leasehold:* resetchannels &leasehold:c:* nocommands +eval …`. Put
/// `on >password` before it.
///
/// # Errors
/// `InvalidInput`: no URL may have this prefix.
pub fn acl(prefix: &str, calls: ScriptCalls) -> Result<String> {
    check_prefix(prefix)?;
    let (escaped, calls) = (escaped(prefix), calls.permissions());
    Ok(format!("resetkeys ~{escaped}* resetchannels &{escaped}c:* nocommands {calls} {COMMANDS}"))
}

/// Escapes the prefix for use in a pattern.
fn escaped(prefix: &str) -> String {
    let escape = |c| matches!(c, '*' | '?' | '[' | ']' | '\\' | '^').then_some('\\');
    prefix.chars().flat_map(|c| escape(c).into_iter().chain([c])).collect()
}

/// The permissions of an operator: those of [`acl`], and those for listing locks and examining the server. `SCAN` shows
/// the names of all keys in the database, including those outside the prefix.
///
/// # Errors
/// As [`acl`].
pub fn operator_acl(prefix: &str, calls: ScriptCalls) -> Result<String> {
    Ok(format!("{} +scan +acl|whoami", acl(prefix, calls)?))
}

/// The permissions of a user who may only see who holds a lock (`leasehold status` and `leasehold watch`). The scripts
/// of such a user can call only commands that read.
///
/// # Errors
/// As [`acl`].
pub fn read_only_acl(prefix: &str, calls: ScriptCalls) -> Result<String> {
    check_prefix(prefix)?;
    Ok(format!("resetkeys ~{}* resetchannels nocommands {} {READING}", escaped(prefix), calls.permissions()))
}

/// The commands that inspect a lock, and those that its scripts call.
const READING: &str = "+select +time +info +get +mget +exists +hget +hlen +hgetall \
    +cluster|myid +cluster|info +cluster|slots +asking";

/// The commands that a client sends (first line), and those that the scripts call (second line). `HELLO` needs no
/// permission. The client also sends `CLIENT SETINFO` and ignores the reply; servers before 7.2 refuse a rule that
/// names it.
const COMMANDS: &str = "+select +subscribe +wait +cluster|myid +cluster|info +cluster|slots +asking \
    +time +info +get +mget +set +setrange +del +exists +pexpire +pexpireat +hget +hset +hsetnx +hdel +hgetall +publish";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_lock_share_a_hash_tag_and_never_change() {
        let keys = Keys::new("leasehold:", 0xab);
        let name = LockName::new("orders/{42}").unwrap();
        assert_eq!(keys.record(&name), "leasehold:{orders%2F%7B42%7D}");
        assert_eq!(keys.fenced(&name, "balance"), "leasehold:{orders%2F%7B42%7D}:f:balance");
        assert_eq!((keys.epoch(), keys.epoch_channel()), ("leasehold:epoch".into(), "leasehold:c:epoch".into()));
        assert_eq!(keys.channel, "leasehold:c:00000000000000ab");
        let long = LockName::new("x".repeat(201)).unwrap();
        assert_eq!(keys.record(&long), "leasehold:{~84a0678c90937f5dcf9994d5866668da6b995109c8ad845410559b48a4ecafed}");
    }

    #[test]
    fn a_prefix_is_no_pattern() {
        let rules = acl("a*[b]:", ScriptCalls::Eval).unwrap();
        assert!(rules.starts_with(r"resetkeys ~a\*\[b\]:* resetchannels &a\*\[b\]:c:* nocommands "), "{rules}");
        // The rules would be split at the space.
        assert_eq!(acl("a b:", ScriptCalls::Eval).unwrap_err().kind(), leasehold_core::ErrorKind::InvalidInput);
    }
}
