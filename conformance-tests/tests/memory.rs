//! The suite on the memory backend, directly and through `Arc<dyn LockBackend>` and a prefix of names.

mod memory {
    leasehold_conformance::suite!(leasehold_conformance::MemoryFixture);
}

mod memory_prefixed {
    leasehold_conformance::suite!(leasehold_conformance::PrefixedFixture<leasehold_conformance::MemoryFixture>);
}
