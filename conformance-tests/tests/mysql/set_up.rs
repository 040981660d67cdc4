//! The database, the table and the user of a new server.

use leasehold::mysql::{SCHEMA, grants};
use leasehold_test_servers::MySqlServer;

/// The user of clients. It has the least permissions, so that every case proves that they are enough.
pub(super) const USER: &str = "'locker'@'%'";
pub(super) const PASSWORD: &str = "pass-word";

pub(super) fn set_up(server: &MySqlServer) {
    let created = server.create("locks", SCHEMA, USER, PASSWORD, &grants("locks", USER));
    created.unwrap_or_else(|error| panic!("the server cannot be set up: {error}"));
}
