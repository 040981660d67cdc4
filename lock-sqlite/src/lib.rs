#![doc = include_str!("../README.md")]
#![warn(clippy::exhaustive_enums)]

mod admin;
mod backend;
mod boot_clock;
mod capabilities;
mod errors;
mod fence;
mod file;
mod file_system;
mod maintenance;
mod notifier;
mod open_files;
mod read_only;
mod settings;
mod shared;
mod store;
mod watcher;
mod worker;

pub use backend::SqliteBackend;
pub use fence::fence;
pub use rusqlite;
pub use settings::{SCHEMES, Settings, resolve};

/// The SQL that creates the tables, for users who want to read it or to run it themselves.
pub const SCHEMA: &str = include_str!("schema.sql");
