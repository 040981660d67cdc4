//! The stored format. It is frozen: tests compare it with golden values.
//!
//! | node | data | kind |
//! |---|---|---|
//! | `<root>` | nothing | persistent |
//! | `<root>/<name>` | `1` | container: the server deletes it when it has had children and has none |
//! | `<root>/<name>/<claim>-<number>` | `1`, a tab, the ttl in ms, a tab, who holds or waits | ephemeral, sequential |
//! | `<root>/.session-<session>` | `1` | ephemeral |
//!
//! - `<name>` is the name of the lock, percent-encoded. `<claim>` is a random number of a claim, `<session>` the number
//!   of a session, both in hexadecimal. `<number>` is the server's.
//! - The nodes of a name are its queue, in the order of their numbers. The first one is the lease. Its fencing token is
//!   the transaction that created it. The data of a claim's node change once at most, in the transaction that deletes
//!   it: that of a release which hands the lock to the next claim.
//! - A client confirms its session by a write of the node of that session.

use std::time::Duration;

use leasehold_core::{Error, HolderInfo, LockName};

use crate::errors::Failure;
use crate::order::Child;

/// No encoded name contains a dot.
const SESSION: &str = ".session-";

/// The data of a node without further data: the version of the format.
pub(crate) const VERSION: &[u8] = b"1";

/// The length of the number of a claim.
const CLAIM: usize = 32;

/// The paths below a root.
#[derive(Clone, Debug)]
pub(crate) struct Nodes {
    /// Begins with a slash, and ends without one.
    root: String,
}

impl Nodes {
    pub(crate) fn new(root: &str) -> Self {
        Self { root: format!("/{root}") }
    }

    pub(crate) fn root(&self) -> &str {
        &self.root
    }

    /// The paths of the root and of the nodes above it, the highest first.
    pub(crate) fn roots(&self) -> impl Iterator<Item = &str> {
        let ends = self.root.match_indices('/').skip(1).map(|(end, _)| end).chain([self.root.len()]);
        ends.map(|end| &self.root[..end])
    }

    pub(crate) fn lock(&self, name: &LockName) -> String {
        format!("{}/{}", self.root, name.encoded_whole())
    }

    pub(crate) fn session(&self, session: i64) -> String {
        format!("{}/{SESSION}{session:016x}", self.root)
    }
}

/// Whether a child of the root is a lock.
pub(crate) fn is_lock(name: &str) -> bool {
    !name.starts_with('.')
}

/// A random number for a claim. Not its owner token: the client crate logs paths.
pub(crate) fn claim_number() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// Takes the name of a node in a queue apart. `None` for a name that this version does not know.
pub(crate) fn parse(name: &str) -> Option<Child> {
    let (claim, number) = name.split_at_checked(CLAIM)?;
    let number = number.strip_prefix('-')?;
    let is_claim = claim.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_number = number.len() >= 10 && number.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit());
    let number = number.parse().ok().filter(|_| is_claim && is_number)?;
    Some(Child { name: name.to_owned(), claim: claim.to_owned(), number })
}

/// Takes all names of a queue apart.
pub(crate) fn parse_all(names: &[String]) -> Result<Vec<Child>, Failure> {
    names.iter().map(|name| parse(name).ok_or_else(Failure::other_format)).collect()
}

/// The data of the node of a claim.
pub(crate) fn data(ttl: Duration, holder: &HolderInfo) -> String {
    format!("1\t{}\t{}", ttl.as_millis(), holder.encode(None))
}

/// The ttl and the holder in the data of a node. `None` for data that this version cannot read.
pub(crate) fn read_data(data: &[u8]) -> Option<(Duration, Option<HolderInfo>)> {
    let text = String::from_utf8_lossy(data);
    let (ttl, holder) = text.strip_prefix("1\t")?.split_once('\t')?;
    let ttl = Duration::from_millis(ttl.parse().ok()?);
    Some((ttl, HolderInfo::decode(holder).map(|(_, holder)| holder)))
}

/// The permissions that a user of locks needs, as commands of `zkCli.sh`: to create and list nodes below the root. The
/// nodes that the user creates belong to this user alone. The password has to be written into the commands.
///
/// # Errors
/// `InvalidInput` for a user with a colon, and for a root or a user that `zkCli.sh` cannot read: it has quotes, but no
/// way to write a quote inside them.
pub fn acl(root: &str, user: &str) -> Result<String, Error> {
    if user.contains(':') {
        return Err(Error::invalid("a ZooKeeper user name must not contain a colon"));
    }
    let nodes = Nodes::new(root.trim_matches('/'));
    let mut commands = String::new();
    for path in nodes.roots() {
        commands.push_str(&format!("create {}\n", word(path)?));
    }
    let login = word(&format!("{user}:PASSWORD"))?;
    commands.push_str(&format!("addauth digest {login}\nsetAcl {} auth::cr\n", word(nodes.root())?));
    Ok(commands)
}

