//! The replies to a renewal.

use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use crate::backend::{Confirmation, Grant};
use crate::error::{Error, ErrorKind, Result};

/// The store's reply to the renewal of one lease or place.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RenewReply {
    /// The lease is renewed.
    Renewed(Confirmation),
    /// The place has become a lease.
    Granted(Grant),
    /// The place is renewed.
    Waiting {
        /// The confirmation of the place.
        confirmation: Confirmation,
        /// How long the holder's lease still lasts, or the ttl of the place if the store does not say. The keeper
        /// renews the place then, or earlier on an event.
        retry_after: Duration,
    },
    /// The claim has no place, and the lock is free: the keeper sends an acquire.
    Free,
    /// Neither lease nor place is this claim's any more.
    Lost,
    /// The outcome is unknown.
    Unknown(Error),
}

/// Takes the replies of one renew call, each as soon as it is known.
///
/// When this is dropped, each request without a reply gets [`RenewReply::Unknown`]. A second reply to the same request
/// is ignored.
pub struct RenewReplies {
    open: Mutex<Vec<bool>>,
    sink: Box<dyn Fn(usize, RenewReply) + Send + Sync>,
}

impl RenewReplies {
    /// Takes `count` replies and passes each to `sink`, with the index of its request.
    pub fn new(count: usize, sink: impl Fn(usize, RenewReply) + Send + Sync + 'static) -> Self {
        Self { open: Mutex::new(vec![true; count]), sink: Box::new(sink) }
    }

    /// Takes the reply to the request at `index` of the slice.
    pub fn put(&self, index: usize, reply: RenewReply) {
        let first = {
            let mut open = crate::sync::lock(&self.open);
            open.get_mut(index).is_some_and(|open| std::mem::replace(open, false))
        };
        if first {
            (self.sink)(index, reply);
        }
    }

    /// Takes the replies of a call that arrive together: in the order of the requests, or the same error for all.
    pub fn put_all(&self, outcome: Result<Vec<RenewReply>>) {
        match outcome {
            Ok(replies) => replies.into_iter().enumerate().for_each(|(index, reply)| self.put(index, reply)),
            Err(error) => self.fail_rest(&error),
        }
    }

    /// Removes and returns the indexes of the requests without a reply.
    pub(crate) fn take_open(&self) -> Vec<usize> {
        let open = std::mem::take(&mut *crate::sync::lock(&self.open));
        (0..open.len()).filter(|&index| open[index]).collect()
    }

    /// Gives each request that has no reply the same error.
    pub fn fail_rest(&self, error: &Error) {
        for index in self.take_open() {
            (self.sink)(index, RenewReply::Unknown(error.clone()));
        }
    }
}

impl Drop for RenewReplies {
    fn drop(&mut self) {
        self.fail_rest(&Error::new(ErrorKind::Indeterminate, "the renewal ended without a reply"));
    }
}

impl fmt::Debug for RenewReplies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RenewReplies").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn each_question_is_answered_exactly_once() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let replies = RenewReplies::new(3, {
            let seen = seen.clone();
            move |index, answer| seen.lock().unwrap().push((index, matches!(answer, RenewReply::Lost)))
        });
        replies.put(1, RenewReply::Lost);
        replies.put(1, RenewReply::Free);
        replies.put(7, RenewReply::Lost);
        drop(replies);
        assert_eq!(*seen.lock().unwrap(), [(1, true), (0, false), (2, false)]);
        let replies = RenewReplies::new(3, {
            let seen = seen.clone();
            move |index, answer| seen.lock().unwrap().push((index + 10, matches!(answer, RenewReply::Lost)))
        });
        seen.lock().unwrap().clear();
        replies.put_all(Ok(vec![RenewReply::Lost, RenewReply::Free]));
        replies.put_all(Err(Error::new(ErrorKind::Unavailable, "planted")));
        assert_eq!(*seen.lock().unwrap(), [(10, true), (11, false), (12, false)]);
    }
}
