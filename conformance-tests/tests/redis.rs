//! Leasehold on real Redis servers: the suite as it comes, and once more as in a careful production; then what only Redis
//! can have.

mod redis {
    mod census;
    mod chaos;
    mod cost;
    mod fixture;
    mod own_server;
    mod restart;
    mod settings;
    mod stored;
    mod support;

    leasehold_conformance::suite!(fixture::RedisFixture<fixture::Plain>);

    mod guarded {
        leasehold_conformance::suite!(super::fixture::RedisFixture<super::fixture::Guarded>);
    }
}
