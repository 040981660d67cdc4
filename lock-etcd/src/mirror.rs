//! The queue of one lock as its watch delivers it, as a pure state machine: events go in, decisions come out. It knows
//! neither network nor clock.
//!
//! A watch begins at the present revision and is followed by a read. A read that began after the watch was created has
//! every key that the watch will not deliver. Changes that the watch delivered before the read arrived are applied to
//! it by their revisions. A watch of the key before the own one would begin at a revision that has passed, and the
//! server serves such watches only every 100 ms.
//!
//! **A claim is first only after its own key has been delivered**: a mirror that lags behind does not yet have the keys
//! of others that were there before it.

use std::collections::{BTreeMap, HashMap};

use leasehold_core::backend::OwnerToken;

/// A claim that has a key in the queue.
#[derive(Clone)]
pub(crate) struct Member<T> {
    pub(crate) key: Vec<u8>,
    pub(crate) revision: i64,
    /// The server has granted it the lock, as far as this client knows.
    pub(crate) holds: bool,
    /// Returned with every decision about the claim.
    pub(crate) of: T,
}

/// The watch of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// There is none.
    Closed,
    /// It was requested.
    Opening(i64),
    /// It is open since this revision, and the read has not arrived.
    Reading(i64),
    Live(i64),
}

/// A change of the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Put { key: Vec<u8>, create_revision: i64, mod_revision: i64 },
    Deleted { key: Vec<u8>, mod_revision: i64 },
}

impl Change {
    fn revision(&self) -> i64 {
        match self {
            Self::Put { mod_revision, .. } | Self::Deleted { mod_revision, .. } => *mod_revision,
        }
    }
}

/// What follows from a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision<T> {
    /// The claim holds the lock.
    Granted { of: T, revision: i64 },
    /// The key of the claim is gone.
    Gone { of: T, owner: OwnerToken },
}

/// What the mirror knows of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    First,
    Behind,
    Gone,
    /// The mirror is not complete, or does not have the key yet.
    Unknown,
}

/// The queue of one lock.
pub(crate) struct Mirror<T> {
    phase: Phase,
    claims: HashMap<OwnerToken, Member<T>>,
    /// The keys of the queue, by their create revisions.
    places: BTreeMap<i64, Vec<u8>>,
    revisions: HashMap<Vec<u8>, i64>,
    /// The revision of the newest read.
    read_at: i64,
    /// The newest revision that the places include.
    applied: i64,
    /// Changes that arrived before the read.
    early: Vec<Change>,
    /// A claim of this client had to wait, at any time since the client had no claim here.
    is_contended: bool,
}

impl<T: Clone> Mirror<T> {
    pub(crate) fn new() -> Self {
        Self {
            phase: Phase::Closed,
            claims: HashMap::new(),
            places: BTreeMap::new(),
            revisions: HashMap::new(),
            read_at: 0,
            applied: 0,
            early: Vec::new(),
            is_contended: false,
        }
    }

    /// Adds a claim whose key the server has created.
    pub(crate) fn add(&mut self, owner: OwnerToken, claim: Member<T>) -> Vec<Decision<T>> {
        self.is_contended = !claim.holds || self.is_contended && !self.claims.is_empty();
        self.claims.insert(owner, claim);
        self.decide()
    }

    /// The claim has ended.
    pub(crate) fn remove(&mut self, owner: &OwnerToken) {
        self.claims.remove(owner);
    }

    /// The watch with this number was requested.
    pub(crate) fn opening(&mut self, watch: i64) {
        self.phase = Phase::Opening(watch);
        self.early.clear();
    }

    /// The watch with this number is open. Returns whether the queue has to be read now.
    pub(crate) fn created(&mut self, watch: i64) -> bool {
        let is_new = self.phase == Phase::Opening(watch);
        if is_new {
            self.phase = Phase::Reading(watch);
        }
        is_new
    }

    /// The watch, if it was requested.
    pub(crate) fn watch(&self) -> Option<i64> {
        match self.phase {
            Phase::Closed => None,
            Phase::Opening(watch) | Phase::Reading(watch) | Phase::Live(watch) => Some(watch),
        }
    }

