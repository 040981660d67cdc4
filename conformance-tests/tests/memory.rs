//! The suite on the memory backend, as it is and through `Arc<dyn LockBackend>` and a prefix of names.

mod memory {
    conformance_tests::suite!(conformance_tests::MemoryFixture);
}

mod memory_prefixed {
    conformance_tests::suite!(conformance_tests::PrefixedFixture<conformance_tests::MemoryFixture>);
}
