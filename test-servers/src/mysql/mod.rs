//! Real MariaDB servers, servers that exist already, and a connection beside the library under test.

mod database;
mod named;
mod server;
mod side;
mod small_disk;

use std::io;
use std::str::FromStr;

pub use database::{Contents, MySqlDatabase};
pub use named::{URL_VARIABLE, is_named};
pub use server::{MySqlServer, MySqlSettings};
pub use side::{SqlConnection, TextRow};
pub use small_disk::can_have_small_disks;

/// Statements of an administrator, beside the library under test.
pub trait Sql {
    /// Runs statements in the database of the test, and returns the rows of all results. Blocks for at most twenty
    /// seconds.
    ///
    /// # Errors
    /// The server's error, or that of the connection. The next call then opens a new connection.
    fn query(&self, statements: &str) -> io::Result<Vec<TextRow>>;

    /// The value of a status variable that counts statements or connections, for the clients of the test.
    ///
    /// # Errors
    /// The same, and if the value cannot be read for these clients alone.
    fn status(&self, name: &str) -> io::Result<u64>;
}

fn number<N: FromStr>(value: Option<&Option<Vec<u8>>>) -> io::Result<N> {
    let text = value.cloned().flatten().unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.parse().map_err(|_| io::Error::other(format!("the server replies `{text}` where a number is expected")))
}
