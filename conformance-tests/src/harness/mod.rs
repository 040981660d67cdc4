//! Helpers that run beside a case: the lag monitor, and (feature `servers`) processes, ports and the fault proxy.

#[cfg(feature = "servers")]
mod clock_step;
#[cfg(feature = "servers")]
mod folder;
mod lag_monitor;
#[cfg(feature = "servers")]
mod lock_holder;
#[cfg(feature = "servers")]
mod port;
#[cfg(feature = "servers")]
mod process;
#[cfg(feature = "servers")]
mod proxy;
#[cfg(feature = "servers")]
mod tcp_path;
#[cfg(feature = "servers")]
mod tcp_paths;

#[cfg(feature = "servers")]
pub use clock_step::ClockStep;
#[cfg(feature = "servers")]
pub use folder::folder;
pub use lag_monitor::LagMonitor;
#[cfg(feature = "servers")]
pub use lock_holder::{HolderEvent, HolderLine, LockHolder, machine_now, micros};
#[cfg(feature = "servers")]
pub use port::Port;
#[cfg(feature = "servers")]
pub use process::ChildProcess;
#[cfg(feature = "servers")]
pub use proxy::{Fault, FaultProxy, ProxyStats, Reach};
#[cfg(feature = "servers")]
pub use tcp_path::TcpPath;
#[cfg(feature = "servers")]
pub use tcp_paths::TcpPaths;
