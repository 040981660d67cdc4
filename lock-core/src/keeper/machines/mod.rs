//! The decisions of the keeper, as pure state machines: inputs and the time go in, outputs come out. They know no
//! store, clock, lock or source of randomness.
//!
//! - [`WaitQueue`]: the acquires of one client for one lock, and their claim at the store.
//! - [`HeldLease`]: one lease from its grant to its end.
//! - [`Disposal`]: the end of a claim at the store, in the background.
//!
//! Public only for the workspace's simulation, which explores them. They are not part of the interface.
#![doc(hidden)]
#![expect(clippy::exhaustive_enums, reason = "a caller that explores the states has to match each case")]

pub(super) mod disposal;
pub(super) mod held_lease;
pub(super) mod outputs;
pub(super) mod rules;
pub(super) mod wait_queue;

pub use self::disposal::{Disposal, Ended, Ending, RunOut, Why};
pub use self::held_lease::{HeldLease, LeaseNote, LeaseOutput, Phase};
pub use self::outputs::{Outputs, Wake};
pub use self::rules::Rules;
pub use self::wait_queue::{AcquireId, Joining, QueueNote, QueueOutput, Start, WaitQueue};
pub use crate::terms::Terms;
