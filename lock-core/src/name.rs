//! Lock names and the codec that turns them into a store's keys.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_decode_str, utf8_percent_encode};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// The bytes that an encoded name escapes: all but `A-Z a-z 0-9 _ -`.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_').remove(b'-');

/// The length of the digest form: `~` and 64 hexadecimal digits.
const DIGEST_LEN: usize = 65;

/// The name of a lock: 1 to [`LockName::MAX_BYTES`] bytes of UTF-8, any characters.
///
/// Names are compared byte by byte. Names that differ in case, in trailing space, in Unicode
/// normalisation or in a control character are different locks.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockName(Arc<str>);

impl LockName {
    /// The longest lock name, in bytes of UTF-8.
    pub const MAX_BYTES: usize = 1024;

    /// Checks a name.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) when the name is empty or longer than
    /// [`LockName::MAX_BYTES`].
    pub fn new(name: impl AsRef<str>) -> Result<Self> {
        let name = name.as_ref();
        if name.is_empty() {
            return Err(Error::invalid("a lock name must not be empty"));
        }
        if name.len() > Self::MAX_BYTES {
            return Err(Error::invalid(format!(
                "a lock name must have at most {} bytes (got {})",
                Self::MAX_BYTES,
                name.len()
            )));
        }
        Ok(Self(name.into()))
    }

    /// The name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// The name in the alphabet `A-Z a-z 0-9 _ - % ~`, at most `limit` bytes long.
    ///
    /// Every other byte becomes `%XX`. If that is longer than `limit`, the result is `~` and the SHA-256 of the name in
    /// hexadecimal. A plain form never contains `~`, so no two names share an encoding (short of a SHA-256 collision).
    /// The encoding is part of the stored state and never changes.
    ///
    /// # Panics
    /// When `limit` is below 65, the length of the digest form.
    pub fn encode(&self, limit: usize) -> Cow<'_, str> {
        assert!(limit >= DIGEST_LEN, "an encoded name needs at least {DIGEST_LEN} bytes");
        let plain: Cow<'_, str> = utf8_percent_encode(&self.0, ESCAPED).into();
        if plain.len() <= limit {
            return plain;
        }
        let digest = Sha256::digest(self.0.as_bytes());
        let mut out = String::with_capacity(DIGEST_LEN);
        out.push('~');
        for byte in digest {
            use fmt::Write;
            let _ = write!(out, "{byte:02x}");
        }
        out.into()
    }

    /// Writes the same without building the string of a plain form first.
    ///
    /// # Panics
    /// As [`encode`](Self::encode).
    pub fn encoded(&self, limit: usize) -> impl fmt::Display {
        if self.is_plain_within(limit) {
            Encoded::Plain(utf8_percent_encode(&self.0, ESCAPED))
        } else {
            Encoded::Whole(self.encode(limit))
        }
    }

    /// Writes the plain form, however long it is: at most three bytes for each byte of the name.
    pub fn encoded_whole(&self) -> impl fmt::Display {
        self.encoded(3 * Self::MAX_BYTES)
    }

    /// What the [whole](Self::encoded_whole) encoded names of all locks begin with whose names begin with `prefix`.
    /// `None` if no name is as long.
    pub fn encoded_prefix(prefix: &str) -> Option<String> {
        match prefix.is_empty() {
            true => Some(String::new()),
            false => Self::new(prefix).ok().map(|name| name.encoded_whole().to_string()),
        }
    }

    /// Whether [`encode`](Self::encode) returns the plain form, from which the name can be decoded, and not the digest
    /// form.
    pub fn is_plain_within(&self, limit: usize) -> bool {
        // An encoded byte takes at most three, so a short name needs no count.
        self.0.len() <= limit / 3 || utf8_percent_encode(&self.0, ESCAPED).map(str::len).sum::<usize>() <= limit
    }

    /// The name of which `encoded` is the plain form; `None` for the digest form, and for what [`encode`](Self::encode)
    /// never returns.
    pub fn decode(encoded: &str) -> Option<Self> {
        let name = Self::new(percent_decode_str(encoded).decode_utf8().ok()?).ok()?;
        (name.encode(encoded.len().max(DIGEST_LEN)) == encoded).then_some(name)
    }
}

enum Encoded<'a> {
    Plain(PercentEncode<'a>),
    Whole(Cow<'a, str>),
}

impl fmt::Display for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(parts) => fmt::Display::fmt(parts, f),
            Self::Whole(text) => f.write_str(text),
        }
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(name: &str) -> String {
        let name = LockName::new(name).unwrap();
        let whole = name.encode(200).into_owned();
        assert_eq!(name.encoded(200).to_string(), whole);
        assert_eq!(name.is_plain_within(200), !whole.starts_with('~'));
        whole
    }

    #[test]
    fn a_name_is_plain_as_long_as_its_encoding_fits() {
        for (name, limit, is_plain) in [("a", 100, true), ("a", 99, false), ("/", 300, true), ("/", 299, false)] {
            let name = LockName::new(name.repeat(100)).unwrap();
            assert_eq!(name.is_plain_within(limit), is_plain, "{limit}");
            assert_eq!(name.encode(limit).starts_with('~'), !is_plain, "{limit}");
        }
    }

    #[test]
    fn golden_encodings_never_change() {
        for (name, golden) in [
            ("orders-42_A", "orders-42_A"),
            ("orders/42", "orders%2F42"),
            ("job ", "job%20"),
            ("{tag}", "%7Btag%7D"),
            ("100%", "100%25"),
            ("a\0b", "a%00b"),
            ("~", "%7E"),
            ("jöb", "j%C3%B6b"),
            ("jo\u{308}b", "jo%CC%88b"),
        ] {
            assert_eq!(encoded(name), golden);
            assert_eq!(LockName::decode(golden), Some(LockName::new(name).unwrap()));
        }
        for odd in ["", "a/b", "%2f", "%zz", "%C3", &encoded(&"x".repeat(201))] {
            assert_eq!(LockName::decode(odd), None, "{odd}");
        }
        assert_eq!(
            encoded(&"x".repeat(201)),
            "~84a0678c90937f5dcf9994d5866668da6b995109c8ad845410559b48a4ecafed".to_owned()
        );
    }

    #[test]
    fn whole_names_begin_with_their_encoded_prefix() {
        let longest = "\u{7f}".repeat(LockName::MAX_BYTES);
        assert_eq!(LockName::new(&longest).unwrap().encoded_whole().to_string(), "%7F".repeat(LockName::MAX_BYTES));
        assert_eq!(LockName::encoded_prefix("a/").as_deref(), Some("a%2F"));
        assert_eq!(LockName::encoded_prefix("").as_deref(), Some(""));
        assert_eq!(LockName::encoded_prefix(&"x".repeat(LockName::MAX_BYTES + 1)), None);
    }

    #[test]
    fn bounds_are_checked() {
        assert!(LockName::new("").is_err());
        assert!(LockName::new("x".repeat(LockName::MAX_BYTES)).is_ok());
        assert!(LockName::new("x".repeat(LockName::MAX_BYTES + 1)).is_err());
    }
}
