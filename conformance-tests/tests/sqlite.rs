//! Leasehold on a SQLite file: the suite, and then what only a file can have.

mod sqlite {
    mod census;
    mod descriptors;
    mod fixture;
    mod stored;

    leasehold_conformance::suite!(fixture::SqliteFixture);
}
