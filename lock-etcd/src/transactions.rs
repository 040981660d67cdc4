//! The transactions, and how their replies are read.

use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse,
};

use crate::errors::Failure;
use crate::keys::range_end;

/// What the transactions of a claim need.
#[derive(Clone)]
pub(crate) struct Entry {
    /// What the keys of the lock begin with.
    pub(crate) queue: String,
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) lease: i64,
    pub(crate) epoch_key: String,
    pub(crate) epoch: i64,
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
    /// The key was created. The first key of the queue is another one, or its own.
    Created { revision: i64, first: Place },
    /// Nothing was changed.
    Unchanged { epoch: i64, own: Option<Place>, first: Option<Place> },
}

impl Entry {
    /// Creates the key if the lock is free.
    pub(crate) fn enter_if_free(&self) -> Txn {
        let is_free =
            Compare::create_revision(self.queue.as_str(), CompareOp::Equal, 0).with_range(range_end(&self.queue));
        self.enter([self.epoch_is_current(), is_free])
    }

    /// Creates the key, behind all others.
    pub(crate) fn join(&self) -> Txn {
        let is_new = Compare::create_revision(self.key.as_str(), CompareOp::Equal, 0);
        self.enter([self.epoch_is_current(), is_new])
    }

    fn enter(&self, compares: [Compare; 2]) -> Txn {
        let options = PutOptions::new().with_lease(self.lease);
        let put = TxnOp::put(self.key.as_str(), self.value.as_str(), Some(options));
        let get = |key: &str| TxnOp::get(key, None);
        Txn::new().when(compares).and_then([put, self.first()]).or_else([
            get(&self.epoch_key),
            get(&self.key),
            self.first(),
        ])
    }

    /// Reads the first key of the queue.
    fn first(&self) -> TxnOp {
        let options = GetOptions::new()
            .with_range(range_end(&self.queue))
            .with_sort(SortTarget::Create, SortOrder::Ascend)
            .with_limit(1);
        TxnOp::get(self.queue.as_str(), Some(options))
    }

    fn epoch_is_current(&self) -> Compare {
        Compare::mod_revision(self.epoch_key.as_str(), CompareOp::Equal, self.epoch)
    }

    /// Attaches the key to another session, if it is still the one with this create revision. Nothing else changes.
    pub(crate) fn attach(&self, revision: i64) -> Txn {
        let is_same = Compare::create_revision(self.key.as_str(), CompareOp::Equal, revision);
        let options = PutOptions::new().with_lease(self.lease);
        Txn::new()
            .when([self.epoch_is_current(), is_same])
            .and_then([TxnOp::put(self.key.as_str(), self.value.as_str(), Some(options))])
            .or_else([TxnOp::get(self.epoch_key.as_str(), None), TxnOp::get(self.key.as_str(), None)])
    }
}

/// Changes the epoch of a session and deletes the key of a claim: no earlier request of the session takes effect any more.
pub(crate) fn withdraw(key: &str, epoch_key: &str, lease: i64) -> Txn {
    let options = PutOptions::new().with_lease(lease);
    Txn::new().and_then([TxnOp::put(epoch_key, "", Some(options)), TxnOp::delete(key, None)])
}

/// Reads the reply to a transaction that creates a key.
pub(crate) fn entered(reply: &TxnResponse) -> Result<Entered, Failure> {
    let revision = revision(reply)?;
    let ops = reply.op_responses();
    let places = |index: usize| match ops.get(index) {
        Some(TxnOpResponse::Get(get)) => Ok(get.kvs().first().map(place)),
        _ => Err(Failure::UnexpectedReply),
    };
    if reply.succeeded() {
        let first = places(1)?.ok_or(Failure::UnexpectedReply)?;
        return Ok(Entered::Created { revision, first });
    }
    Ok(Entered::Unchanged { epoch: epoch_of(&ops)?, own: places(1)?, first: places(2)? })
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
    let epoch = epoch_of(&reply.op_responses())?;
    Ok(if epoch == expected_epoch { Attached::Gone } else { Attached::Epoch(epoch) })
}

/// Reads the reply to a withdraw: the new epoch, and whether there was a key.
pub(crate) fn withdrawn(reply: &TxnResponse) -> Result<(i64, bool), Failure> {
    match reply.op_responses().get(1) {
        Some(TxnOpResponse::Delete(delete)) => Ok((revision(reply)?, delete.deleted() > 0)),
        _ => Err(Failure::UnexpectedReply),
    }
}

fn epoch_of(ops: &[TxnOpResponse]) -> Result<i64, Failure> {
    match ops.first() {
        Some(TxnOpResponse::Get(get)) => Ok(get.kvs().first().map_or(0, KeyValue::mod_revision)),
        _ => Err(Failure::UnexpectedReply),
    }
}

/// The revision of the store after a transaction.
pub(crate) fn revision(reply: &TxnResponse) -> Result<i64, Failure> {
    reply.header().map(etcd_client::ResponseHeader::revision).ok_or(Failure::UnexpectedReply)
}

pub(crate) fn place(kv: &KeyValue) -> Place {
    Place { key: kv.key().to_vec(), revision: kv.create_revision(), lease: kv.lease(), value: kv.value().to_vec() }
}
