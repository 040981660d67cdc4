#![doc = include_str!("../README.md")]
#![warn(clippy::exhaustive_enums)]

mod backend;
mod connections;
mod errors;
mod examine;
mod fence;
mod for_update;
mod idle;
mod kit;
mod maintenance;
mod permissions;
mod pool;
mod row;
mod session;
mod settings;
mod shared;
mod sql;
mod strategy;

pub use backend::MySqlBackend;
pub use fence::fence;
pub use leasehold_core::backend::OnRestart;
pub use permissions::{grants, read_only_grants};
pub use settings::{SCHEMES, Settings, Strategy, Tls};
pub use sqlx;

/// The SQL that creates the tables, for users who want to read it or to run it themselves.
pub const SCHEMA: &str = include_str!("schema.sql");
