//! Relays of connections, on a thread of their own.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// A relay that runs until it is dropped.
pub(crate) type Relay = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs relays until this is dropped.
#[derive(Debug)]
pub(crate) struct Relays {
    closed: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Relays {
    /// Starts them.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn start(relays: Vec<Relay>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (closed, is_closed) = oneshot::channel();
        let thread = std::thread::Builder::new().name("relays".into()).spawn(move || {
            runtime.block_on(async {
                let _relays: JoinSet<()> = relays.into_iter().collect();
                let _ = is_closed.await;
            });
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

/// Handles the connections of a listener.
pub(crate) async fn serve<C, F>(
    mut accept: impl FnMut(&mut Context<'_>) -> Poll<io::Result<C>>,
    handle: impl Fn(C) -> F,
) where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = poll_fn(&mut accept) => match accepted {
                // A connection that fails ends on both sides.
                Ok(client) => drop(connections.spawn(handle(client))),
                // Too many files are open for a moment.
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}
