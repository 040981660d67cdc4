//! Leasehold on real Redis servers: the suite, for a user with the least permissions, and then the tests that are
//! specific to Redis.

mod redis {
    mod chaos;
    #[path = "../support/mod.rs"]
    mod common;
    mod cost;
    mod fence;
    mod fixture;
    mod foreign_key;
    #[path = "../support/forgetful_path.rs"]
    mod forgetful_path;
    mod forgotten;
    mod min_replicas;
    mod pair;
    mod promoted;
    mod put_back;
    mod received;
    mod replication;
    mod resource_counts;
    mod restart;
    mod settings;
    mod setups;
    mod stored;
    mod support;

    leasehold_conformance::suite!(fixture::RedisFixture<fixture::Guarded<setups::ByAddress>>);
}
