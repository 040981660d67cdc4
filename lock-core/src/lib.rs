//! The core of Leasehold. Knows no store.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod capabilities;
mod claim;
mod client;
mod clock;
mod core_handle;
mod defaults;
mod entropy;
mod error;
mod grant;
mod guard;
mod holder;
mod keeper;
mod lease;
mod lock;
mod loss;
pub mod memory;
mod name;
mod renewal;
mod run_to_end;
mod stats;
mod sync;
mod token;

pub use backend::{Extensions, Inspect, Inspection, LeaseView, LockBackend};
pub use capabilities::{Capabilities, LossNotice, Restart, Scope, StoreClock, TtlScope, Waiting};
pub use claim::{Claim, HolderInfo, IfHeld, MAX_HOLDER_BYTES, MAX_LABEL_BYTES, Mode};
pub use client::{ClientBuilder, LockClient};
pub use clock::{Clock, Stamp, SystemClock};
pub use core_handle::{CoreHandle, Event};
pub use defaults::{DEFAULT_MARGIN_PERCENT, DEFAULT_TTL, DEFAULT_WAIT, RENEWALS_PER_TTL};
pub use error::{Error, ErrorKind, Result};
pub use grant::{Acquisition, Certainty, Confirmation, Grant, Place, Release};
pub use guard::LockGuard;
pub use holder::HolderId;
pub use keeper::{KeeperHome, LeaseKeeper};
pub use lock::Lock;
pub use loss::{Loss, LossReason};
pub use memory::{MemoryBackend, MemoryStore};
pub use name::{LockName, MAX_NAME_BYTES};
pub use renewal::{Answer, Answers, Extend, LeaseRef};
pub use stats::Stats;
pub use token::{FencingToken, OwnerToken};
