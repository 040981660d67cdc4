//! What a server says about itself: the reply to `INFO`.

use std::collections::HashMap;

use tokio::time::Instant;

use crate::connection::Connection;
use crate::errors::Failure;
use crate::protocol::Protocol;
use crate::replies::text;

/// The fields of `INFO`, by their names.
pub(crate) struct Info(HashMap<String, String>);

impl Info {
    /// Requests the fields: all of them, or those of the section in `words`.
    pub(crate) async fn read<P: Protocol>(
        connection: &Connection<P>,
        words: &[&str],
        until: Instant,
    ) -> Result<Self, Failure> {
        let reply = connection.query(words, until).await?;
        Ok(Self::of(&text(&reply).ok_or(Failure::UnexpectedReply)?))
    }

    pub(crate) fn of(info: &str) -> Self {
        let fields = info.lines().filter_map(|line| line.trim_end().split_once(':'));
        Self(fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// `None`: the server does not have this field.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Zero without the field.
    pub(crate) fn number(&self, name: &str) -> u64 {
        self.get(name).and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}
