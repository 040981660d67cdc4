//! Whether a connection is used for new requests.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::sync::lock;

/// Notes the replies of a connection and the lack of them.
#[derive(Debug)]
pub struct Health {
    state: watch::Sender<State>,
    /// How many replies have arrived.
    replies: AtomicU64,
    /// When the newest one arrived, or the connection was opened.
    heard: Mutex<Instant>,
}

impl Default for Health {
    fn default() -> Self {
        Self { state: watch::Sender::default(), replies: AtomicU64::new(0), heard: Mutex::new(Instant::now()) }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Usable,
    /// A request had no reply in time. The next reply makes the connection usable again.
    Doubtful,
    Closed,
}

impl Health {
    /// A connection without a reply for this time has to prove that it still works: a NAT gateway or a balancer may have
    /// dropped it without telling either end.
    pub const IDLE: Duration = Duration::from_secs(5);

    /// Whether new requests may use this connection.
    pub fn is_usable(&self) -> bool {
        *self.state.borrow() == State::Usable
    }

    /// Whether it has to prove that it still works.
    pub fn is_idle(&self) -> bool {
        lock(&self.heard).elapsed() >= Self::IDLE
    }

    /// How many replies have arrived.
    pub fn replies(&self) -> u64 {
        self.replies.load(Ordering::Relaxed)
    }

    /// Whether no reply has arrived since there were this many. If one has, the server is only slow. If none has, a new
    /// connection may get through sooner than this one, whose packets are retransmitted at growing intervals.
    pub fn is_silent_since(&self, replies: u64) -> bool {
        self.replies() == replies
    }

    /// A reply has arrived.
    pub fn note_reply(&self) {
        self.replies.fetch_add(1, Ordering::Relaxed);
        *lock(&self.heard) = Instant::now();
        if !self.is_usable() {
            self.change(State::Doubtful, State::Usable);
        }
    }

    /// A request had no reply in time. Lets no new request use this connection until a reply arrives.
    pub fn doubt(&self) {
        self.change(State::Usable, State::Doubtful);
    }

    /// Lets no new request use this connection.
    pub fn close(&self) {
        self.state.send_replace(State::Closed);
    }

    fn change(&self, from: State, to: State) {
        self.state.send_if_modified(|state| {
            let is_changed = *state == from;
            if is_changed {
                *state = to;
            }
            is_changed
        });
    }

    /// Resolves when there is no doubt. Cancel safe. Returns whether new requests may use this connection.
    pub async fn decided(&self) -> bool {
        let mut state = self.state.subscribe();
        // The sender lives as long as `self`.
        state.wait_for(|state| *state != State::Doubtful).await.is_ok_and(|state| *state == State::Usable)
    }

    /// Resolves when the connection is closed. Cancel safe.
    pub async fn closed(&self) {
        let _ = self.state.subscribe().wait_for(|state| *state == State::Closed).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_late_reply_ends_the_doubt() {
        let health = Health::default();
        assert!(health.decided().await);
        health.doubt();
        assert!(!health.is_usable());
        let ((), is_usable) = tokio::join!(async { health.note_reply() }, health.decided());
        assert!(is_usable && health.is_usable());
        assert_eq!(health.replies(), 1);
    }

    #[tokio::test]
    async fn a_closed_connection_stays_closed() {
        let health = Health::default();
        health.close();
        health.doubt();
        health.note_reply();
        health.closed().await;
        assert!(!health.is_usable() && !health.decided().await);
    }
}
