//! The suite on the memory backend: as it is.

mod memory {
    conformance_tests::suite!(conformance_tests::MemoryFixture);
}
