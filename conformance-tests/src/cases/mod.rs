//! The cases, one file per group of the contract.
//!
//! Each takes a fresh fixture, fails by a panic, and names the invariants that it proves.

pub mod exclusion;
pub mod ownership;
