//! Leasehold on a SQLite file: the suite, and then the tests that are specific to files.

mod sqlite {
    mod descriptors;
    mod fixture;
    mod resource_counts;
    mod stored;

    leasehold_conformance::suite!(fixture::SqliteFixture);
}
