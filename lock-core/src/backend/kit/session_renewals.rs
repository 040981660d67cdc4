//! Renewals whose leases share sessions.

use std::fmt;
use std::sync::Arc;

use tokio::task::JoinSet;

use crate::backend::{RenewReplies, RenewReply};

/// The renewals of one call that have to wait. Those of one session wait together, because one confirmation is for all
/// of them, and for no other session. Dropping this ends the wait.
pub struct SessionRenewals<S, I> {
    waiting: Vec<(Arc<S>, Vec<I>)>,
    tasks: JoinSet<Vec<(usize, RenewReply)>>,
}

impl<S, I: Send + 'static> SessionRenewals<S, I> {
    /// Adds a renewal that waits for this session, from the next [`begin`](Self::begin) on.
    pub fn add(&mut self, session: Arc<S>, renewal: I) {
        match self.waiting.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &session)) {
            Some((_, renewals)) => renewals.push(renewal),
            None => self.waiting.push((session, vec![renewal])),
        }
    }

    /// Waits for the replies to the renewals that were added, by `reply`, which returns the index of a request as well.
    pub fn begin<F>(&mut self, reply: impl Fn(I) -> F + Clone + Send + 'static)
    where
        F: Future<Output = (usize, RenewReply)> + Send,
    {
        for (_, renewals) in self.waiting.drain(..) {
            let reply = reply.clone();
            self.tasks.spawn(async move {
                let mut replies = Vec::with_capacity(renewals.len());
                for renewal in renewals {
                    replies.push(reply(renewal).await);
                }
                replies
            });
        }
    }

    /// Waits for the reply to one renewal, which waits for more than its session.
    pub fn begin_alone(&mut self, reply: impl Future<Output = (usize, RenewReply)> + Send + 'static) {
        self.tasks.spawn(async move { vec![reply.await] });
    }

    /// Puts the next replies as soon as they are there, and returns `false` if no renewal waits any more. Cancel safe.
    pub async fn put_next(&mut self, replies: &RenewReplies) -> bool {
        let Some(done) = self.tasks.join_next().await else { return false };
        for (index, reply) in done.into_iter().flatten() {
            replies.put(index, reply);
        }
        true
    }
}

impl<S, I> Default for SessionRenewals<S, I> {
    fn default() -> Self {
        Self { waiting: Vec::new(), tasks: JoinSet::new() }
    }
}

impl<S, I> fmt::Debug for SessionRenewals<S, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionRenewals").field("tasks", &self.tasks.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;
    use crate::sync::lock;

    #[tokio::test(start_paused = true)]
    async fn renewals_of_a_session_wait_together_and_for_no_other_one() {
        let put = Arc::new(Mutex::new(Vec::new()));
        let replies = RenewReplies::new(5, {
            let put = put.clone();
            move |index, _| lock(&put).push(index)
        });
        let mut renewals = SessionRenewals::default();
        let [slow, fast] = [3, 1].map(|seconds| Arc::new(Duration::from_secs(seconds)));
        for (index, session) in [&slow, &fast, &slow, &fast].into_iter().enumerate() {
            renewals.add(session.clone(), (index, session.clone()));
        }
        renewals.begin(|(index, pause): (usize, Arc<Duration>)| async move {
            tokio::time::sleep(*pause).await;
            (index, RenewReply::Lost)
        });
        renewals.begin_alone(async { (4, RenewReply::Free) });
        for expected in [&[4][..], &[4, 1, 3], &[4, 1, 3, 0, 2]] {
            assert!(renewals.put_next(&replies).await);
            assert_eq!(&*lock(&put), expected);
        }
        assert!(!renewals.put_next(&replies).await);
    }
}
