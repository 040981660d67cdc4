#![doc = include_str!("../README.md")]

mod certificates;
mod etcd;
mod mysql;
mod program;
mod redis;
mod server_process;

pub use certificates::{certificates, client_certificate};
pub use etcd::{EtcdKey, EtcdLease, EtcdServer, EtcdSettings, EtcdSide, EtcdTls};
pub use mysql::{MySqlServer, MySqlSettings, SqlConnection, TextRow};
pub use redis::{Monitor, RedisServer, RedisSettings, Reply, SideConnection};
pub use server_process::ServerProcess;
