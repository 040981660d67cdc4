#![doc = include_str!("../README.md")]
#![warn(clippy::exhaustive_enums)]

mod admin;
mod backend;
mod batcher;
mod capabilities;
mod connection;
mod errors;
mod examine;
mod exchange;
mod fence;
mod keys;
mod manager;
mod replies;
mod reply;
mod run;
mod scripts;
mod server_clock;
mod settings;
mod shared;
mod socket;
#[cfg(feature = "tls")]
mod tls;
mod tombstones;

pub use backend::RedisBackend;
pub use fence::{Fence, FencedScript};
pub use keys::{acl, operator_acl, read_only_acl};
pub use leasehold_core::backend::OnRestart;
pub use redis;
pub use settings::{OnEviction, SCHEMES, Settings};
