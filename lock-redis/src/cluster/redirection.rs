//! What a node replies to a request that it does not serve.

use super::slots::Slot;
use crate::sentinel::Address;

/// Why a node does not serve a request. The request certainly had no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirection {
    /// Another node serves the slot.
    Moved(Slot, Address),
    /// The node is handing the slot over, and has none of the keys of the request. This request, and no other one, may
    /// go to the node that takes over.
    Ask(Slot, Address),
    /// The slot is being handed over, and the node has some of the keys of the request, but not all.
    TryAgain,
    /// No node serves the slot, or too few nodes see each other.
    Down,
}

/// In errors of calls inside a script. The state of the cluster does not change while a script runs, so the first call
/// fails that writes.
const DOWN_IN_A_SCRIPT: &str = "command while the cluster is down";

impl Redirection {
    /// Reads an error reply of the node `from`. `None`: it says something else, and the request may have had an effect.
    ///
    /// The whole text counts: an error that a script of the user raises may begin with any of these words, and servers
    /// put the position in the script behind it.
    pub(crate) fn of(text: &str, from: &Address) -> Option<Self> {
        let words: Vec<_> = text.trim_end().split(' ').collect();
        match words[..] {
            ["MOVED", slot, to] => Some(Self::Moved(number(slot)?, address(to, from)?)),
            ["ASK", slot, to] => Some(Self::Ask(number(slot)?, address(to, from)?)),
            ["TRYAGAIN", .., "slot"] => Some(Self::TryAgain),
            ["CLUSTERDOWN", .., "served" | "down" | "commands"] => Some(Self::Down),
            _ => text.contains(DOWN_IN_A_SCRIPT).then_some(Self::Down),
        }
    }
}

fn number(slot: &str) -> Option<Slot> {
    Slot::new(slot.parse().ok()?)
}

/// The address in a redirection.
fn address(to: &str, from: &Address) -> Option<Address> {
    // IPv6 addresses have no brackets.
    let (host, port) = to.rsplit_once(':')?;
    Some(Address { host: host_of(Some(host), from), port: port.parse().ok().filter(|port| *port != 0)? })
}

/// The host of a node, as the node `from` names it. A node that does not know its own name, or keeps it to itself, has
/// the host by which the client has reached `from` (`cluster-preferred-endpoint-type`).
pub(super) fn host_of(named: Option<&str>, from: &Address) -> String {
    let named = named.map(|host| host.trim_start_matches('[').trim_end_matches(']'));
    named.filter(|host| !matches!(*host, "" | "?")).unwrap_or(&from.host).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::Failure;

    fn at(host: &str, port: u16) -> Address {
        Address { host: host.to_owned(), port }
    }

    fn slot(number: u16) -> Slot {
        Slot::new(number).unwrap()
    }

    fn read(text: &str) -> Option<Redirection> {
        Redirection::of(text, &at("asked.example", 7802))
    }

    #[test]
    fn each_text_of_a_server_says_where_a_request_goes() {
        use Redirection::{Ask, Down, Moved, TryAgain};
        for (text, redirection) in [
            // Redis 7.0, with each `cluster-preferred-endpoint-type`.
            ("MOVED 2906 127.0.0.1:7801", Moved(slot(2906), at("127.0.0.1", 7801))),
            ("MOVED 15495 nodeb.example:7802", Moved(slot(15_495), at("nodeb.example", 7802))),
            ("MOVED 2906 ?:7801", Moved(slot(2906), at("asked.example", 7801))),
            ("MOVED 2906 :7801", Moved(slot(2906), at("asked.example", 7801))),
            ("MOVED 16383 ::1:7000", Moved(slot(16_383), at("::1", 7000))),
            ("MOVED 16383 [::1]:7000", Moved(slot(16_383), at("::1", 7000))),
            ("ASK 2906 127.0.0.1:7802", Ask(slot(2906), at("127.0.0.1", 7802))),
            ("TRYAGAIN Multiple keys request during rehashing of slot", TryAgain),
            ("CLUSTERDOWN Hash slot not served", Down),
            ("CLUSTERDOWN The cluster is down", Down),
            ("CLUSTERDOWN The cluster is down and only accepts read commands", Down),
            (
                "ERR Script attempted to execute a write command while the cluster is down and readonly script: \
                 a8e045687019c1230c01d4717e0579b12b1a1b50, on @user_script:1.",
                Down,
            ),
            ("ERR Script attempted to execute a command while the cluster is down", Down),
        ] {
            assert_eq!(read(text), Some(redirection), "{text}");
        }
    }

    #[test]
    fn a_request_that_may_have_had_an_effect_is_not_sent_elsewhere() {
        for text in [
            "ERR Script attempted to access a non local key in a cluster node script: \
             6e4df46b9549f53ff1e2ce5dbb6e0faefdd02e84, on @user_script:1.",
            "ERR Script attempted to access keys that do not hash to the same slot script: f, on @user_function:2.",
            "CROSSSLOT Keys in request don't hash to the same slot",
            "NOSCRIPT No matching script. Please use EVAL.",
            "READONLY You can't write against a read only replica.",
            // Raised by a script of the user, which may have written before.
            "MOVED 2906 127.0.0.1:7801 script: 6e4df46b9549f53ff1e2ce5dbb6e0faefdd02e84, on @user_script:1.",
            "ERR user_script:1: MOVED 2906 127.0.0.1:7801",
            "TRYAGAIN script: 6e4df46b9549f53ff1e2ce5dbb6e0faefdd02e84, on @user_script:1.",
            "CLUSTERDOWN script: 6e4df46b9549f53ff1e2ce5dbb6e0faefdd02e84, on @user_script:1.",
            // No server replies this.
            "MOVED 16384 127.0.0.1:7801",
            "MOVED x 127.0.0.1:7801",
            "MOVED 1 127.0.0.1",
            "MOVED 1 127.0.0.1:0",
            "MOVED 1 127.0.0.1:70000",
            "MOVED 1",
            "ASK",
            "",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn the_client_crate_keeps_the_text() {
        for text in
            ["MOVED 2906 127.0.0.1:7801", "ASK 2906 :7802", "TRYAGAIN Multiple keys request during rehashing of slot"]
        {
            let value = redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap();
            let Err(Failure::ErrorReply(kept)) = crate::errors::checked(value) else { panic!("{text}") };
            assert_eq!(kept, text);
        }
    }
}
