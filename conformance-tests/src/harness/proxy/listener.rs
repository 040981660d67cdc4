//! The proxy's thread: it accepts connections and runs commands.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;

use super::connection::Connection;
use super::rules::{Counters, Rules, Target};
use super::{Fault, Reach};
use crate::harness::Port;

/// How long held bytes may take into the sockets of a server that does not read.
const DELIVERY_BOUND: Duration = Duration::from_secs(5);

/// A command for the proxy, and the channel that reports its completion.
pub(super) enum Command {
    Apply { fault: Fault, reach: Reach, done: SyncSender<()> },
    Deliver { reach: DeliveryReach, done: SyncSender<()> },
    Heal { done: SyncSender<()> },
    Redirect { server: SocketAddr, done: SyncSender<()> },
}

/// Which connections pass on what they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeliveryReach {
    All,
    /// The connection that has held bytes for the longest time.
    Oldest,
}

pub(super) struct Listener {
    port: Arc<Port>,
    server: Target,
    counters: Arc<Counters>,
    /// None while new connections are refused.
    socket: Option<TcpListener>,
    /// For new connections.
    rules: Rules,
    connections: Vec<Connection>,
    tasks: JoinSet<()>,
}

impl Listener {
    /// Listens on the current runtime. Binds with a blocking call, because the caller may be inside another runtime.
    pub(super) fn open(port: Arc<Port>, server: Target, counters: Arc<Counters>) -> io::Result<Self> {
        let socket = Some(listen(&port)?);
        let (rules, connections, tasks) = (Rules::CLEAR, Vec::new(), JoinSet::new());
        Ok(Self { port, server, counters, socket, rules, connections, tasks })
    }

    /// Runs until the command channel is closed.
    pub(super) async fn run(mut self, mut commands: UnboundedReceiver<Command>) {
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.handle(command).await,
                    None => return,
                },
                client = accept(self.socket.as_ref()) => self.accepted(client),
                Some(_) = self.tasks.join_next() => {}
            }
        }
    }

    fn accepted(&mut self, client: TcpStream) {
        self.connections.retain(Connection::is_open);
        self.counters.accepted.fetch_add(1, Ordering::AcqRel);
        let (connection, task) = Connection::new(client, self.server, self.rules, self.counters.clone());
        self.connections.push(connection);
        self.tasks.spawn(task);
    }

    async fn handle(&mut self, command: Command) {
        self.connections.retain(Connection::is_open);
        let done = match command {
            Command::Apply { fault, reach, done } => {
                self.apply(fault, reach).await;
                done
            }
            Command::Deliver { reach, done } => {
                self.deliver(reach).await;
                done
            }
            Command::Heal { done } => {
                self.heal().await;
                done
            }
            Command::Redirect { server, done } => {
                self.server.addr = server;
                done
            }
        };
        let _ = done.send(());
    }

    async fn apply(&mut self, fault: Fault, reach: Reach) {
        match fault {
            Fault::Refuse => self.socket = None,
            Fault::Disconnect => {
                for connection in &self.connections {
                    connection.cut().await;
                }
            }
            _ => {
                for connection in &self.connections {
                    connection.change(|rules| rules.add(fault));
                }
                if reach == Reach::All {
                    self.rules.add(fault);
                }
            }
        }
    }

    async fn deliver(&mut self, reach: DeliveryReach) {
        let holding = self.connections.iter().filter(|connection| connection.holds());
        let connections: Vec<&Connection> = match reach {
            DeliveryReach::All => self.connections.iter().collect(),
            DeliveryReach::Oldest => holding.min_by_key(|connection| connection.held_since()).into_iter().collect(),
        };
        for connection in &connections {
            connection.change(Rules::let_go);
        }
        let everything = async {
            while connections.iter().any(|connection| connection.holds()) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let _ = tokio::time::timeout(DELIVERY_BOUND, everything).await;
    }

    async fn heal(&mut self) {
        self.rules = Rules::CLEAR;
        for connection in &self.connections {
            if connection.has_lost() {
                connection.cut().await;
            } else if connection.is_stuck() {
                connection.sever();
            } else {
                connection.change(|rules| *rules = Rules::CLEAR);
            }
        }
        if self.socket.is_none() {
            self.socket = Some(listen(&self.port).expect("the proxy's port is its own"));
        }
    }
}

fn listen(port: &Port) -> io::Result<TcpListener> {
    let socket = port.listen()?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket)
}

/// The next connection; never, while there is no listener.
async fn accept(socket: Option<&TcpListener>) -> TcpStream {
    let Some(socket) = socket else { return std::future::pending().await };
    loop {
        match socket.accept().await {
            Ok((client, _)) => return client,
            // The client has closed the connection, or too many files are open for a moment.
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}
