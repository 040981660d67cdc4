//! Commands for people who work on Leasehold.
fn main() {}
