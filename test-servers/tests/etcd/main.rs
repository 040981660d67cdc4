//! Real etcd servers: every function of the starter has its effect, within a bound.

mod cluster;
mod operator;
mod server;
mod stored;
#[path = "../support/mod.rs"]
mod support;
mod tls;
mod users;
