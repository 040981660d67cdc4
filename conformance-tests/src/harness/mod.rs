//! What runs beside a case: the canary, and (feature `servers`) processes, servers and the fault proxy.

mod canary;
#[cfg(feature = "servers")]
mod clock_step;
#[cfg(feature = "servers")]
mod folder;
#[cfg(feature = "servers")]
mod port;
#[cfg(feature = "servers")]
mod process;
#[cfg(feature = "servers")]
mod proxy;
#[cfg(feature = "servers")]
mod redis;
#[cfg(feature = "servers")]
mod taker;

pub use canary::Canary;
#[cfg(feature = "servers")]
pub use clock_step::ClockStep;
#[cfg(feature = "servers")]
pub use folder::folder;
#[cfg(feature = "servers")]
pub use port::Port;
#[cfg(feature = "servers")]
pub use process::ChildProcess;
#[cfg(feature = "servers")]
pub use proxy::{Fault, FaultProxy, ProxyStats, Reach};
#[cfg(feature = "servers")]
pub use redis::{Monitor, RedisServer, RedisSettings, Reply, SideConnection};
#[cfg(feature = "servers")]
pub use taker::{Taker, TakerEvent, TakerLine, machine_now, micros};
