//! From a file to the proxy of a link.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener as StdListener;
use std::path::PathBuf;
use std::thread::JoinHandle;

use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Relays connections from Unix sockets to fault proxies.
///
/// All members of an etcd cluster know a member by the same URL, so TCP alone cannot say which of them connects. A URL such as
/// `unix://member1:1` names a file in the folder in which the connecting member runs. So each member has files of its own.
#[derive(Debug)]
pub(super) struct Relays {
    closed: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Relays {
    /// Starts them, each from a file to an address.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn start(routes: &[(PathBuf, SocketAddr)]) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (closed, is_closed) = oneshot::channel();
        let mut relays = JoinSet::new();
        for (file, to) in routes {
            let listener = StdListener::bind(file)?;
            listener.set_nonblocking(true)?;
            let _home = runtime.enter();
            relays.spawn_on(relay(UnixListener::from_std(listener)?, *to), runtime.handle());
        }
        let thread = std::thread::Builder::new().name("relays".into()).spawn(move || {
            let _relays = relays;
            let _ = runtime.block_on(is_closed);
        })?;
        Ok(Self { closed: Some(closed), thread: Some(thread) })
    }
}

impl Drop for Relays {
    fn drop(&mut self) {
        self.closed = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn relay(listener: UnixListener, to: SocketAddr) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => drop(connections.spawn(connect(client, to))),
                // Too many files are open for a moment.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(1)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connect(mut client: UnixStream, to: SocketAddr) {
    // An end without a reply, if the proxy refuses the connection.
    let Ok(mut server) = TcpStream::connect(to).await else { return };
    let _ = server.set_nodelay(true);
    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
}
