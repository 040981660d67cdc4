//! What runs beside a case: the canary, and (feature `servers`) processes, servers and the fault proxy.

mod canary;
#[cfg(feature = "servers")]
mod port;
#[cfg(feature = "servers")]
mod process;

pub use canary::Canary;
#[cfg(feature = "servers")]
pub use port::Port;
#[cfg(feature = "servers")]
pub use process::ChildProcess;