    /// The watch has ended, or its stream.
    pub(crate) fn closed(&mut self) {
        self.phase = Phase::Closed;
    }

    /// The queue at this revision, read after the watch with this number was created.
    pub(crate) fn read(
        &mut self,
        watch: i64,
        revision: i64,
        places: impl IntoIterator<Item = (Vec<u8>, i64)>,
    ) -> Vec<Decision<T>> {
        // A read for an earlier watch may lack what the present one will not deliver.
        if self.phase != Phase::Reading(watch) {
            return Vec::new();
        }
        self.phase = Phase::Live(watch);
        self.places.clear();
        self.revisions.clear();
        for (key, create_revision) in places {
            self.places.insert(create_revision, key.clone());
            self.revisions.insert(key, create_revision);
        }
        (self.read_at, self.applied) = (revision, revision);
        for change in std::mem::take(&mut self.early) {
            self.apply(change);
        }
        self.decide()
    }

    /// A change that the watch with this number has delivered.
    pub(crate) fn changed(&mut self, watch: i64, changes: Vec<Change>) -> Vec<Decision<T>> {
        match self.phase {
            Phase::Live(own) if own == watch => {
                for change in changes {
                    self.apply(change);
                }
                self.decide()
            }
            Phase::Reading(own) if own == watch => {
                self.early.extend(changes);
                Vec::new()
            }
            // Of an earlier watch.
            _ => Vec::new(),
        }
    }

    /// Applies a change, unless the read included it.
    fn apply(&mut self, change: Change) {
        // Not compared with `applied`: one transaction may change several keys, all at one revision.
        if change.revision() <= self.read_at {
            return;
        }
        self.applied = self.applied.max(change.revision());
        match change {
            Change::Put { key, create_revision, .. } => {
                if let Some(former) = self.revisions.insert(key.clone(), create_revision) {
                    self.places.remove(&former);
                }
                self.places.insert(create_revision, key);
            }
            Change::Deleted { key, .. } => {
                if let Some(revision) = self.revisions.remove(&key) {
                    self.places.remove(&revision);
                }
            }
        }
    }

    /// What is known of a claim.
    pub(crate) fn position(&self, owner: &OwnerToken) -> Position {
        match (self.phase, self.claims.get(owner)) {
            (Phase::Live(_), Some(claim)) => self.position_of(claim),
            _ => Position::Unknown,
        }
    }

    fn position_of(&self, claim: &Member<T>) -> Position {
        match self.revisions.get(&claim.key) {
            Some(revision) if *revision == claim.revision => match self.places.first_key_value() {
                Some((first, _)) if first == revision => Position::First,
                _ => Position::Behind,
            },
            // An earlier or later claim may have the same key.
            _ if self.applied >= claim.revision => Position::Gone,
            _ => Position::Unknown,
        }
    }

    fn decide(&mut self) -> Vec<Decision<T>> {
        // Before the queue was read, a key that is not known may still exist.
        if !matches!(self.phase, Phase::Live(_)) {
            return Vec::new();
        }
        let mut decisions = Vec::new();
        let mut gone = Vec::new();
        for (owner, claim) in &self.claims {
            match self.position_of(claim) {
                Position::First if !claim.holds => {
                    decisions.push(Decision::Granted { of: claim.of.clone(), revision: claim.revision });
                }
                Position::Gone => {
                    decisions.push(Decision::Gone { of: claim.of.clone(), owner: *owner });
                    gone.push(*owner);
                }
                Position::First | Position::Behind | Position::Unknown => {}
            }
        }
        for owner in gone {
            self.claims.remove(&owner);
        }
        let first = self.places.first_key_value().map(|(revision, _)| *revision);
        for claim in self.claims.values_mut() {
            claim.holds |= first == Some(claim.revision) && self.revisions.get(&claim.key) == Some(&claim.revision);
        }
        decisions
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// Whether claims of this client had to wait, or others wait now.
    pub(crate) fn is_contended(&self) -> bool {
        // The key of the last claim may still be there.
        self.is_contended || self.places.len() > 1
    }
}

#[cfg(test)]
mod tests;
