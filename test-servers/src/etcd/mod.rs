//! Real etcd servers, and calls beside the library under test.

mod admin;
mod cluster;
mod keys;
mod server;
mod side;
mod statistics;
mod users;

pub use admin::{EtcdAlarm, EtcdStatus};
pub use cluster::EtcdCluster;
pub use keys::{EtcdKey, EtcdKeys, EtcdLease};
pub use server::{EtcdServer, EtcdSettings, EtcdTls};
pub use side::EtcdSide;
pub use statistics::EtcdStatistics;
pub use users::EtcdAccess;
