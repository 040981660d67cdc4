//! Real Redis servers, and a connection beside the library under test.

mod cluster;
mod monitor;
mod server;
mod side;

pub use cluster::RedisCluster;
pub use monitor::Monitor;
pub use server::{RedisServer, RedisSettings};
pub use side::Reply;
use side::SideConnection;
