//! Keys and leases, as the server has them.

use std::fmt;
use std::io;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::side::{EtcdSide, bytes, encoded, list_of_bytes, number};

/// A key of the server.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EtcdKey {
    /// The key.
    #[serde(deserialize_with = "bytes")]
    pub key: Vec<u8>,
    /// Its value.
    #[serde(deserialize_with = "bytes")]
    pub value: Vec<u8>,
    /// The lease that it ends with; 0 if it has none.
    #[serde(deserialize_with = "number")]
    pub lease: i64,
    /// The revision that created it.
    #[serde(deserialize_with = "number")]
    pub create_revision: i64,
    /// The revision that changed it last.
    #[serde(deserialize_with = "number")]
    pub mod_revision: i64,
    /// How often it was written since it was created.
    #[serde(deserialize_with = "number")]
    pub version: i64,
}

// A key or its value may contain an owner token.
impl fmt::Debug for EtcdKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut key = f.debug_struct("EtcdKey");
        key.field("lease", &self.lease).field("create_revision", &self.create_revision);
        key.field("mod_revision", &self.mod_revision).field("version", &self.version).finish_non_exhaustive()
    }
}

/// A set of keys.
#[derive(Clone, PartialEq, Eq)]
pub enum EtcdKeys {
    /// One key.
    One(Vec<u8>),
    /// All keys with a prefix, which may be empty.
    Prefix(Vec<u8>),
    /// All keys from the first one to before the second one.
    Range(Vec<u8>, Vec<u8>),
}

impl fmt::Debug for EtcdKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::One(_) => "One(…)",
            Self::Prefix(_) => "Prefix(…)",
            Self::Range(..) => "Range(…)",
        })
    }
}

impl EtcdKeys {
    /// The keys with this prefix.
    pub fn with_prefix(prefix: impl AsRef<[u8]>) -> Self {
        Self::Prefix(prefix.as_ref().to_vec())
    }

    /// The fields by which a request names them.
    pub(super) fn named(&self) -> Value {
        match self {
            Self::One(key) => json!({ "key": encoded(key) }),
            // Every key.
            Self::Prefix(prefix) if prefix.is_empty() => json!({ "key": encoded([0]), "range_end": encoded([0]) }),
            Self::Prefix(prefix) => json!({ "key": encoded(prefix), "range_end": encoded(end_of(prefix)) }),
            Self::Range(first, end) => json!({ "key": encoded(first), "range_end": encoded(end) }),
        }
    }
}

/// The first key after the keys with this prefix.
fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // This means the end of all keys.
    vec![0]
}

/// A lease of the server.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdLease {
    /// Its number.
    pub id: i64,
    /// What is left of it, in whole seconds, rounded down.
    pub left: Duration,
    /// Its ttl.
    pub ttl: Duration,
    /// The keys that end with it.
    pub keys: Vec<Vec<u8>>,
}

impl fmt::Debug for EtcdLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lease = f.debug_struct("EtcdLease");
        lease.field("id", &self.id).field("left", &self.left).field("ttl", &self.ttl);
        lease.field("keys", &self.keys.len()).finish()
    }
}

/// The part that many replies share.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Header {
    #[serde(deserialize_with = "number")]
    revision: i64,
}

#[derive(Deserialize)]
struct Written {
    header: Header,
}

#[derive(Deserialize)]
struct Found {
    header: Header,
    #[serde(default)]
    kvs: Vec<EtcdKey>,
}

#[derive(Deserialize)]
struct Deleted {
    #[serde(default, deserialize_with = "number")]
    deleted: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LeaseReply {
    #[serde(rename = "ID", deserialize_with = "number")]
    id: i64,
    #[serde(rename = "TTL", deserialize_with = "number")]
    left: i64,
    #[serde(rename = "grantedTTL", deserialize_with = "number")]
    ttl: i64,
    #[serde(deserialize_with = "list_of_bytes")]
    keys: Vec<Vec<u8>>,
}

#[derive(Deserialize)]
struct Leases {
    #[serde(default)]
    leases: Vec<LeaseReply>,
}

/// Keys.
impl EtcdSide {
    /// Writes a key, bound to a lease unless it is 0. Returns the revision.
    ///
    /// # Errors
    /// The server's, and those of the connection.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, lease: i64) -> io::Result<i64> {
        let body = json!({ "key": encoded(key), "value": encoded(value), "lease": lease.to_string() });
        Ok(self.call::<Written>("kv/put", "Put", &body)?.header.revision)
    }

