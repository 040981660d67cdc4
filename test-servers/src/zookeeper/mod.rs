//! Real ZooKeeper servers, and calls beside the library under test.

mod classes;
mod election;
mod ensemble;
mod server;
mod session;
mod side;
mod snapshot;
#[cfg(test)]
mod tests;
mod wire;

pub use ensemble::ZooKeeperEnsemble;
pub use server::{ZooKeeperServer, ZooKeeperSettings};
pub use side::{ZooKeeperLife, ZooKeeperNode, ZooKeeperSide};
