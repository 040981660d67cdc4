#![doc = include_str!("../README.md")]
#![warn(clippy::exhaustive_enums)]

mod backend;
mod calls;
mod capabilities;
mod conn;
mod epoch;
mod errors;
mod examine;
mod fence;
mod keys;
mod line;
mod outbox;
mod replies;
mod reply;
mod scripts;
mod server_clock;
mod settings;
mod shared;
#[cfg(feature = "tls")]
mod tls;
mod tombstones;
mod views;
mod wire;

pub use backend::RedisBackend;
pub use fence::{Fence, FencedScript};
pub use keys::{acl, operator_acl, read_only_acl};
pub use redis;
pub use settings::{OnEviction, OnRestart, SCHEMES, Settings};
