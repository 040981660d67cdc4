//! Counts what a server holds for the clients of a test and has done for them, and changes rows without the library.

use leasehold_core::LockName;

use super::stored::{Stored, hex};

/// The connections of clients: all to the database of the test, except those of the fixture.
pub(super) const CLIENTS: &str =
    "information_schema.processlist WHERE db = DATABASE() AND user <> SUBSTRING_INDEX(USER(), '@', 1)";

impl Stored<'_> {
    /// Changes the row of a lock: `change` precedes the condition.
    pub(super) fn change(&self, change: &str, name: &LockName) {
        self.query(&format!("{change} WHERE name = {}", hex(name)));
    }

    /// The numbers of the connections of clients.
    pub(super) fn clients(&self) -> Vec<String> {
        let rows = self.query(&format!("SELECT CAST(id AS CHAR) FROM {CLIENTS}"));
        let text = |row: &Vec<Option<Vec<u8>>>| String::from_utf8_lossy(row[0].as_deref().unwrap_or_default()).into();
        rows.iter().map(text).collect()
    }

    /// How many connections clients have.
    pub(super) fn connections(&self) -> u64 {
        self.clients().len() as u64
    }

    /// How many transactions the clients have. `information_schema.innodb_trx` is up to 100 ms old.
    pub(super) fn transactions(&self) -> u64 {
        let clients = self.clients();
        let status = self.query("SHOW ENGINE INNODB STATUS");
        let status = status[0][2].as_deref().map(String::from_utf8_lossy).unwrap_or_default();
        let is_active = |text: &&str| text.lines().next().is_some_and(|line| line.contains(", ACTIVE"));
        let thread = |text: &str| Some(text.split_once("thread id ")?.1.split_once(',')?.0.to_owned());
        let of_clients = |text: &&str| thread(text).is_some_and(|id| clients.contains(&id));
        status.split("---TRANSACTION").skip(1).filter(is_active).filter(of_clients).count() as u64
    }

    /// A status variable of the server, for the clients of the test.
    pub(super) fn status(&self, name: &str) -> u64 {
        self.0.status(name).unwrap_or_else(|error| panic!("{error}"))
    }
}
