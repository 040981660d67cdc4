//! Real Redis servers, and a connection beside the library under test.

mod monitor;
mod server;
mod side;

pub use monitor::Monitor;
pub use server::{RedisServer, RedisSettings};
pub use side::Reply;
use side::SideConnection;
