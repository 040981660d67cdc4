//! The path of one request through the faults.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Result};
use tokio::sync::oneshot;

use super::faults::{Health, Shared};
use crate::fault::{PathFault, Room};
use crate::fixture::Route;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Acquire,
    Renew,
    Release,
}

/// How much later the second copy of a doubled request arrives.
const SECOND_COPY: Duration = Duration::from_millis(20);

/// The path of one call to the server and back.
#[derive(Clone)]
pub(super) struct Line {
    faults: Arc<Shared>,
    route: Route,
    bound: Duration,
    is_clear: bool,
}

impl Line {
    pub(super) fn new(faults: Arc<Shared>, route: Route, bound: Duration) -> Self {
        let is_clear = faults.path_of(route).is_none() && *faults.server.borrow() == Health::Up;
        Self { faults, route, bound, is_clear }
    }

    /// Whether no fault applies to this call.
    pub(super) fn is_clear(&self) -> bool {
        self.is_clear
    }

    /// Sends a request. Returns the reply of the server, or the error that its client gets without one.
    pub(super) async fn call<T, F>(self, verb: Verb, request: impl Fn() -> F + Send + Sync + 'static) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        if self.is_clear {
            self.faults.count();
            return Ok(request().await);
        }
        let fault = self.faults.path_of(self.route);
        if fault == Some(PathFault::Disconnect) {
            return Err(Error::new(ErrorKind::Unavailable, "the connection was refused"));
        }
        let mut cuts = self.faults.cuts.subscribe();
        let (bound, faults) = (self.bound, self.faults.clone());
        let (reply_sender, reply) = oneshot::channel();
        faults.runtime().spawn(self.travel(verb, fault, request, reply_sender));
        tokio::select! {
            biased;
            reply = reply => reply.unwrap_or_else(|_| Err(no_reply("the server closed the connection"))),
            _ = cuts.changed() => Err(no_reply("the connection was cut")),
            () = tokio::time::sleep(bound) => Err(no_reply("no reply within the bound of a call")),
        }
    }

    async fn travel<T, F>(
        self,
        verb: Verb,
        fault: Option<PathFault>,
        request: impl Fn() -> F + Send + Sync + 'static,
        reply_sender: oneshot::Sender<Result<T>>,
    ) where
        T: Send + 'static,
        F: Future<Output = T> + Send,
    {
        let cuts = self.faults.cuts.subscribe();
        let arrived = match &fault {
            Some(PathFault::DropTraffic) => return wait_without_reply(reply_sender).await,
            Some(PathFault::Hold) => match self.faults.hold().await {
                Ok(arrived) => Some(arrived),
                Err(_) => return,
            },
            Some(PathFault::Delay(delay)) => {
                tokio::time::sleep(*delay).await;
                None
            }
            _ => None,
        };
        // A cut loses requests in flight. A held request is in the network and outlives its connection.
        if arrived.is_none() && cuts.has_changed().unwrap_or(true) {
            return;
        }
        let reply = self.serve(verb, &request).await;
        drop(arrived);
        match fault {
            Some(PathFault::LoseReplies) => wait_without_reply(reply_sender).await,
            Some(PathFault::Delay(delay)) => {
                tokio::time::sleep(delay).await;
                let _ = reply_sender.send(reply);
            }
            Some(PathFault::Double) => {
                let _ = reply_sender.send(reply);
                tokio::time::sleep(SECOND_COPY).await;
                let _ = self.serve(verb, &request).await;
            }
            _ => {
                let _ = reply_sender.send(reply);
            }
        }
    }

    /// The server processes a request, or refuses it.
    async fn serve<T, F>(&self, verb: Verb, request: &(impl Fn() -> F + Sync)) -> Result<T>
    where
        F: Future<Output = T> + Send,
    {
        let mut server = self.faults.server.subscribe();
        let health = *server.wait_for(|health| *health != Health::Paused).await.map_err(|_| no_reply("no server"))?;
        let refused = match health {
            Health::Up | Health::Paused => None,
            Health::Down => Some((ErrorKind::Unavailable, "the connection was refused")),
            Health::RefusesUser => Some((ErrorKind::Auth, "the server refused the user or the password")),
            Health::ReadOnly => Some((ErrorKind::Unavailable, "the server refuses writes: it is a replica")),
            // A release needs no room.
            Health::Full(_) if verb != Verb::Acquire => None,
            Health::Full(Room::Data) => Some((ErrorKind::Capacity, "the server is full")),
            Health::Full(Room::Connections) => {
                let text = "the server accepts no more connections";
                return Err(Error::new(ErrorKind::Capacity, text).passing_by_itself());
            }
        };
        if let Some((kind, text)) = refused {
            return Err(Error::new(kind, text));
        }
        self.faults.count();
        Ok(request().await)
    }
}

/// Keeps the connection open until its client gives up.
async fn wait_without_reply<T>(mut reply_sender: oneshot::Sender<T>) {
    reply_sender.closed().await;
}

fn no_reply(text: &'static str) -> Error {
    Error::new(ErrorKind::Indeterminate, text)
}
