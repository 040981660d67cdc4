//! Leasehold on a SQLite file: the suite, and then what only a file can have.

mod sqlite {
    mod descriptors;
    mod fixture;
    mod resource_counts;
    mod stored;

    leasehold_conformance::suite!(fixture::SqliteFixture);
}
