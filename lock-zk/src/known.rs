//! The locks whose nodes this client has used, so that it does not create them again with every acquire.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use leasehold_core::backend::kit::lock;

/// The most paths that are remembered. A path that was forgotten costs a request more.
const MOST: usize = 4_096;

/// Paths of locks. The server deletes the node of a lock without claims after some time, so a path that is known may
/// not exist.
#[derive(Default)]
pub(crate) struct Known(Mutex<HashSet<Arc<str>>>);

impl Known {
    pub(crate) fn contains(&self, path: &str) -> bool {
        lock(&self.0).contains(path)
    }

    pub(crate) fn add(&self, path: &Arc<str>) {
        let mut paths = lock(&self.0);
        if paths.len() >= MOST && !paths.contains(path) {
            paths.clear();
        }
        paths.insert(path.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounded_number_of_paths_is_remembered() {
        let known = Known::default();
        let path = |index: usize| Arc::from(format!("/locks/{index}"));
        for index in 0..MOST + 1 {
            known.add(&path(index));
            known.add(&path(index));
        }
        assert!(known.contains("/locks/4096") && !known.contains("/locks/0"));
        assert_eq!(lock(&known.0).len(), 1);
    }
}
