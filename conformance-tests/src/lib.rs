//! The conformance suite of Leasehold.
