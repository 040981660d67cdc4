//! Real etcd servers, and calls beside the library under test.

mod keys;
mod server;
mod side;

pub use keys::{EtcdKey, EtcdLease};
pub use server::{EtcdServer, EtcdSettings, EtcdTls};
pub use side::EtcdSide;
