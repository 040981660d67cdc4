//! One connection through the proxy: two directions, each with a queue and rules.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustix::net::Shutdown;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::rules::{Counted, Counters, Flow, Rules, Target, Way};

/// The most that is read at once.
const CHUNK: usize = 16 * 1024;

/// Between two attempts to connect to a server that does not listen yet.
const PAUSE: Duration = Duration::from_millis(2);

/// A connection, as the proxy's listener sees it.
pub(super) struct Connection {
    rules: watch::Sender<Rules>,
    state: Arc<State>,
    client: Weak<TcpStream>,
}

#[derive(Default)]
struct State {
    /// Some sent bytes will never arrive.
    lost: AtomicBool,
    /// The number of bytes that wait to be passed on.
    held: AtomicU64,
    /// When the bytes that wait were read first.
    held_since: Mutex<Option<Instant>>,
    /// A probe was passed on, and its reply was not yet.
    probes: AtomicBool,
}

impl Connection {
    /// The connection, and the task that relays it.
    pub(super) fn new(
        client: TcpStream,
        server: Target,
        rules: Rules,
        counters: Arc<Counters>,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let client = Arc::new(client);
        let (sender, receiver) = watch::channel(rules);
        let state = Arc::new(State::default());
        let connection = Self { rules: sender, state: state.clone(), client: Arc::downgrade(&client) };
        (connection, relay(client, server, Relay { rules: receiver, state, counters, is_probe: server.is_probe }))
    }

    pub(super) fn is_open(&self) -> bool {
        !self.rules.is_closed()
    }

    pub(super) fn has_lost(&self) -> bool {
        self.state.lost.load(Ordering::Acquire)
    }

    pub(super) fn holds(&self) -> bool {
        self.state.held.load(Ordering::Acquire) > 0
    }

    /// Whether it has bytes that only [`deliver`](super::FaultProxy::deliver) passes on. Delayed ones pass by
    /// themselves, in order.
    pub(super) fn is_stuck(&self) -> bool {
        self.holds() && self.rules.borrow().requests.flow == Flow::Hold
    }

    /// When the bytes that it holds were read first; later than any time if that is not known.
    pub(super) fn held_since(&self) -> (bool, Option<Instant>) {
        let since = *self.state.held_since.lock().unwrap_or_else(PoisonError::into_inner);
        (since.is_none(), since)
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Rules)) {
        self.rules.send_modify(change);
    }

    /// Resets both sides, and waits until that is done.
    pub(super) async fn cut(&self) {
        self.change(|rules| rules.cut = true);
        self.rules.closed().await;
    }

    /// Ends it for the client. Held bytes for the server stay held.
    pub(super) fn sever(&self) {
        if let Some(client) = self.client.upgrade() {
            // It fails if the client has already closed the connection.
            let _ = rustix::net::shutdown(&*client, Shutdown::Both);
        }
        self.change(|rules| {
            let requests = rules.requests.flow;
            *rules = Rules::CLEAR;
            rules.requests.flow = requests;
        });
    }
}

/// The shared state of the two directions of a connection.
#[derive(Clone)]
struct Relay {
    rules: watch::Receiver<Rules>,
    state: Arc<State>,
    counters: Arc<Counters>,
    is_probe: fn(&[u8]) -> bool,
}

/// The server has reset the connection.
struct Reset;

async fn relay(client: Arc<TcpStream>, server: Target, mut relay: Relay) {
    let counters = relay.counters.clone();
    let _open = Counted::new(&counters.open, 1);
    let _ = client.set_nodelay(true);
    let connected = tokio::select! {
        () = relay.clone().cut() => None,
        connected = relay.connect(&client, server) => connected,
    };
    let Some(server) = connected else {
        let _ = client.set_zero_linger();
        return;
    };
    let _ = server.set_nodelay(true);
    let server = Arc::new(server);
    let requests = relay.clone().pump(client.clone(), server.clone(), Direction::Requests);
    let replies = relay.clone().pump(server.clone(), client.clone(), Direction::Replies);
    let is_reset = tokio::select! {
        () = relay.cut() => true,
        ended = async { tokio::try_join!(requests, replies) } => ended.is_err(),
    };
    if is_reset {
        let _ = client.set_zero_linger();
        let _ = server.set_zero_linger();
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Requests,
    Replies,
}

impl Direction {
    fn way(self, rules: &Rules) -> Way {
        match self {
            Self::Requests => rules.requests,
            Self::Replies => rules.replies,
        }
    }

    fn passed(self, counters: &Counters) -> &AtomicU64 {
        match self {
            Self::Requests => &counters.requests,
            Self::Replies => &counters.replies,
        }
    }
}

/// Bytes that were read, and when.
struct Item<'a> {
    at: Instant,
    what: What<'a>,
}

