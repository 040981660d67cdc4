//! The resources of a root at the server.

use leasehold_conformance::ResourceCounts;

use super::stored::Stored;

impl Stored<'_> {
    /// Counts all nodes under the root. A node that is not Leasehold's fails the case.
    pub(super) fn resource_counts(&self) -> ResourceCounts {
        let mut counts = ResourceCounts::default();
        self.side.sync().unwrap_or_else(|error| panic!("no sync: {error}"));
        for name in self.side.children(self.root).unwrap_or_else(|error| panic!("no nodes: {error}")) {
            if name.starts_with('.') {
                // It ends with its session, which has a connection.
                assert!(name.starts_with(".session-"), "a node that is no part of the format: {name:?}");
                continue;
            }
            let queue = self.side.children(&format!("{}/{name}", self.root));
            let queue = queue.unwrap_or_else(|error| panic!("no nodes: {error}"));
            for claim in &queue {
                assert!(claim.len() >= 43, "a node that is no part of the format: {claim:?}");
            }
            match queue.len() as u64 {
                // The server deletes the container.
                0 => counts.fences += 1,
                nodes => {
                    counts.leases += 1;
                    counts.places += nodes - 1;
                }
            }
        }
        counts
    }
}
