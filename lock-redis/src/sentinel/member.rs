//! One Sentinel: what is checked on a connection to it, the question, and the hints that it sends.

use std::convert::Infallible;
use std::sync::Arc;

use leasehold_core::backend::kit::{Attachment, lock};
use leasehold_core::{Error, ErrorKind, Result};
use redis::Value;
use tokio::time::Instant;

use super::naming::Address;
use super::primary::Primary;
use super::sentinels::State;
use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::errors::{Failure, not_connected};
use crate::manager;
use crate::protocol::Protocol;
use crate::replies::text;

/// Where a Sentinel reports failovers: `<name> <old host> <old port> <new host> <new port>`.
const SWITCHES: &str = "+switch-master";

pub(super) struct Sentinel {
    pub(super) state: Arc<State>,
    /// Its place in the URL.
    pub(super) number: usize,
    pub(super) endpoint: Endpoint,
    /// Never attached: a new connection to a Sentinel makes no waiter look for its lock.
    unattached: Attachment,
}

impl Sentinel {
    pub(super) const fn new(state: Arc<State>, number: usize, endpoint: Endpoint) -> Self {
        Self { state, number, endpoint, unattached: Attachment::new() }
    }

    /// Asks for the primary. `None`: the Sentinel does not know its name.
    pub(super) async fn ask(manager: &manager::Inner<Self>, until: Instant) -> Result<Option<Address>> {
        let connection = manager.connection(until).await?;
        let it = connection.protocol();
        let asked = it.state.now();
        let question = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &it.state.name];
        let reply = it.reply(connection.query(&question, until).await)?;
        let primary = address(&reply).ok_or_else(|| it.error(Failure::UnexpectedReply))?;
        it.state.answer(it.number, asked, primary.clone());
        Ok(primary)
    }

    /// How many Sentinels this one knows, itself included. `None`: it does not say, or this user may not ask.
    pub(super) async fn count(manager: &manager::Inner<Self>, until: Instant) -> Option<u64> {
        let connection = manager.connection(until).await.ok()?;
        let question = ["SENTINEL", "MASTER", &connection.protocol().state.name];
        let Value::Map(fields) = connection.query(&question, until).await.ok()? else { return None };
        let others = fields.iter().find(|(name, _)| text(name).as_deref() == Some("num-other-sentinels"));
        Some(text(&others?.1)?.parse::<u64>().ok()? + 1)
    }

    fn reply(&self, reply: Result<Value, Failure>) -> Result<Value> {
        reply.map_err(|failure| self.error(failure))
    }

    /// A question has no effect, so every failure is one to connect.
    fn error(&self, failure: Failure) -> Error {
        match failure {
            Failure::ErrorReply(text) if text.contains("unknown command") => {
                let address = &self.endpoint.address;
                let text = format!("{address} is a Redis server and no Sentinel: its own URL is redis://{address}");
                Error::new(ErrorKind::Unsupported, text)
            }
            failure => not_connected(failure, &self.endpoint.address),
        }
    }

    /// Reads the identity of the Sentinel.
    async fn id(connection: &Connection<Self>, until: Instant) -> Result<String> {
        let it = connection.protocol();
        let reply = it.reply(connection.query(&["SENTINEL", "MYID"], until).await)?;
        text(&reply).ok_or_else(|| it.error(Failure::UnexpectedReply))
    }

    /// Checks that no other Sentinel of the URL is the same one. It would count twice, and one Sentinel could be a
    /// majority.
    fn check_identity(&self, id: String) -> Result<()> {
        let mut ids = lock(&self.state.ids);
        if let Some(other) = (0..ids.len()).find(|other| *other != self.number && ids[*other].as_ref() == Some(&id)) {
            let (one, other) = (self.number.min(other) + 1, self.number.max(other) + 1);
            return Err(Error::invalid(format!("Sentinels {one} and {other} in the URL are the same one")));
        }
        ids[self.number] = Some(id);
        Ok(())
    }
}

impl Protocol for Sentinel {
    /// Questions are sent one by one.
    type Request = Infallible;
    type Reply = Infallible;
    type Session = ();

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn attachment(&self) -> &Attachment {
        &self.unattached
    }

    fn session(&self) {}

    fn channels(&self) -> Vec<String> {
        vec![SWITCHES.to_owned()]
    }

    fn handle_message(&self, _channel: &[u8], payload: &[u8], _primary: Option<&Primary>, _session: &Self::Session) {
        if payload.split(|byte| *byte == b' ').next() == Some(self.state.name.as_bytes()) {
            self.state.hinted.notify_one();
        }
    }

    async fn check(connection: &Connection<Self>, until: Instant) -> Result<Result<()>, Failure> {
        let (it, id) = (connection.protocol(), Self::id(connection, until).await);
        let checked = id.and_then(|id| it.check_identity(id));
        // A message may have been lost before.
        it.state.hinted.notify_one();
        Ok(checked)
    }

    fn has_options(_request: &Infallible) -> bool {
        false
    }

    fn can_share_call(&self, _one: &Infallible, _other: &Infallible) -> bool {
        true
    }

    async fn exchange(_: &Connection<Self>, _: &[Infallible], _: Instant) -> Vec<Result<Infallible>> {
        Vec::new()
    }
}

/// Decodes an answer.
fn address(reply: &Value) -> Option<Option<Address>> {
    match reply {
        Value::Nil => Some(None),
        Value::Array(parts) => match &parts[..] {
            [host, port] => Some(Some(Address { host: text(host)?, port: text(port)?.parse().ok()? })),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_an_address_or_none() {
        let words = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let reply = Value::Array(vec![words("::1"), words("7000")]);
        assert_eq!(address(&reply), Some(Some(Address { host: "::1".to_owned(), port: 7000 })));
        assert_eq!(address(&Value::Nil), Some(None));
        for reply in [words("x"), Value::Array(vec![words("h")]), Value::Array(vec![words("h"), words("port")])] {
            assert_eq!(address(&reply), None, "{reply:?}");
        }
    }
}
