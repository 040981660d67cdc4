//! The conformance suite of Leasehold: what every backend has to pass.

mod fault;
mod fixture;
pub mod harness;

pub use fault::{Data, Declared, PathFault, Room, ServerFault, Tamper};
pub use fixture::{Census, Fixture, Record, Route};
