//! `SELECT … FOR UPDATE` (`strategy=for-update`) on real MariaDB servers: the suite, for a user with the least
//! permissions, and then the tests that are specific to this strategy.

#[path = "mysql"]
mod mysql_for_update {
    mod cluster;
    #[path = "../support/mod.rs"]
    mod common;
    mod connections_of_leases;
    mod dropped_calls;
    mod failover_for_update;
    mod fence;
    mod fixture;
    #[path = "../support/forgetful_path.rs"]
    mod forgetful_path;
    mod forgotten;
    mod full_disk;
    mod idle_limits;
    mod late_kill;
    mod locked_rows_for_update;
    mod purge;
    mod record_for_update;
    mod refusals;
    #[path = "../support/refused_later.rs"]
    mod refused_later;
    mod replicated;
    mod resource_counts;
    mod row_locks;
    mod server_settings;
    mod set_up;
    mod stored;
    #[path = "for_update.rs"]
    mod strategy;
    mod support;

    leasehold_conformance::suite!(strategy::MySqlFixture);
}
