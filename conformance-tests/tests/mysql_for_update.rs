//! `SELECT … FOR UPDATE` (`strategy=for-update`) on real MariaDB servers: the suite, for a user with the least permissions, and then the
//! tests that are specific to this strategy.

#[path = "mysql"]
mod mysql_for_update {
    #[path = "../support/mod.rs"]
    mod common;
    mod connections_of_leases;
    mod dropped_calls;
    mod fence;
    mod fixture;
    mod full_disk;
    mod record_for_update;
    mod resource_counts;
    mod server_settings;
    mod stored;
    #[path = "for_update.rs"]
    mod strategy;
    mod support;

    leasehold_conformance::suite!(strategy::MySqlFixture);
}
