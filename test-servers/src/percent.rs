//! The encoding of names in the keys of stores, without the library.

use std::fmt::Write as _;

/// Every byte but letters, digits, `_` and `-` becomes `%XX`.
pub fn percent_encoded(name: &str) -> String {
    name.bytes().fold(String::new(), |mut encoded, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => encoded.push(char::from(byte)),
            _ => write!(encoded, "%{byte:02X}").expect("a String has room"),
        }
        encoded
    })
}