enum What<'a> {
    Bytes(Vec<u8>, [Counted<'a>; 2]),
    End { by_reset: bool },
}

impl Relay {
    async fn cut(mut self) {
        if self.rules.wait_for(|rules| rules.cut).await.is_err() {
            std::future::pending().await
        }
    }

    /// Connects to the server. Returns `None` if that fails and the client must see it.
    async fn connect(&mut self, client: &TcpStream, server: Target) -> Option<TcpStream> {
        let begin = Instant::now();
        loop {
            let flow = self.rules.borrow_and_update().requests.flow;
            if flow == Flow::Drop {
                // Nothing arrives, not even the connection.
                self.state.lost.store(true, Ordering::Release);
                while let Ok(1..) = read(client).await.map(|bytes| self.lose(bytes.len())) {}
                std::future::pending().await
            }
            match TcpStream::connect(server.addr).await {
                Ok(stream) => return Some(stream),
                Err(_) if begin.elapsed() < server.connect_timeout => tokio::time::sleep(PAUSE).await,
                Err(_) if flow == Flow::Hold => drop(self.rules.changed().await),
                Err(_) => return None,
            }
        }
    }

    /// Relays one direction until its end was passed on.
    async fn pump(self, from: Arc<TcpStream>, to: Arc<TcpStream>, direction: Direction) -> Result<(), Reset> {
        let (state, counters) = (self.state.clone(), self.counters.clone());
        let (queue, items) = mpsc::unbounded_channel();
        let reader = async {
            // Moved in, so that the writer sees the end of the queue.
            let queue = queue;
            loop {
                let read = read(&from).await;
                let at = Instant::now();
                let what = match read {
                    Ok(bytes) if !bytes.is_empty() => {
                        let counted = [&counters.held, &state.held].map(|held| Counted::new(held, bytes.len()));
                        What::Bytes(bytes, counted)
                    }
                    end => What::End { by_reset: end.is_err() },
                };
                let is_end = matches!(what, What::End { .. });
                if queue.send(Item { at, what }).is_err() || is_end {
                    return Ok(());
                }
            }
        };
        tokio::try_join!(reader, self.write(items, &to, direction)).map(|_| ())
    }

    async fn write(
        mut self,
        mut items: mpsc::UnboundedReceiver<Item<'_>>,
        to: &TcpStream,
        direction: Direction,
    ) -> Result<(), Reset> {
        // A stream that lost bytes never continues, whichever rules follow.
        let (mut lost, mut gone) = (false, false);
        while let Some(item) = items.recv().await {
            self.wait_until_due(item.at, direction).await;
            let flow = match self.is_of_a_probe(&item.what, direction) {
                true => self.rules.borrow().probes(),
                false => self.settled_flow(item.at, direction).await,
            };
            lost |= flow == Flow::Drop;
            match item.what {
                _ if lost => {
                    self.state.lost.store(true, Ordering::Release);
                    match item.what {
                        What::Bytes(bytes, _) => drop(self.lose(bytes.len())),
                        What::End { .. } => std::future::pending().await,
                    }
                }
                What::Bytes(bytes, _held) => {
                    gone = gone || write_all(to, &bytes).await.is_err();
                    if gone {
                        self.lose(bytes.len());
                    } else {
                        direction.passed(&self.counters).fetch_add(bytes.len() as u64, Ordering::AcqRel);
                    }
                }
                What::End { by_reset } => {
                    self.until(|rules| rules.pass_ends).await;
                    if by_reset && direction == Direction::Replies {
                        return Err(Reset);
                    }
                    let _ = rustix::net::shutdown(to, Shutdown::Write);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Whether these bytes are a probe, or the reply to one.
    fn is_of_a_probe(&self, what: &What<'_>, direction: Direction) -> bool {
        let What::Bytes(bytes, _) = what else { return false };
        match direction {
            Direction::Requests => {
                let is_probe = (self.is_probe)(bytes);
                self.state.probes.store(is_probe, Ordering::Release);
                is_probe
            }
            Direction::Replies => self.state.probes.swap(false, Ordering::AcqRel),
        }
    }

    fn lose(&self, bytes: usize) -> usize {
        self.counters.lost.fetch_add(bytes as u64, Ordering::AcqRel);
        bytes
    }

    /// Waits for the delay of bytes that were read at `at`. The delay may change meanwhile.
    async fn wait_until_due(&mut self, at: Instant, direction: Direction) {
        loop {
            let due = at + direction.way(&self.rules.borrow_and_update()).delay;
            if due <= Instant::now() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep_until(due) => {}
                _ = self.rules.changed() => {}
            }
        }
    }

    /// The flow of bytes that are due and no longer held.
    async fn settled_flow(&mut self, at: Instant, direction: Direction) -> Flow {
        if direction.way(&self.rules.borrow()).flow == Flow::Hold {
            self.state.held_since.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(at);
        }
        self.until(|rules| direction.way(rules).flow != Flow::Hold).await;
        direction.way(&self.rules.borrow()).flow
    }

    async fn until(&mut self, condition: impl FnMut(&Rules) -> bool) {
        if self.rules.wait_for(condition).await.is_err() {
            std::future::pending().await
        }
    }
}

/// Reads the available bytes; empty at the end of the stream.
async fn read(from: &TcpStream) -> io::Result<Vec<u8>> {
    loop {
        from.readable().await?;
        let mut bytes = vec![0; CHUNK];
        match from.try_read(&mut bytes) {
            Ok(read) => {
                bytes.truncate(read);
                return Ok(bytes);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
