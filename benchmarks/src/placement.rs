//! The CPUs that a process and its children may use.
//!
//! A thread or a process inherits the CPUs of the thread that starts it. So [`pin`] must run before a server or a
//! runtime is started, and applies to everything that is started afterwards.

use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The first two CPUs that this process may use.
///
/// # Errors
/// When it may use only one.
pub(crate) fn two_cpus() -> Result<[usize; 2]> {
    let allowed = sched_getaffinity(None).context("cannot read which CPUs this process may use")?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let two = cpus.next().zip(cpus.next()).context("this workload needs two CPUs")?;
    Ok(two.into())
}

/// Restricts the calling thread, and everything that it starts from now on, to this CPU.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).context("cannot choose a CPU")?;
    ensure!(sched_getaffinity(None)? == only, "the system does not leave CPU {cpu} to this process alone");
    Ok(())
}
