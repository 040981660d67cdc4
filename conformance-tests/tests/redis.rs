//! Leasehold on real Redis servers: the suite as it comes, and once more as in a careful production; then what only Redis
//! can do.

mod redis {
    mod fixture;
    mod own_server;
    mod stored;

    conformance_tests::suite!(fixture::RedisFixture<fixture::Plain>);

    mod guarded {
        conformance_tests::suite!(super::fixture::RedisFixture<super::fixture::Guarded>);
    }
}
