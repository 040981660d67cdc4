//! Leasehold on a SQLite file: the suite as it comes, and once more through `Arc<dyn LockBackend>` and a prefix of names; then
//! what only a file can have.

mod sqlite {
    mod census;
    mod descriptors;
    mod fixture;
    mod stored;

    conformance_tests::suite!(fixture::SqliteFixture);

    mod prefixed {
        conformance_tests::suite!(conformance_tests::PrefixedFixture<super::fixture::SqliteFixture>);
    }
}
