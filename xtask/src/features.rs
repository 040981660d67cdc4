//! Clippy for each package alone, with each feature alone, and for everything together. A build of the whole
//! workspace passes while a package alone lacks a feature of a dependency.

use anyhow::{Result, bail};
use cargo_metadata::Target;

use crate::metadata::{Metadata, Package};
use crate::process;

/// Clippy over everything with all features.
pub(crate) fn together() -> Result<String> {
    clippy(&["--workspace", "--all-targets", "--all-features"])?;
    Ok(String::new())
}

/// Clippy over each package alone with each feature alone: the library and the programs as a user builds them,
/// without dev-dependencies, and then with every test, example and benchmark.
pub(crate) fn alone(metadata: &Metadata) -> Result<String> {
    let (mut runs, mut failed) = (0, Vec::new());
    for package in metadata.workspace_packages() {
        for features in combinations(package) {
            let package_arg = format!("--package={}", package.name);
            let features_arg = format!("--features={features}");
            let common = [&*package_arg, "--no-default-features", &*features_arg];
            let has = |is_kind: fn(&Target) -> bool| package.targets.iter().any(is_kind);
            let lib = has(Target::is_lib).then_some("--lib");
            let kinds: Vec<_> = lib.into_iter().chain(has(Target::is_bin).then_some("--bins")).collect();
            for targets in [&kinds[..], &["--all-targets"]] {
                runs += 1;
                failed.extend(clippy(&[&common[..], targets].concat()).err().map(|error| error.to_string()));
            }
        }
    }
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    Ok(format!("{runs} combinations"))
}

/// No feature, each alone, and all.
fn combinations(package: &Package) -> Vec<String> {
    let named: Vec<_> = package.features.keys().filter(|name| *name != "default").cloned().collect();
    let mut all = vec![String::new()];
    all.extend(named.iter().cloned());
    if named.len() > 1 {
        all.push(named.join(","));
    }
    all
}

fn clippy(args: &[&str]) -> Result<()> {
    let mut command = process::cargo(["clippy", "--quiet", "--locked"]);
    process::show(command.args(args).args(["--", "-D", "warnings"]))
}
