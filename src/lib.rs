//! Distributed locks for Rust on the store that you already run.
//!
//! A lock has at most one holder at a time, as far as any lease can promise that. It is renewed while the work runs,
//! and its holder is notified at once if it is lost. Its [`FencingToken`] lets the protected resource refuse a holder
//! that continues too late after a pause. The interface is the same on every store: [`connect`] takes a URL.
//!
//! ```
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> leasehold::Result<()> {
//! let client = leasehold::connect("memory://").await?; // or redis://127.0.0.1:6379
//! let guard = client.lock("orders/42").ttl(Duration::from_secs(30)).wait(Duration::from_secs(5)).acquire().await?;
//! println!("held, with fencing token {}", guard.fencing_token());
//! guard.release().await
//! # }
//! ```
//!
//! Before you use a lock, read when not to use one: the documentation of [`leasehold_core`] begins with it, and says
//! what a lease cannot promise.
//!
//! # Features
//! Each store is a feature, and none is on by default. A feature adds only the client of its own store as a dependency.
//!
//! | feature | URLs | module |
//! |---|---|---|
//! | | `memory://` | [`memory`] |
//! | `etcd` | `etcd://` | `etcd` |
//! | `etcd-tls` | `etcds://` | `etcd` |
//! | `mysql` | `mysql://` | `mysql` |
//! | `mysql-tls` | `mysql://` of a host that is not loopback | `mysql` |
//! | `redis` | `redis://`, `redis+unix://`, `redis+sentinel://`, `redis+cluster://`, `redis+quorum://` | `redis` |
//! | `redis-tls` | `rediss://`, `rediss+sentinel://`, `rediss+cluster://`, `rediss+quorum://` | `redis` |
//! | `sqlite` | `sqlite://` | `sqlite` |
//! | `zk` | `zk://` | `zk` |
//! | `zk-tls` | `zks://` | `zk` |

mod connect;

#[doc(hidden)]
pub use connect::SCHEMES;
pub use connect::{connect, connect_builder, connect_builder_lazy, connect_lazy};
#[doc(inline)]
pub use leasehold_core::*;

#[cfg(feature = "etcd")]
#[doc(inline)]
pub use leasehold_etcd as etcd;
#[cfg(feature = "mysql")]
#[doc(inline)]
pub use leasehold_mysql as mysql;
#[cfg(feature = "redis")]
#[doc(inline)]
pub use leasehold_redis as redis;
#[cfg(feature = "sqlite")]
#[doc(inline)]
pub use leasehold_sqlite as sqlite;
#[cfg(feature = "zk")]
#[doc(inline)]
pub use leasehold_zk as zk;
