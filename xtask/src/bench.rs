//! `cargo xtask bench`.

use anyhow::{Context, Result, bail};

use crate::needs::{self, Install};
use crate::process;

/// Runs the benchmarks and prints every figure beside its goal.
///
/// All figures are ratios of what was measured in one run on one machine, in rounds that take turns, or distances to a
/// promise, so that they mean the same on a fast machine and on a slow one. Each workload is run several times; the
/// table shows the median of the runs, the lowest and the highest. Without WORKLOAD all of them, which takes about five
/// minutes a run on an idle machine, after a build in release mode.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// uncontended-pinned, uncontended-split, uncontended-path, handoff, held-memory, held-redis, etcd, mysql, cluster,
    /// quorum, takeover, startup, sqlite or zk.
    #[arg(value_name = "WORKLOAD")]
    workloads: Vec<String>,
    /// How often each workload is run.
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Write the figures that have a goal, and those against the smallest safe pair, into docs/benchmarks.md, without
    /// their goals.
    #[arg(long, conflicts_with_all = ["json", "workloads"])]
    update: bool,
    #[command(flatten)]
    install: Install,
}

const PAGE: &str = "docs/benchmarks.md";
const BEGIN: &str = "<!-- figures, written by `cargo xtask bench --update` -->\n";
const END: &str = "<!-- end of figures -->\n";

/// Runs it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let servers = [needs::REDIS, needs::MARIADB, needs::MARIADB_INSTALL_DB, needs::ETCD, needs::JAVA, needs::ZOOKEEPER];
    let needs = [&servers[..], &[needs::PROTOC, needs::PROTOC_INCLUDE]].concat();
    needs::provide(&needs, &args.install, "cargo xtask bench")?;
    if args.workloads.is_empty() || args.workloads.iter().any(|workload| workload == "startup") {
        process::show(&mut process::cargo(["build", "--release", "--quiet", "--locked", "--package=leasehold-cli"]))?;
    }
    let mut command =
        process::cargo(["run", "--release", "--quiet", "--locked", "--package=leasehold-benchmarks", "--"]);
    command.arg(format!("--runs={}", args.runs)).args(&args.workloads);
    if args.json {
        command.arg("--json");
    }
    if !args.update {
        return process::show(&mut command);
    }
    let table = process::read(&mut command)?;
    println!("{table}");
    let path = process::root().join(PAGE);
    let page = std::fs::read_to_string(&path).with_context(|| format!("cannot read {PAGE}"))?;
    std::fs::write(&path, replaced(&page, &table)?).with_context(|| format!("cannot write {PAGE}"))
}

/// The page with its figures replaced by these.
fn replaced(page: &str, table: &str) -> Result<String> {
    let (Some((before, rest)), Some((_, after))) = (page.split_once(BEGIN), page.split_once(END)) else {
        bail!("{PAGE} has no place for figures, which begins with {BEGIN:?}");
    };
    if !rest.contains(END) {
        bail!("the place for figures in {PAGE} ends before it begins");
    }
    let rows = table.lines().enumerate().filter(|(number, row)| *number < 2 || is_quoted(row));
    let rows: Vec<_> = rows.map(|(_, row)| without_goal(row)).collect();
    Ok(format!("{before}{BEGIN}\n{}\n\n{END}{after}", rows.join("\n")))
}

/// A row for the page, which shows only the figures. Goals are for people who change Leasehold, and the program prints
/// them.
fn without_goal(row: &str) -> String {
    let columns: Vec<_> = row.split('|').collect();
    format!("{}|", columns[..columns.len().saturating_sub(3)].join("|"))
}

/// Whether a row has a goal, or compares with the smallest safe pair.
fn is_quoted(row: &str) -> bool {
    let reached = row.trim_end_matches([' ', '|']).rsplit("| ").next().unwrap_or_default();
    ["yes", "**no**"].contains(&reached) || row.contains("pairs/s with") && row.contains("the smallest safe pair")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_a_place_for_figures() {
        let page = std::fs::read_to_string(process::root().join(PAGE)).unwrap();
        let written = replaced(&page, "| a | goal | reached |\n|---|---|---|\n| x | 2 | yes |\n").unwrap();
        assert!(written.contains(&format!("{BEGIN}\n| a |\n|---|\n| x |\n\n{END}")));
    }

    #[test]
    fn figures_with_a_goal_take_the_place_of_the_former_ones() {
        let page = format!("before\n{BEGIN}old\n{END}after\n");
        let table = "| a | b | goal | reached |\n|---|---|---|---|\n| x | 1 | ≥ 2 | **no** |\n| y | 1 |  |  |\n\
            | pairs/s with 1 tasks, against the smallest safe pair | 1 |  |  |\n";
        let expected = "| a | b |\n|---|---|\n| x | 1 |\n| pairs/s with 1 tasks, against the smallest safe pair | 1 |";
        assert_eq!(replaced(&page, table).unwrap(), format!("before\n{BEGIN}\n{expected}\n\n{END}after\n"));
        assert!(replaced("nothing", table).is_err());
    }
}
