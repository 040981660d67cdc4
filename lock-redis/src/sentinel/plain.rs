//! A Sentinel at the address of a server.

use leasehold_core::{Error, ErrorKind};
use redis::Value;
use tokio::time::Instant;

use crate::connection::Connection;
use crate::protocol::Protocol;
use crate::replies::text;

/// The error for a server that knows no scripts, if it is a Sentinel.
pub(crate) async fn is_sentinel<P: Protocol>(connection: &Connection<P>, until: Instant) -> Option<Error> {
    let Value::Array(parts) = connection.query(&["ROLE"], until).await.ok()? else { return None };
    let [role, Value::Array(names)] = &parts[..] else { return None };
    if text(role)? != "sentinel" {
        return None;
    }
    let address = connection.address();
    let name = names.first().and_then(text).unwrap_or_else(|| "NAME".to_owned());
    let scheme = if connection.protocol().endpoint().is_tls() { "rediss+sentinel" } else { "redis+sentinel" };
    Some(Error::new(
        ErrorKind::Unsupported,
        format!(
            "{address} is a Sentinel, which keeps no locks: use {scheme}://{address}/{name}, with all Sentinels as \
             hosts"
        ),
    ))
}
