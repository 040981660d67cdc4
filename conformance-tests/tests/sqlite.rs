//! Leasehold on a SQLite file: the suite as it comes, and once more through `Arc<dyn LockBackend>` and a prefix of names; then
//! what only a file can have.

mod sqlite {
    mod census;
    mod descriptors;
    mod fixture;
    mod stored;

    leasehold_conformance::suite!(fixture::SqliteFixture);

    mod prefixed {
        leasehold_conformance::suite!(leasehold_conformance::PrefixedFixture<super::fixture::SqliteFixture>);
    }
}
