//! The transactions, and how their replies are read.

use std::sync::atomic::{AtomicUsize, Ordering};

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use leasehold_core::backend::PlaceNumber;

use crate::errors::Failure;
use crate::keys::range_end;

/// How many operations the server takes in a transaction unless it is configured otherwise.
pub(crate) const DEFAULT_OPERATIONS: usize = 128;

/// The most that one transaction of a claim has: those of [`Entry::join`], and the one inside it.
pub(crate) const FEWEST_OPERATIONS: usize = 5;

/// How many operations the server takes in a transaction, as far as it is known: it does not say so, but refuses more.
pub(crate) struct MostOperations(AtomicUsize);

impl MostOperations {
    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// A transaction with so many was refused. From now on none has more than half of them.
    pub(crate) fn refused(&self, operations: usize) {
        self.0.fetch_min((operations / 2).max(1), Ordering::Relaxed);
    }
}

impl Default for MostOperations {
    fn default() -> Self {
        Self(AtomicUsize::new(DEFAULT_OPERATIONS))
    }
}

/// An etcd lease, and the epoch that a transaction expects.
#[derive(Clone, Debug)]
pub(crate) struct LeaseEpoch {
    pub(crate) lease: i64,
    pub(crate) key: String,
    pub(crate) epoch: i64,
}

/// What the transactions of a claim need.
#[derive(Clone)]
pub(crate) struct Entry {
    /// What the keys of the lock begin with.
    pub(crate) queue: String,
    pub(crate) key: String,
    pub(crate) value: String,
    /// The lease that the key is attached to.
    pub(crate) lease: LeaseEpoch,
    /// The lease for a key that is created behind another one, if it is a different one.
    pub(crate) place: Option<LeaseEpoch>,
}

/// A key in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) key: Vec<u8>,
    pub(crate) revision: i64,
    pub(crate) lease: i64,
    pub(crate) value: Vec<u8>,
}

/// The reply to a transaction that creates the key of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// The key was created, and attached to this lease. The first key of the queue is another one, or its own.
    Created { revision: i64, lease: i64, first: Place },
    /// Nothing was changed. The epochs are those of the lease and of that for places.
    Unchanged { epochs: [i64; 2], own: Option<Place>, first: Option<Place> },
}

impl Entry {
    /// Creates the key if the lock is free.
    pub(crate) fn enter_if_free(&self) -> Txn {
        self.enter(vec![is_current(&self.lease), self.is_free()], self.put(&self.lease))
    }

    /// Creates the key, behind all others.
    pub(crate) fn join(&self) -> Txn {
        let is_new = Compare::create_revision(self.key.as_str(), CompareOp::Equal, 0);
        match &self.place {
            None => self.enter(vec![is_current(&self.lease), is_new], self.put(&self.lease)),
            Some(place) => {
                let put =
                    Txn::new().when([self.is_free()]).and_then([self.put(&self.lease)]).or_else([self.put(place)]);
                self.enter(vec![is_current(&self.lease), is_current(place), is_new], TxnOp::txn(put))
            }
        }
    }

    fn enter(&self, compares: Vec<Compare>, put: TxnOp) -> Txn {
        let get = |key: &str| TxnOp::get(key, None);
        let mut reads = vec![get(&self.lease.key), get(&self.key), self.first()];
        reads.extend(self.place.as_ref().map(|place| get(&place.key)));
        Txn::new().when(compares).and_then([put, self.first()]).or_else(reads)
    }

    fn put(&self, lease: &LeaseEpoch) -> TxnOp {
        let options = PutOptions::new().with_lease(lease.lease);
        TxnOp::put(self.key.as_str(), self.value.as_str(), Some(options))
    }

    fn is_free(&self) -> Compare {
        // The server compares each key in the range, so the condition holds only if there is none.
        Compare::create_revision(self.queue.as_str(), CompareOp::Equal, 0).with_range(range_end(&self.queue))
    }

    /// Reads the first key of the queue.
    fn first(&self) -> TxnOp {
        let options = GetOptions::new()
            .with_range(range_end(&self.queue))
            .with_sort(SortTarget::Create, SortOrder::Ascend)
            .with_limit(1);
        TxnOp::get(self.queue.as_str(), Some(options))
    }

