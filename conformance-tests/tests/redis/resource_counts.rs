//! The resources of a prefix at the server.

use leasehold_conformance::ResourceCounts;
use leasehold_test_servers::Reply;

use super::stored::{Head, Stored};

impl Stored<'_> {
    /// Counts all keys under the prefix. A key that is not Leasehold's fails the case.
    pub(super) fn resource_counts(&self) -> ResourceCounts {
        let mut resource_counts = ResourceCounts::default();
        for key in self.keys() {
            let rest = key.strip_prefix(self.prefix).unwrap_or(&key).to_owned();
            match rest.split_once('}').map(|(_, kind)| kind) {
                // Of the node of a cluster.
                Some("") if rest.starts_with("epoch{") => {}
                Some("") => match self.query(&["GET", &key]) {
                    Reply::Bytes(raw) if Head::read(&raw).deadline > self.now() => resource_counts.leases += 1,
                    Reply::Bytes(_) => resource_counts.fences += 1,
                    _ => {}
                },
                Some(":q") => match self.live_places(&key) {
                    // Its places are dead; the key expires.
                    0 => resource_counts.other += 1,
                    places => resource_counts.places += places,
                },
                Some(kind) if kind.starts_with(":t:") => resource_counts.tombstones += 1,
                Some(kind) if kind.starts_with(":f:") => {}
                None if rest == "epoch" => {}
                _ => panic!("a key that is no part of the format: {key:?}"),
            }
        }
        resource_counts
    }

    /// All keys under the prefix. Some contain owner tokens, so they must not be printed.
    fn keys(&self) -> Vec<String> {
        let (mut keys, mut cursor) = (Vec::new(), "0".to_owned());
        loop {
            let mut page =
                self.query(&["SCAN", &cursor, "MATCH", &format!("{}*", self.prefix), "COUNT", "1000"]).items();
            keys.extend(page.pop().map(Reply::items).unwrap_or_default().iter().map(Reply::text));
            cursor = page.pop().map(|cursor| cursor.text()).unwrap_or_default();
            if cursor == "0" {
                keys.sort();
                keys.dedup();
                return keys;
            }
        }
    }
}
