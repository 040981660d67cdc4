//! The cases, one file per group of the contract.
//!
//! Each takes a fresh fixture, fails by a panic, and names the invariants that it proves.

pub mod cancellation;
pub mod exclusion;
pub mod keeper;
pub mod lease;
pub mod ownership;
pub mod unsure;
pub mod waiting;
