#![doc = include_str!("../README.md")]
#![warn(clippy::exhaustive_enums)]

mod acquire;
mod admin;
mod attach;
mod backend;
mod capabilities;
mod connection;
mod connections;
mod errors;
mod examine;
mod fence;
mod health;
mod inner;
mod key_ids;
mod keys;
mod members;
mod mirror;
mod pauses;
mod release;
mod renewal;
mod session;
mod sessions;
mod settings;
mod shared;
mod slot;
mod transactions;
mod watch_stream;
mod watcher;

pub use backend::EtcdBackend;
pub use etcd_client;
pub use fence::fence;
pub use keys::{read_only_role, role};
pub use settings::{SCHEMES, Settings};
