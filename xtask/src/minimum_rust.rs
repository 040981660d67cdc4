//! The oldest Rust that compiles Leasehold.

use std::process::Command;

use anyhow::{Context, Result, bail};
use cargo_metadata::semver::Version;

use crate::metadata::{self, Metadata, Package};
use crate::process;

/// Checks that README.md names the version in Cargo.toml, and that this version compiles the stores that it can, if it is
/// installed.
pub(crate) fn check(metadata: &Metadata) -> Result<String> {
    let facade = metadata::facade(metadata)?;
    let oldest = facade.rust_version.as_ref().context("the package `leasehold` does not state its Rust version")?;
    let version = &format!("{}.{}", oldest.major, oldest.minor);
    let readme = std::fs::read_to_string(process::root().join("README.md")).context("cannot read README.md")?;
    let sentence = format!("Rust {version} or newer");
    if !readme.contains(&sentence) {
        bail!("README.md does not say `{sentence}`, as Cargo.toml does");
    }
    let installed = Command::new("rustup").args(["toolchain", "list"]).output();
    let installed = installed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let Some(toolchain) = installed.split_whitespace().find(|name| is_version(name, version)) else {
        return Ok(format!("{version}; not compiled with it, it is not installed"));
    };
    let mut command = Command::new("rustup");
    command.current_dir(process::root()).args(["run", toolchain, "cargo", "check", "--quiet", "--locked"]);
    command.args(["--package=leasehold", "--target-dir=target/minimum-rust"]);
    command.arg(format!("--features={}", features(metadata, facade, oldest)));
    // These variables name the tools of the toolchain that runs this program.
    process::show(command.env_remove("CARGO").env_remove("RUSTC").env_remove("RUSTDOC"))?;
    Ok(toolchain.to_owned())
}

/// The features of the stores whose packages this version compiles, with TLS. A backend whose client needs a newer Rust
/// says so in its manifest.
fn features(metadata: &Metadata, facade: &Package, oldest: &Version) -> String {
    let compiles = |store: &&str| {
        let name = format!("leasehold-{store}");
        let package = metadata.workspace_packages().into_iter().find(|package| *package.name == name);
        package.and_then(|package| package.rust_version.as_ref()).is_none_or(|needed| needed <= oldest)
    };
    let with_tls = |store: &str| {
        let tls = format!("{store}-tls");
        if facade.features.contains_key(&tls) { tls } else { store.to_owned() }
    };
    metadata::stores(metadata).into_iter().filter(compiles).map(with_tls).collect::<Vec<_>>().join(",")
}

/// Whether a toolchain has a version: `1.89.0-x86_64-unknown-linux-gnu` has `1.89`, and not `1.8`.
fn is_version(toolchain: &str, version: &str) -> bool {
    let rest = toolchain.strip_prefix(version);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toolchain_is_of_its_version() {
        for toolchain in ["1.89", "1.89.0-x86_64-unknown-linux-gnu", "1.89-x86_64-unknown-linux-gnu"] {
            assert!(is_version(toolchain, "1.89"), "{toolchain}");
        }
        for toolchain in ["1.8.0-x86_64-unknown-linux-gnu", "1.890.0", "stable-x86_64-unknown-linux-gnu", ""] {
            assert!(!is_version(toolchain, "1.89"), "{toolchain}");
        }
    }
}
