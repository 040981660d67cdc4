//! The conformance suite of Leasehold: every backend must pass it.

#![allow(missing_debug_implementations, reason = "fixtures, hooks and saboteurs are never printed")]

pub mod cases;
mod clients;
mod direct;
mod fault;
mod faulty;
mod fixture;
pub mod harness;
pub mod history;
pub mod hooks;
mod in_process;
mod jumping_clock;
mod list;
mod logs;
mod memory;
mod prefixed;
mod report;
pub mod saboteurs;
mod suite;
mod support;
mod timing_control;

#[doc(hidden)]
pub use clients::polled;
pub use direct::Direct;
pub use fault::{Data, PathFault, Room, ServerFault, Tamper, Unsupported};
pub use faulty::{Faults, Faulty};
pub use fixture::{Fixture, Record, ResourceCounts, Route};
pub use in_process::{InProcess, InProcessStore};
pub use memory::{Memory, MemoryFixture};
pub use prefixed::PrefixedFixture;
pub use report::{REPORT_VARIABLE, report_unsupported};
#[doc(hidden)]
pub use suite::run_reported;
pub use suite::{CASES, Case, DEADLINE, run, run_case};
#[doc(hidden)]
pub use support::{Stopwatch, join_all};
