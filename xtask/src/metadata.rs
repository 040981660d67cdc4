//! What `cargo metadata` reports about the workspace and all its dependencies.

use std::path::Path;

use anyhow::{Context, Result};
use cargo_metadata::MetadataCommand;
pub(crate) use cargo_metadata::{Metadata, Package};

use crate::process;

/// Asks cargo for every platform and every feature.
pub(crate) fn read() -> Result<Metadata> {
    let json = process::read(&mut process::cargo(["metadata", "--format-version=1", "--all-features", "--locked"]))?;
    MetadataCommand::parse(json).context("cannot read the output of `cargo metadata`")
}

/// The packages of the workspace that may be published.
pub(crate) fn published(metadata: &Metadata) -> impl Iterator<Item = &Package> {
    metadata.workspace_packages().into_iter().filter(|package| may_be_published(package))
}

/// The packages of the workspace that may not be published.
pub(crate) fn unpublished(metadata: &Metadata) -> impl Iterator<Item = &Package> {
    metadata.workspace_packages().into_iter().filter(|package| !may_be_published(package))
}

/// cargo reports `publish = false` as an empty list of registries.
fn may_be_published(package: &Package) -> bool {
    package.publish.as_ref().is_none_or(|registries| !registries.is_empty())
}

/// The facade.
///
/// # Errors
/// If it is not in the workspace.
pub(crate) fn facade(metadata: &Metadata) -> Result<&Package> {
    let mut packages = metadata.workspace_packages().into_iter();
    packages.find(|package| package.name == "leasehold").context("no package `leasehold`")
}

/// The stores, by the names of their features: each has a package in a folder `lock-…`.
pub(crate) fn stores(metadata: &Metadata) -> Vec<&str> {
    let names = published(metadata).filter_map(|package| folder(package).file_name()?.to_str()?.strip_prefix("lock-"));
    names.filter(|name| *name != "core").collect()
}

/// The folder of a package.
pub(crate) fn folder(package: &Package) -> &Path {
    package.manifest_path.parent().expect("a manifest is in a folder").as_std_path()
}
