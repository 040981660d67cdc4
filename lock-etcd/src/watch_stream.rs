//! The stream of all watches of one client.

use std::sync::Arc;

use etcd_client::{EventType, WatchOptions, WatchResponse, WatchResponseStream};
use leasehold_core::{Error, ErrorKind};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::connection::Connection;
use crate::errors::Failure;
use crate::keys::range_end;
use crate::mirror::Change;

/// A request on the stream.
pub(crate) enum Outgoing {
    /// Watches all keys that begin with this text, from now on. May be stale: it is the `now` of the member, which may
    /// lag behind. It then delivers again what the read that follows has, and the mirror leaves that out by its
    /// revisions.
    Watch {
        number: i64,
        queue: String,
    },
    Cancel(i64),
    /// Any reply proves that the stream is alive.
    Progress,
}

/// A message of the stream.
#[derive(Debug)]
pub(crate) enum Incoming {
    Created(i64),
    /// The server has ended a watch, as after a compaction.
    Cancelled(i64),
    Changes(i64, Vec<Change>),
    Progress,
}

pub(crate) struct WatchStream {
    pub(crate) connection: Arc<Connection>,
    outgoing: mpsc::UnboundedSender<Outgoing>,
    incoming: WatchResponseStream,
}

impl WatchStream {
    /// Opens the stream with a first watch.
    pub(crate) async fn open(
        connection: Arc<Connection>,
        (number, queue): (i64, String),
        until: Instant,
    ) -> Result<Self, (Arc<Connection>, Failure)> {
        let mut client = connection.client().watch_client().max_decoding_message_size(Connection::max_reply());
        let opened = timeout_at(until, client.watch(queue.as_str(), Some(options(number, &queue)))).await;
        let stream = match opened {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err((connection, Failure::of(error))),
            Err(_) => return Err((connection, Failure::TimedOut)),
        };
        let (mut sender, incoming) = stream.split();
        let (outgoing, mut requests) = mpsc::unbounded_channel();
        // A task of its own, so that a full stream does not keep messages from being received.
        tokio::spawn(async move {
            while let Some(request) = requests.recv().await {
                let sent = match request {
                    Outgoing::Watch { number, queue } => {
                        let options = options(number, &queue);
                        sender.watch(queue, Some(options)).await
                    }
                    Outgoing::Cancel(number) => sender.cancel(number).await,
                    Outgoing::Progress => sender.request_progress().await,
                };
                if sent.is_err() {
                    return;
                }
            }
        });
        Ok(Self { connection, outgoing, incoming })
    }

    /// Sends a request. If the stream has ended, the next message says so.
    pub(crate) fn send(&self, request: Outgoing) {
        let _ = self.outgoing.send(request);
    }

    /// The next message. Cancel safe.
    pub(crate) async fn next(&mut self) -> Result<Incoming, Failure> {
        match self.incoming.message().await {
            Ok(Some(message)) => {
                self.connection.health.note_reply();
                // A watch that was refused has no number, so it is not known which one it was. All of them are opened
                // again.
                if message.canceled() && message.watch_id() < 0 {
                    let text = format!("the server refuses a watch: {}", message.cancel_reason());
                    return Err(Failure::Refused(Error::new(ErrorKind::Auth, text)));
                }
                Ok(read(&message))
            }
            Ok(None) => Err(Failure::Elsewhere(Error::new(ErrorKind::Unavailable, "the member has ended the watches"))),
            Err(error) => Err(Failure::of(error)),
        }
    }
}

fn options(number: i64, queue: &str) -> WatchOptions {
    WatchOptions::new().with_watch_id(number).with_range(range_end(queue))
}

fn read(message: &WatchResponse) -> Incoming {
    let number = message.watch_id();
    if message.canceled() {
        return Incoming::Cancelled(number);
    }
    if message.created() {
        return Incoming::Created(number);
    }
    if message.events().is_empty() {
        return Incoming::Progress;
    }
    let changes = message.events().iter().filter_map(|event| {
        let kv = event.kv()?;
        Some(match event.event_type() {
            EventType::Put => Change::Put {
                key: kv.key().to_vec(),
                create_revision: kv.create_revision(),
                mod_revision: kv.mod_revision(),
            },
            EventType::Delete => Change::Deleted { key: kv.key().to_vec(), mod_revision: kv.mod_revision() },
        })
    });
    Incoming::Changes(number, changes.collect())
}
