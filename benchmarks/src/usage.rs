//! The memory and processor time of this process and of a server, as reported by the system.

use std::time::Duration;

use anyhow::{Context, Result};
use redis::aio::MultiplexedConnection;

/// The resident memory of this process, in bytes.
pub(crate) fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("this workload needs Linux's /proc")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib * 1024)
}

/// The processor time of all threads of this process.
pub(crate) fn processor() -> Result<Duration> {
    processor_of("self")
}

/// The processor time of another process, by its id, without that of threads that have ended.
pub(crate) fn processor_of(process: &str) -> Result<Duration> {
    let mut sum = Duration::ZERO;
    for task in std::fs::read_dir(format!("/proc/{process}/task")).context("this workload needs Linux's /proc")? {
        // A thread may end after it was listed and before it is read.
        let Ok(stat) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue };
        let nanos = stat.split_whitespace().next().context("no time in schedstat")?;
        sum += Duration::from_nanos(nanos.parse()?);
    }
    Ok(sum)
}

/// The processor time of a server.
pub(crate) async fn server_processor(connection: &mut MultiplexedConnection) -> Result<Duration> {
    let info: String = redis::cmd("INFO").arg("cpu").query_async(connection).await?;
    let mut sum = 0.0;
    for field in ["used_cpu_sys:", "used_cpu_user:"] {
        let value = info.lines().find_map(|line| line.strip_prefix(field)).context("no processor time in INFO")?;
        sum += value.trim().parse::<f64>()?;
    }
    Ok(Duration::from_secs_f64(sum))
}
