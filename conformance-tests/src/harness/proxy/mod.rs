//! A TCP proxy that breaks the way between a client and its server, as it is told.

mod connection;
mod listener;
mod rules;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::Port;
use listener::{Command, Listener};
use rules::Counters;

/// How long the proxy's own thread may take to do what it is told.
const COMMAND_BOUND: Duration = Duration::from_secs(10);

/// What a [`FaultProxy`] does to connections. Faults add up until [`FaultProxy::heal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Every open connection is reset, and what was on its way is lost. New ones are served.
    Disconnect,
    /// The listener is closed, so that new connections are refused. Open ones go on.
    Refuse,
    /// Everything is read and dropped, both ways; new connections are accepted.
    DropTraffic,
    /// What is sent arrives this much later, in its order.
    Delay {
        /// From the client to the server.
        requests: Duration,
        /// From the server to the client.
        replies: Duration,
    },
    /// Requests go through, replies are read and dropped.
    LoseReplies,
    /// Requests are kept until [`FaultProxy::deliver`], and arrive then even if the client has closed its side long
    /// before. Replies go through.
    HoldRequests,
    /// Replies are kept until [`FaultProxy::deliver`]. Requests go through.
    HoldReplies,
    /// The end of one side is not passed on to the other, which sees an open connection for as long as the fault lasts.
    HalfOpen,
}

/// Which connections a fault is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Those that are open now.
    Open,
    /// Those that are open now and all that come.
    All,
}

/// What a [`FaultProxy`] has seen so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyStats {
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections of which at least one direction is open.
    pub open: u64,
    /// Bytes that were passed on to the server.
    pub requests: u64,
    /// Bytes that were passed on to clients.
    pub replies: u64,
    /// Bytes that were dropped, both ways.
    pub lost: u64,
    /// Bytes that were read and wait to be passed on, for their delay or for [`FaultProxy::deliver`], both ways.
    pub held: u64,
}

/// A TCP proxy on a loopback port of its own, in front of one server, with faults that are switched while it runs.
///
/// It has a thread and a runtime of its own, so a test runtime that starves does not stop it. Every order is in effect
/// when the call returns, which blocks for as long as its thread needs, mostly some microseconds.
///
/// What TCP never does, the proxy does not do either: no connection loses bytes and then goes on. One of which something
/// was lost stays silent, and is reset by [`heal`](Self::heal). A client's reset reaches the server as the end of its
/// stream, after what was sent before; a server's reset reaches the client as a reset. While the server does not run,
/// connections are accepted and reset. What is held is kept in memory without a bound.
#[derive(Debug)]
pub struct FaultProxy {
    port: Arc<Port>,
    counters: Arc<Counters>,
    commands: Option<mpsc::UnboundedSender<Command>>,
    thread: Option<JoinHandle<()>>,
}

impl FaultProxy {
    /// Starts a proxy in front of `server`, with no fault.
    ///
    /// # Errors
    /// When there is no port or no thread.
    pub fn start(server: SocketAddr) -> io::Result<Self> {
        let port = Arc::new(Port::free()?);
        let counters = Arc::new(Counters::default());
        let (commands, receiver) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _home = runtime.enter();
            Listener::open(port.clone(), server, counters.clone())?
        };
        let thread = std::thread::Builder::new()
            .name("fault-proxy".into())
            .spawn(move || runtime.block_on(listener.run(receiver)))?;
        Ok(Self { port, counters, commands: Some(commands), thread: Some(thread) })
    }

    /// Where clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Breaks connections that are open now and all that come.
    pub fn apply(&self, fault: Fault) {
        self.apply_to(fault, Reach::All);
    }

    /// Breaks the connections that are meant. [`Fault::Refuse`] is always about those that come.
    pub fn apply_to(&self, fault: Fault, reach: Reach) {
        self.send(|done| Command::Apply { fault, reach, done });
    }

    /// Passes on what is held, in its order; the connections that are open now hold nothing any more, those that come
    /// do as before. It returns when the system has taken everything; the server may not have worked on it yet.
    pub fn deliver(&self) {
        self.send(|done| Command::Deliver { done });
    }

    /// Ends all faults for what is sent from now on. Connections that lost something are reset. One that still holds
    /// something cannot go on either, or what is sent later would come after it: its client sees the end of the
    /// stream, and what is held stays until [`deliver`](Self::deliver).
    pub fn heal(&self) {
        self.send(|done| Command::Heal { done });
    }

    /// What it has seen so far.
    pub fn stats(&self) -> ProxyStats {
        self.counters.read()
    }

    /// Waits until `condition` is true of what the proxy has seen, at most for `bound`: whether it was.
    ///
    /// # Cancel safety
    /// It changes nothing.
    pub async fn wait_for(&self, bound: Duration, condition: impl Fn(&ProxyStats) -> bool) -> bool {
        let until = Instant::now() + bound;
        while !condition(&self.stats()) {
            if Instant::now() > until {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        true
    }

    fn send(&self, command: impl FnOnce(std::sync::mpsc::SyncSender<()>) -> Command) {
        let (done, was_done) = sync_channel(1);
        let sent = self.commands.as_ref().is_some_and(|commands| commands.send(command(done)).is_ok());
        let completed = sent && was_done.recv_timeout(COMMAND_BOUND).is_ok();
        assert!(completed, "the fault proxy's thread does not do what it is told");
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
