//! Real MariaDB servers, and a connection beside the library under test.

mod server;
mod side;

pub use server::{MySqlServer, MySqlSettings};
pub use side::{SqlConnection, TextRow};
