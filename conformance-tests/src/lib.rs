//! The conformance suite of Leasehold: what every backend has to pass.

mod fault;
mod faulty;
mod fixture;
pub mod harness;
pub mod history;

pub use fault::{Data, Declared, PathFault, Room, ServerFault, Tamper};
pub use faulty::{Faults, Faulty};
pub use fixture::{Census, Fixture, Record, Route};
