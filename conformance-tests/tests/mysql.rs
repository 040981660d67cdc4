//! Leasehold on real MariaDB servers: the suite, for a user with the least permissions, and then the tests that are
//! specific to MySQL and MariaDB.

mod mysql {
    mod cluster;
    #[path = "../support/mod.rs"]
    mod common;
    mod dropped_calls;
    mod fence;
    mod fixture;
    #[path = "../support/forgetful_path.rs"]
    mod forgetful_path;
    mod forgotten;
    mod full_disk;
    mod locked_rows;
    mod one_strategy;
    mod purge;
    mod quarantine;
    mod record;
    mod refusals;
    #[path = "../support/refused_later.rs"]
    mod refused_later;
    mod released;
    mod replicated;
    mod resource_counts;
    mod row_locks;
    mod server_settings;
    mod sessions;
    mod set_up;
    mod stored;
    #[path = "row_lease.rs"]
    mod strategy;
    mod support;
    mod tls;
    mod wakeup;
    mod withdrawn;

    leasehold_conformance::suite!(strategy::MySqlFixture);
    #[path = "../support/wrong_tls.rs"]
    mod wrong_tls;
}
