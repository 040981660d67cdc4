//! Clippy for each published package alone, with each feature alone, and for everything together. A build of the whole
//! workspace passes while a package alone lacks a feature of a dependency.

use anyhow::{Result, bail};
use cargo_metadata::Target;

use crate::metadata::{self, Metadata, Package};
use crate::process;

/// Clippy over everything with all features.
pub(crate) fn together() -> Result<String> {
    clippy(&["--workspace", "--all-targets", "--all-features"])?;
    Ok(String::new())
}

/// Clippy over each published package alone with each feature alone, as a user builds it: the library and the programs, without
/// dev-dependencies. What it finds are missing features and dead code, and tests have neither.
pub(crate) fn alone(metadata: &Metadata) -> Result<String> {
    let (mut runs, mut failed) = (0, Vec::new());
    for package in metadata::published(metadata) {
        let has = |is_kind: fn(&Target) -> bool| package.targets.iter().any(is_kind);
        let (lib, bins) = (has(Target::is_lib).then_some("--lib"), has(Target::is_bin).then_some("--bins"));
        for features in combinations(package) {
            let (package, features) = (format!("--package={}", package.name), format!("--features={features}"));
            let mut args = vec![&*package, "--no-default-features", &*features];
            args.extend(lib.into_iter().chain(bins));
            runs += 1;
            failed.extend(clippy(&args).err().map(|error| error.to_string()));
        }
    }
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    Ok(format!("{runs} combinations"))
}

/// No feature, and each alone; [`together`] compiles all of them. Two kinds of features are left out. A feature `…-tls` of the
/// facade or the command only passes on the feature `tls` of a backend, which is checked alone there. A feature that selects
/// test targets, and that no other feature needs, changes nothing in the library and the programs.
fn combinations(package: &Package) -> Vec<String> {
    let selects_tests = |name: &String| {
        let is_required = |target: &Target| target.is_test() && target.required_features.contains(name);
        let is_needed = package.features.values().flatten().any(|needed| needed == name);
        package.targets.iter().any(is_required) && !is_needed
    };
    let names = package.features.keys().filter(|name| *name != "default" && !name.ends_with("-tls"));
    std::iter::once(String::new()).chain(names.filter(|name| !selects_tests(name)).cloned()).collect()
}

fn clippy(args: &[&str]) -> Result<()> {
    let mut command = process::cargo(["clippy", "--quiet", "--locked"]);
    process::show(command.args(args).args(["--", "-D", "warnings"]))
}
