//! What is said on a connection: the part in which a single server and a server of a quorum differ. Connections, their
//! manager and the batching are the same for both.

use std::future::Future;

use leasehold_core::Result;
use leasehold_core::backend::kit::Attachment;
use tokio::time::Instant;

use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::errors::Failure;
use crate::sentinel::Primary;

/// The requests and replies of one kind of backend to one server.
pub(crate) trait Protocol: Send + Sync + Sized + 'static {
    /// A request for one lock. Several share a call.
    type Request: Send + Sync + 'static;
    /// The reply to one.
    type Reply: Send + 'static;
    /// What is known of the server on one connection.
    type Session: Send + Sync + 'static;

    /// The server.
    fn endpoint(&self) -> &Endpoint;

    /// The client.
    fn attachment(&self) -> &Attachment;

    /// A connection was not used for a while, and is tested before it is used again.
    fn note_idle(&self) {}

    /// For a connection that is not checked yet.
    fn session(&self) -> Self::Session;

    /// The channels to which the connection of the keeper subscribes.
    fn channels(&self) -> Vec<String>;

    /// Handles a message on one of these channels, of this server if Sentinels named it.
    fn handle_message(&self, channel: &[u8], payload: &[u8], primary: Option<&Primary>, session: &Self::Session);

    /// Checks on a new connection that the server can be used. The outer error is that of the connection, the inner one
    /// that of the server.
    fn check(connection: &Connection<Self>, until: Instant)
    -> impl Future<Output = Result<Result<()>, Failure>> + Send;

    /// Whether a request has options that all such requests of a call must have in common.
    fn has_options(request: &Self::Request) -> bool;

    /// Whether two requests with options can share a call.
    fn can_share_call(&self, one: &Self::Request, other: &Self::Request) -> bool;

    /// Sends several requests in one call, and returns a reply for each.
    fn exchange(
        connection: &Connection<Self>,
        requests: &[Self::Request],
        until: Instant,
    ) -> impl Future<Output = Vec<Result<Self::Reply>>> + Send;
}