/// One word of `zkCli.sh`, which reads `"…"`, `'…'`, or a word that begins with no quote and has no space.
fn word(text: &str) -> Result<String, Error> {
    let is_plain = !text.starts_with(['"', '\'']) && !text.contains(char::is_whitespace);
    match ['"', '\''].into_iter().find(|&quote| !text.contains(quote)) {
        _ if text.contains(char::is_control) => Err(Error::invalid("zkCli.sh cannot read control characters")),
        _ if is_plain => Ok(text.to_owned()),
        Some(quote) => Ok(format!("{quote}{text}{quote}")),
        None => Err(Error::invalid("zkCli.sh cannot read a word that contains a space and both quotes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_frozen() {
        let nodes = Nodes::new("team/locks");
        for (name, path) in [("job", "/team/locks/job"), ("a/b ü.%", "/team/locks/a%2Fb%20%C3%BC%2E%25")] {
            assert_eq!(nodes.lock(&LockName::new(name).unwrap()), path);
            assert_eq!(LockName::decode(&path["/team/locks/".len()..]).unwrap().as_str(), name);
        }
        assert_eq!(nodes.session(-0x7b), "/team/locks/.session-ffffffffffffff85");
        assert_eq!(nodes.session(0x7b), "/team/locks/.session-000000000000007b");
        assert_eq!(nodes.roots().collect::<Vec<_>>(), ["/team", "/team/locks"]);
        let holder = HolderInfo::of_this_process("label").unwrap();
        let data = data(Duration::from_secs(3), &holder);
        assert!(data.starts_with("1\t3000\t"), "{data}");
        let (ttl, read) = read_data(data.as_bytes()).unwrap();
        assert_eq!((ttl, read.unwrap().label.as_str()), (Duration::from_secs(3), "label"));
    }

    #[test]
    fn a_node_of_a_queue_is_taken_apart() {
        let claim = claim_number();
        for (number, expected) in [
            ("0000000000", 0),
            ("2147483647", i64::from(i32::MAX)),
            ("-2147483648", i64::from(i32::MIN)),
            ("-000000001", -1),
            ("0000000002147483648", i64::from(i32::MAX) + 1),
        ] {
            let name = format!("{claim}-{number}");
            assert_eq!(parse(&name), Some(Child { name: name.clone(), claim: claim.clone(), number: expected }));
        }
        for name in ["", "??", "x-0000000000", "2-0123456789abcdef0123456789abcdef-0000000001"] {
            assert_eq!(parse(name), None, "{name}");
        }
        for number in ["", "1", "000000000x", "+000000000", "1-0000000000"] {
            assert_eq!(parse(&format!("{claim}-{number}")), None, "{number}");
        }
        assert_eq!(parse(&format!("{}-0000000000", claim.to_uppercase().replace(|c: char| c.is_numeric(), "G"))), None);
    }

    #[test]
    fn data_of_other_versions_are_unreadable() {
        for text in ["", "1", "2\t3000\thost", "??", "10\t1\t", "1\tx\thost"] {
            assert_eq!(read_data(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn the_acl_names_the_root() {
        assert_eq!(
            acl("/team/locks/", "ann").unwrap(),
            "create /team\ncreate /team/locks\naddauth digest ann:PASSWORD\nsetAcl /team/locks auth::cr\n"
        );
    }

    /// What `zkCli.sh` makes of a line: `MyCommandOptions.parseCommand` of ZooKeeper 3.4 to 3.9, with its two patterns
    /// `\s*([^"']\S*|"[^"]*"|'[^']*')\s*` and `^(['"])(.*)(\1)$`.
    fn read_by_zk_cli(line: &str) -> Vec<String> {
        let (mut words, mut rest) = (Vec::new(), line.trim_start());
        while let Some(first) = rest.chars().next() {
            let end = match first {
                '"' | '\'' => rest[1..].find(first).map_or(rest.len(), |at| at + 2),
                _ => rest.find(char::is_whitespace).unwrap_or(rest.len()),
            };
            let (word, after) = rest.split_at(end);
            let is_quoted = word.len() > 1 && first == word.chars().last().unwrap() && matches!(first, '"' | '\'');
            words.push(if is_quoted { word[1..word.len() - 1].to_owned() } else { word.to_owned() });
            rest = after.trim_start();
        }
        words
    }

    #[test]
    fn zk_cli_reads_the_root_and_the_user() {
        for (root, user) in
            [("a b", "ann"), ("a'b c", "an n"), ("a\"b c/d", "o'hara"), ("a\"b'c", "\"ann"), ("ü", "'ann")]
        {
            let commands: Vec<_> = acl(root, user).unwrap().lines().map(read_by_zk_cli).collect();
            let whole = format!("/{root}");
            assert_eq!(
                commands[commands.len() - 3..],
                [
                    vec!["create".to_owned(), whole.clone()],
                    vec!["addauth".to_owned(), "digest".to_owned(), format!("{user}:PASSWORD")],
                    vec!["setAcl".to_owned(), whole, "auth::cr".to_owned()],
                ]
            );
        }
        for (root, user) in [("a\"b 'c", "ann"), ("a", "a\" 'b"), ("a\nb", "ann"), ("a", "ann:x")] {
            assert!(acl(root, user).is_err(), "{root:?} {user:?}");
        }
    }
}
