//! Real Redis servers, and a connection beside the library under test.

mod server;
mod side;

pub use server::{RedisServer, RedisSettings};
pub use side::{Reply, SideConnection};
