#![doc = include_str!("../README.md")]
#![warn(clippy::exhaustive_enums)]

mod acquire;
mod activity;
mod admin;
mod backend;
mod capabilities;
mod delayed;
mod errors;
mod examine;
mod fence;
mod inner;
mod known;
mod link;
mod nodes;
mod order;
mod queue;
mod release;
mod renewal;
mod session;
mod settings;
mod shared;
mod slot;
mod turn;
mod unreachable;

pub use backend::ZkBackend;
pub use fence::{Fence, fence};
pub use nodes::acl;
pub use settings::{SCHEMES, Settings};
pub use zookeeper_client;
