//! Counts what a server holds and what it has done, and changes rows without the library.

use leasehold_core::LockName;

use super::stored::{Stored, hex, number};

impl Stored<'_> {
    /// Changes the row of a lock: `change` precedes the condition.
    pub(super) fn change(&self, change: &str, name: &LockName) {
        self.query(&format!("{change} WHERE name = {}", hex(name)));
    }

    /// How many connections clients have.
    pub(super) fn connections(&self) -> u64 {
        let found =
            self.query("SELECT COUNT(*) FROM information_schema.processlist WHERE user NOT IN ('root', 'system user')");
        number(&found[0], 0)
    }

    /// A status variable of the server.
    pub(super) fn status(&self, name: &str) -> u64 {
        number(&self.query(&format!("SHOW GLOBAL STATUS LIKE '{name}'"))[0], 1)
    }
}
