#![doc = include_str!("../README.md")]

mod certificates;
mod mysql;
mod program;
mod redis;
mod server_process;

pub use certificates::certificates;
pub use mysql::{
    Contents, MySqlDatabase, MySqlServer, MySqlSettings, Sql, SqlConnection, TextRow, URL_VARIABLE,
    can_have_small_disks, is_named,
};
pub use redis::{Monitor, RedisServer, RedisSettings, Reply, SideConnection};
pub use server_process::ServerProcess;
