//! Owner tokens and fencing tokens.

use std::fmt;

/// 128 random bits, drawn for each claim before anything is sent. They prove that a lease belongs to the claim.
///
/// `Debug` does not show them, and there is no `Display`, because the token is enough to end the lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerToken([u8; 16]);

impl OwnerToken {
    /// The token with these bytes. Only for backends that read it back from a store, and for tests.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes that the store keeps.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerToken(..)")
    }
}

/// A number that grows with every grant of a lock, for ever.
///
/// Send it to the protected resource with every write. The resource remembers the highest token that it has seen and
/// refuses lower ones. Only that stops a holder that was paused for too long (see Kleppmann, "How to do distributed
/// locking", 2016).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The token with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number, for the protected resource.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FencingToken({})", self.0)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