    /// Reads a key.
    ///
    /// # Errors
    /// The same.
    pub fn get(&self, key: impl AsRef<[u8]>) -> io::Result<Option<EtcdKey>> {
        Ok(self.range(&json!({ "key": encoded(key) }))?.kvs.pop())
    }

    /// Reads all keys with a prefix, in order.
    ///
    /// # Errors
    /// The same.
    pub fn keys(&self, prefix: impl AsRef<[u8]>) -> io::Result<Vec<EtcdKey>> {
        Ok(self.range(&EtcdKeys::with_prefix(prefix).named())?.kvs)
    }

    /// The revision of its data.
    ///
    /// # Errors
    /// The same.
    pub fn revision(&self) -> io::Result<i64> {
        Ok(self.range(&json!({ "key": encoded([0]), "count_only": true }))?.header.revision)
    }

    /// Deletes a key. Returns whether it existed.
    ///
    /// # Errors
    /// The same.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> io::Result<bool> {
        let body = json!({ "key": encoded(key) });
        Ok(self.call::<Deleted>("kv/deleterange", "DeleteRange", &body)?.deleted > 0)
    }

    /// Deletes all keys with a prefix. Returns their number.
    ///
    /// # Errors
    /// The same.
    pub fn delete_all(&self, prefix: impl AsRef<[u8]>) -> io::Result<u64> {
        let body = EtcdKeys::with_prefix(prefix).named();
        Ok(self.call::<Deleted>("kv/deleterange", "DeleteRange", &body)?.deleted)
    }

    fn range(&self, body: &Value) -> io::Result<Found> {
        self.call("kv/range", "Range", body)
    }
}

/// Leases.
impl EtcdSide {
    /// Grants a lease. Returns its number.
    ///
    /// # Errors
    /// The server's, and those of the connection.
    pub fn grant(&self, ttl: Duration) -> io::Result<i64> {
        let body = json!({ "TTL": ttl.as_secs().to_string() });
        Ok(self.call::<LeaseReply>("lease/grant", "LeaseGrant", &body)?.id)
    }

    /// Ends a lease and deletes its keys, as an operator does.
    ///
    /// # Errors
    /// The same, also if there is no such lease.
    pub fn revoke(&self, lease: i64) -> io::Result<()> {
        self.call::<Value>("lease/revoke", "LeaseRevoke", &json!({ "ID": lease.to_string() })).map(drop)
    }

    /// The numbers of all leases.
    ///
    /// # Errors
    /// The same.
    pub fn leases(&self) -> io::Result<Vec<i64>> {
        let leases = self.call::<Leases>("lease/leases", "LeaseLeases", &json!({}))?.leases;
        Ok(leases.iter().map(|lease| lease.id).collect())
    }

    /// A lease with its keys; none if it has ended.
    ///
    /// # Errors
    /// The same, also if there is no leader.
    pub fn lease(&self, id: i64) -> io::Result<Option<EtcdLease>> {
        let body = json!({ "ID": id.to_string(), "keys": true });
        let reply: LeaseReply = self.call("lease/timetolive", "LeaseTimeToLive", &body)?;
        // -1 for a lease that does not exist.
        let seconds = |number: i64| u64::try_from(number).ok().map(Duration::from_secs);
        let (left, ttl) = (seconds(reply.left), seconds(reply.ttl).unwrap_or_default());
        Ok(left.map(|left| EtcdLease { id, left, ttl, keys: reply.keys }))
    }
}
