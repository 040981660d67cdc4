//! The core of Leasehold. Knows no store.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod capabilities;
mod claim;
mod clock;
mod core_handle;
mod error;
mod grant;
pub mod memory;
mod name;
mod renewal;
mod sync;
mod token;

pub use backend::{Extensions, Inspect, Inspection, LeaseView, LockBackend};
pub use capabilities::{Capabilities, LossNotice, Restart, Scope, StoreClock, TtlScope, Waiting};
pub use claim::{Claim, HolderInfo, IfHeld, MAX_HOLDER_BYTES, MAX_LABEL_BYTES, Mode};
pub use clock::{Clock, Stamp, SystemClock};
pub use core_handle::{CoreHandle, Event};
pub use error::{Error, ErrorKind, Result};
pub use grant::{Acquisition, Certainty, Confirmation, Grant, Place, Release};
pub use memory::{MemoryBackend, MemoryStore};
pub use name::{LockName, MAX_NAME_BYTES};
pub use renewal::{Answer, Answers, Extend, LeaseRef};
pub use token::{FencingToken, OwnerToken};
