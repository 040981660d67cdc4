//! What backends share: URLs and their settings, connections, sessions, what a restart of the store means, and majorities of
//! servers. A backend may do without any of it; the contract is in [`backend`](crate::backend).

mod addresses;
mod attachment;
mod bounded_set;
mod cluster_url;
mod connecting;
mod health;
pub mod limits;
mod per_runtime;
pub mod quorum;
pub mod restart;
mod servers;
mod session_keeper;
mod session_lease;
mod session_pool;
mod session_renewals;
mod store_url;
mod tls_files;
mod watches;
mod wrong_tls;

/// The URL in [`StoreUrl`] is of this version.
#[doc(no_inline)]
pub use url;

pub use self::addresses::{Lookups, connect_to_any};
pub use self::attachment::Attachment;
pub use self::bounded_set::BoundedSet;
pub use self::cluster_url::{Cluster, ClusterUrl};
pub use self::connecting::{Attempt, Connecting, Progress};
pub use self::health::Health;
pub use self::per_runtime::{PerRuntime, RuntimeTask};
pub use self::restart::OnRestart;
pub use self::servers::Servers;
pub use self::session_keeper::{KeptSession, SessionKeeper, Unconfirmed};
pub use self::session_pool::{NotOpened, PooledSession, SessionPool};
pub use self::session_renewals::SessionRenewals;
pub use self::store_url::{CommonSettings, StoreUrl, decoded, parse_duration, within, without_password};
pub use self::tls_files::{Pem, TlsFiles};
pub use self::watches::Watches;
pub use self::wrong_tls::{TlsRefusal, expects_tls, first_reply, tls_refusal};
pub use crate::clock::time_since_boot;
pub use crate::run_to_end::run_to_end;
pub use crate::sync::lock;
pub use crate::terms::default_margin;
pub use crate::timers::require_timers;
