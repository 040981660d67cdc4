#![doc = include_str!("../README.md")]

mod certificates;
mod etcd;
mod links;
mod mysql;
mod percent;
mod program;
mod redis;
mod relays;
mod server_process;
mod sockets;
mod zookeeper;

pub use certificates::{certificates, client_certificate};
pub use etcd::{
    EtcdAccess, EtcdAlarm, EtcdCluster, EtcdKey, EtcdKeys, EtcdLease, EtcdServer, EtcdSettings, EtcdSide,
    EtcdStatistics, EtcdStatus, EtcdTls,
};
pub use mysql::{
    Contents, MySqlDatabase, MySqlServer, MySqlSettings, Sql, SqlConnection, TextRow, URL_VARIABLE,
    can_have_small_disks, is_named,
};
pub use percent::percent_encoded;
pub use redis::{Monitor, RedisCluster, RedisServer, RedisSettings, Reply};
pub use server_process::ServerProcess;
pub use sockets::connections;
pub use zookeeper::{
    ZooKeeperEnsemble, ZooKeeperLife, ZooKeeperNode, ZooKeeperServer, ZooKeeperSettings, ZooKeeperSide,
};
