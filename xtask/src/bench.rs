//! `cargo xtask bench`.

use anyhow::Result;

use crate::apt::{self, Need};
use crate::process;

/// Runs the benchmarks and prints every figure beside its goal.
///
/// All figures are ratios of what was measured in one run on one machine, in rounds that take turns, so that
/// they mean the same on a fast machine and on a slow one. Without WORKLOAD all of them.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// uncontended, handoff, held or takeover.
    #[arg(value_name = "WORKLOAD")]
    workloads: Vec<String>,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub(crate) fn run(args: &Args) -> Result<()> {
    apt::provide(&[Need { program: "redis-server", package: "redis-server" }])?;
    let mut command =
        process::cargo(["run", "--release", "--quiet", "--locked", "--package=leasehold-benchmarks", "--"]);
    command.args(&args.workloads);
    if args.json {
        command.arg("--json");
    }
    process::show(&mut command)
}