    /// Attaches the key to another session, if it is still the one with this create revision. Nothing else changes.
    pub(crate) fn attach(&self, revision: i64) -> Txn {
        let is_same = Compare::create_revision(self.key.as_str(), CompareOp::Equal, revision);
        Txn::new()
            .when([is_current(&self.lease), is_same])
            .and_then([self.put(&self.lease)])
            .or_else([TxnOp::get(self.lease.key.as_str(), None)])
    }

    /// Reads the reply to a transaction that creates the key.
    pub(crate) fn entered(&self, reply: &TxnResponse) -> Result<Entered, Failure> {
        let revision = revision(reply)?;
        let ops = reply.op_responses();
        let place = |index: usize| match ops.get(index) {
            Some(TxnOpResponse::Get(get)) => Ok(get.kvs().first().map(place)),
            _ => Err(Failure::UnexpectedReply),
        };
        if !reply.succeeded() {
            let epochs = [epoch_of(&ops, 0)?, if self.place.is_some() { epoch_of(&ops, 3)? } else { 0 }];
            return Ok(Entered::Unchanged { epochs, own: place(1)?, first: place(2)? });
        }
        let lease = match (ops.first(), &self.place) {
            (Some(TxnOpResponse::Txn(put)), Some(place)) if !put.succeeded() => place.lease,
            (Some(TxnOpResponse::Txn(_) | TxnOpResponse::Put(_)), _) => self.lease.lease,
            _ => return Err(Failure::UnexpectedReply),
        };
        Ok(Entered::Created { revision, lease, first: place(1)?.ok_or(Failure::UnexpectedReply)? })
    }
}

fn is_current(lease: &LeaseEpoch) -> Compare {
    Compare::mod_revision(lease.key.as_str(), CompareOp::Equal, lease.epoch)
}

/// Changes the epoch of a session and deletes the key of a claim: no earlier request of the session takes effect any
/// more.
pub(crate) fn withdraw(key: &str, epoch_key: &str, lease: i64) -> Txn {
    let options = PutOptions::new().with_lease(lease);
    Txn::new().and_then([TxnOp::put(epoch_key, "", Some(options)), TxnOp::delete(key, None)])
}

/// Deletes the key of a claim, if it is still the one with this create revision.
pub(crate) fn delete(key: &str, revision: i64) -> Txn {
    let is_same = Compare::create_revision(key, CompareOp::Equal, revision);
    Txn::new().when([is_same]).and_then([TxnOp::delete(key, None)])
}

/// The reply to a transaction that attaches a key to another session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Attached {
    Done,
    /// The epoch is another one.
    Epoch(i64),
    /// The key is gone, or another one.
    Gone,
}

pub(crate) fn attached(reply: &TxnResponse, expected_epoch: i64) -> Result<Attached, Failure> {
    if reply.succeeded() {
        return Ok(Attached::Done);
    }
    let epoch = epoch_of(&reply.op_responses(), 0)?;
    Ok(if epoch == expected_epoch { Attached::Gone } else { Attached::Epoch(epoch) })
}

/// Reads the reply to a withdraw: the new epoch, and whether there was a key.
pub(crate) fn withdrawn(reply: &TxnResponse) -> Result<(i64, bool), Failure> {
    match reply.op_responses().get(1) {
        Some(TxnOpResponse::Delete(delete)) => Ok((revision(reply)?, delete.deleted() > 0)),
        _ => Err(Failure::UnexpectedReply),
    }
}

fn epoch_of(ops: &[TxnOpResponse], index: usize) -> Result<i64, Failure> {
    match ops.get(index) {
        Some(TxnOpResponse::Get(get)) => Ok(get.kvs().first().map_or(0, KeyValue::mod_revision)),
        _ => Err(Failure::UnexpectedReply),
    }
}

/// The revision of the store after a transaction.
pub(crate) fn revision(reply: &TxnResponse) -> Result<i64, Failure> {
    reply.header().map(etcd_client::ResponseHeader::revision).ok_or(Failure::UnexpectedReply)
}

/// Revision numbers are positive.
pub(crate) fn number_of(revision: i64) -> PlaceNumber {
    PlaceNumber::new(revision.unsigned_abs())
}

pub(crate) fn place(kv: &KeyValue) -> Place {
    Place { key: kv.key().to_vec(), revision: kv.create_revision(), lease: kv.lease(), value: kv.value().to_vec() }
}
