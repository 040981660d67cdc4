//! One server, or the nodes of a cluster.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::future::join_all;
use leasehold_core::Result;
use leasehold_core::backend::{CoreHandle, RenewReplies, RenewReply, RenewRequest};
use tokio::time::Instant;

use crate::cluster::{Cluster, Declared, MoreKeys, Refusal};
use crate::connection::Connection;
use crate::errors::Failure;
use crate::exchange::{Operation, Reply, ReplyBody, Request, exchange};
use crate::keys::Keys;
use crate::renew::renew;
use crate::server::Server;
use crate::settings::Settings;

pub(crate) enum Servers {
    /// It may be the primary that Sentinels name.
    One(Server),
    Cluster(Arc<Cluster>),
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(server) => f.write_str(&server.shared.endpoint.address),
            Self::Cluster(cluster) => write!(f, "{cluster}"),
        }
    }
}

impl Servers {
    pub(crate) fn settings(&self) -> &Settings {
        match self {
            Self::One(server) => &server.shared.settings,
            Self::Cluster(cluster) => &cluster.settings,
        }
    }

    pub(crate) fn keys(&self) -> &Keys {
        match self {
            Self::One(server) => &server.shared.keys,
            Self::Cluster(cluster) => &cluster.keys,
        }
    }

    pub(crate) fn attach(&self, core: CoreHandle) {
        match self {
            Self::One(server) => server.attach(core),
            Self::Cluster(cluster) => cluster.attach(core),
        }
    }

    /// The deadline of a call that starts now.
    pub(crate) fn until(&self) -> Instant {
        Instant::now() + self.settings().timeout
    }

    /// Connects to the server, or to any node of the cluster, and checks that it can be used.
    ///
    /// # Errors
    /// None can be reached or used.
    pub(crate) async fn connect(&self) -> Result<()> {
        let until = self.until();
        match self {
            Self::One(server) => server.manager()?.connection(until).await.map(drop),
            Self::Cluster(cluster) => cluster.refresh(until).await,
        }
    }

    /// A connection to the server, or to each node that serves locks.
    ///
    /// # Errors
    /// A server cannot be reached or used.
    pub(crate) async fn connections(&self, until: Instant) -> Result<Vec<Arc<Connection>>> {
        match self {
            Self::One(server) => Ok(vec![server.manager()?.connection(until).await?]),
            Self::Cluster(cluster) => cluster.connections(until).await,
        }
    }

    /// Sends a request for the lock with this record with `send`.
    pub(crate) async fn call<T, F>(
        &self,
        record: &str,
        keys: MoreKeys,
        until: Instant,
        send: impl Fn(Arc<Connection>, Declared) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<Result<T, Refusal>>>,
    {
        match self {
            Self::One(server) => {
                let connection = server.manager()?.connection(until).await?;
                send(connection, Declared::Records).await?.map_err(Refusal::error)
            }
            Self::Cluster(cluster) => cluster.call(record, keys, until, send).await,
        }
    }

    /// Acquires or releases.
    pub(crate) async fn send(&self, request: Request) -> Result<Reply> {
        let until = self.until();
        let cluster = match self {
            // Requests that wait for the connection share a call.
            Self::One(server) => return server.manager()?.send_request(request, until).await,
            Self::Cluster(cluster) => cluster,
        };
        let keys = match request.operation {
            Operation::Release(None) => MoreKeys::QUEUE,
            Operation::Acquire(_) | Operation::Release(Some(_)) => MoreKeys::ALL,
        };
        let request = &request;
        let send = |connection: Arc<Connection>, declared: Declared| async move {
            let replies = exchange(&connection, std::slice::from_ref(request), declared, until).await.pop();
            let reply = replies.ok_or(Failure::UnexpectedReply)??;
            Ok(match reply.body {
                ReplyBody::Refused(refusal) => Err(refusal),
                _ => Ok(reply),
            })
        };
        cluster.call(&cluster.keys.record(request.claim.name()), keys, until, send).await
    }

    pub(crate) async fn renew(&self, requests: &[RenewRequest], replies: &RenewReplies) {
        let until = self.until();
        let all = |replied: Vec<Result<RenewReply, Refusal>>| -> Vec<RenewReply> {
            replied.into_iter().map(|reply| reply.unwrap_or_else(|why| RenewReply::Unknown(why.error()))).collect()
        };
        let cluster = match self {
            Self::One(server) => {
                let renewed = async {
                    let connection = server.manager()?.connection(until).await?;
                    renew(&connection, requests, Declared::Records, until).await.map(all)
                };
                return replies.put_all(renewed.await);
            }
            Self::Cluster(cluster) => cluster,
        };
        // Each reply counts as soon as it is there: a node that is silent concerns its own leases only.
        let each = requests.iter().enumerate().map(|(number, request)| async move {
            let send = |connection: Arc<Connection>, declared: Declared| async move {
                let renewed = renew(&connection, std::slice::from_ref(request), declared, until).await?.pop();
                Ok(renewed.ok_or(Failure::UnexpectedReply)?)
            };
            let renewed = cluster.call(&cluster.keys.record(request.claim.name()), MoreKeys::ALL, until, send).await;
            replies.put(number, renewed.unwrap_or_else(RenewReply::Unknown));
        });
        join_all(each).await;
    }
}
