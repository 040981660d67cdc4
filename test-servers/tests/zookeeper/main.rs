//! Real ZooKeeper servers: every function of the starter has its effect, within a bound.

mod ensemble;
mod server;
#[path = "../support/mod.rs"]
mod support;
