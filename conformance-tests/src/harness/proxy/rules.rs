//! The rules and counters of the bytes of a connection.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Fault, ProxyStats};

/// The flow of the bytes of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Pass,
    Hold,
    Drop,
}

/// The rules of one direction of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub(super) flow: Flow,
    pub(super) delay: Duration,
}

impl Way {
    const CLEAR: Self = Self { flow: Flow::Pass, delay: Duration::ZERO };
}

/// The rules of one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) requests: Way,
    pub(super) replies: Way,
    /// Whether the end of one side is passed on to the other.
    pub(super) pass_ends: bool,
    /// Whether the connection must be reset now.
    pub(super) cut: bool,
}

impl Rules {
    /// The flow of a probe and of its reply.
    pub(super) fn probes(&self) -> Flow {
        if self.requests.flow == Flow::Drop { Flow::Drop } else { Flow::Pass }
    }

    pub(super) const CLEAR: Self = Self { requests: Way::CLEAR, replies: Way::CLEAR, pass_ends: true, cut: false };

    pub(super) fn add(&mut self, fault: Fault) {
        match fault {
            Fault::Disconnect => self.cut = true,
            // The listener handles it.
            Fault::Refuse => {}
            Fault::DropTraffic => (self.requests.flow, self.replies.flow) = (Flow::Drop, Flow::Drop),
            Fault::Delay { requests, replies } => (self.requests.delay, self.replies.delay) = (requests, replies),
            Fault::LoseReplies => self.replies.flow = Flow::Drop,
            Fault::HoldRequests => self.requests.flow = Flow::Hold,
            Fault::HalfOpen => self.pass_ends = false,
        }
    }

    /// Stops holding bytes.
    pub(super) fn let_go(&mut self) {
        if self.requests.flow == Flow::Hold {
            self.requests.flow = Flow::Pass;
        }
    }
}

/// The server behind the proxy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) addr: SocketAddr,
    /// Whether these bytes are a probe, which only asks whether the server still replies. Only [`Fault::DropTraffic`]
    /// and a delay affect it.
    pub(super) is_probe: fn(&[u8]) -> bool,
    /// How long a client waits for a server that does not listen yet.
    pub(super) connect_timeout: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) accepted: AtomicU64,
    pub(super) open: AtomicU64,
    pub(super) requests: AtomicU64,
    pub(super) replies: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) held: AtomicU64,
}

impl Counters {
    pub(super) fn read(&self) -> ProxyStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        ProxyStats {
            accepted: read(&self.accepted),
            open: read(&self.open),
            requests: read(&self.requests),
            replies: read(&self.replies),
            lost: read(&self.lost),
            held: read(&self.held),
        }
    }
}

/// Adds to a counter while it lives.
pub(super) struct Counted<'a>(&'a AtomicU64, u64);

impl<'a> Counted<'a> {
    pub(super) fn new(counter: &'a AtomicU64, amount: usize) -> Self {
        let amount = u64::try_from(amount).unwrap_or(u64::MAX);
        counter.fetch_add(amount, Ordering::AcqRel);
        Self(counter, amount)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::AcqRel);
    }
}
