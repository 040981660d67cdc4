//! The cases, one file per group of the contract.
//!
//! Each case takes a fresh fixture, fails with a panic, and names the invariants that it proves.

pub mod a_fixture;
pub mod cancellation;
pub mod capabilities;
pub mod defaults;
pub mod errors;
pub mod exclusion;
pub mod faults;
pub mod fencing;
pub mod in_doubt;
pub mod keeper;
pub mod leaks;
pub mod lease;
pub mod names;
pub mod ownership;
pub mod reconnect;
pub mod reentry;
pub mod waiting;
