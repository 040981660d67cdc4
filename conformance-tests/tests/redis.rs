//! Leasehold on real Redis servers: the suite, for a user with the least permissions, and then what only Redis can have.

mod redis {
    mod chaos;
    mod cost;
    mod fixture;
    mod own_server;
    mod resource_counts;
    mod restart;
    mod settings;
    mod stored;
    mod support;

    leasehold_conformance::suite!(fixture::RedisFixture<fixture::Guarded>);
}
