//! A TCP proxy that injects faults into the path between a client and its server.

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
use listener::{Command, DeliveryReach, Listener};
use rules::{Counters, Target};

/// How long the proxy's thread may take to run a command.
const COMMAND_BOUND: Duration = Duration::from_secs(10);

/// A fault of the connections of a [`FaultProxy`]. Faults add up until [`FaultProxy::heal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Every open connection is reset, and bytes in flight are lost. New ones are served.
    Disconnect,
    /// The listener is closed, so that new connections are refused. Open ones continue.
    Refuse,
    /// All bytes are read and dropped in both directions. New connections are accepted.
    DropTraffic,
    /// Bytes arrive later by these delays, in order.
    Delay {
        /// From the client to the server.
        requests: Duration,
        /// From the server to the client.
        replies: Duration,
    },
    /// Requests go through, replies are read and dropped.
    LoseReplies,
    /// Requests are kept until [`FaultProxy::deliver`], and arrive then even if the client has closed its side before.
    /// Replies go through.
    HoldRequests,
    /// The end of one side is not passed on to the other side, which sees an open connection while the fault lasts.
    HalfOpen,
}

/// The connections that a fault affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Open connections.
    Open,
    /// Open connections and all new ones.
    All,
}

/// The counters of a [`FaultProxy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyStats {
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections with at least one open direction.
    pub open: u64,
    /// Bytes that were passed on to the server.
    pub requests: u64,
    /// Bytes that were passed on to clients.
    pub replies: u64,
    /// Bytes that were dropped, in both directions.
    pub lost: u64,
    /// Bytes that wait for their delay or for [`FaultProxy::deliver`], in both directions.
    pub held: u64,
}

/// A TCP proxy on a loopback port of its own, in front of a server, with faults that can be switched while it runs.
///
/// It has its own thread and runtime, so a starved test runtime does not stop it. A command is in effect when its call
/// returns. The call blocks until the thread has run it, usually for some microseconds.
///
/// As in TCP, no connection loses bytes and then continues. A connection that lost bytes stays silent, and
/// [`heal`](Self::heal) resets it. A client's reset reaches the server as the end of its stream, after the bytes that
/// were sent before; a server's reset reaches the client as a reset. While the server does not run, connections are
/// accepted and reset. Held bytes are kept in memory without a bound.
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
    /// If there is no port or no thread.
    pub fn start(server: SocketAddr) -> io::Result<Self> {
        Self::start_with_probe(server, |_| false)
    }

    /// The same for a client that may probe an idle connection before it sends a request on it. Only
    /// [`Fault::DropTraffic`] and [`Fault::Delay`] affect a probe and its reply, so that the other faults affect the
    /// request.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with_probe(server: SocketAddr, is_probe: fn(&[u8]) -> bool) -> io::Result<Self> {
        Self::start_for(Target { addr: server, is_probe, connect_timeout: Duration::ZERO })
    }

    /// The same in front of a server that may not listen yet. A client that connects waits for the server at most this
    /// long. Without that, the proxy would end the connection at once, and the client would take that for the server's
    /// doing.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with_connect_timeout(server: SocketAddr, connect_timeout: Duration) -> io::Result<Self> {
        Self::start_for(Target { addr: server, is_probe: |_| false, connect_timeout })
    }

    fn start_for(server: Target) -> io::Result<Self> {
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

    /// The address for clients.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Applies a fault to open connections and all new ones.
    pub fn apply(&self, fault: Fault) {
        self.apply_to(fault, Reach::All);
    }

    /// Applies a fault to the connections of `reach`. [`Fault::Refuse`] always affects new ones.
    pub fn apply_to(&self, fault: Fault, reach: Reach) {
        self.send(|done| Command::Apply { fault, reach, done });
    }

    /// Passes on held bytes, in order. Open connections then hold nothing; the faults of new ones stay. It returns when
    /// the system has accepted all bytes; the server may not have processed them yet.
    pub fn deliver(&self) {
        self.send(|done| Command::Deliver { reach: DeliveryReach::All, done });
    }

    /// The same for the connection that has held bytes for the longest time. A server with a thread for each connection
    /// processes the requests of several connections in any order, unless it has processed one before the next is
    /// delivered.
    pub fn deliver_oldest(&self) {
        self.send(|done| Command::Deliver { reach: DeliveryReach::Oldest, done });
    }

    /// Ends all faults for bytes that are sent from now on. Connections that lost bytes are reset. A connection that
    /// still holds bytes cannot continue, because later bytes would overtake them: its client sees the end of the
    /// stream, and the held bytes stay until [`deliver`](Self::deliver). Bytes that are only delayed arrive at once,
    /// before later ones.
    pub fn heal(&self) {
        self.send(|done| Command::Heal { done });
    }

    /// Serves new connections by another server. Open ones stay.
    pub fn redirect(&self, server: SocketAddr) {
        self.send(|done| Command::Redirect { server, done });
    }

    /// Its counters.
    pub fn stats(&self) -> ProxyStats {
        self.counters.read()
    }

    /// Waits until `condition` is true of the counters, at most for `bound`. Returns whether it was.
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
        assert!(completed, "the fault proxy's thread does not run the command");
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
