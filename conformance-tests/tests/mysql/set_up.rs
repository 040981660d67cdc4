//! The database, the table and the user of a new server.

use leasehold::mysql::{SCHEMA, grants};
use leasehold_test_servers::MySqlServer;

use super::stored::Stored;

/// The user of clients. It has the least permissions, so that every case proves that they are enough.
pub(super) const USER: &str = "'locker'@'%'";
pub(super) const PASSWORD: &str = "pass-word";

pub(super) fn set_up(server: &MySqlServer) {
    let statements = format!(
        "CREATE DATABASE locks; USE locks; {SCHEMA} CREATE USER {USER} IDENTIFIED BY '{PASSWORD}'; {}; USE mysql",
        grants("locks", USER)
    );
    Stored(server).query(&statements);
}
