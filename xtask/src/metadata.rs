//! What `cargo metadata` says, as far as it is needed here.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::process;

/// The workspace and everything that it depends on, on every platform and with every feature.
pub(crate) struct Metadata {
    packages: Vec<Package>,
}

/// A package.
#[derive(Clone)]
pub(crate) struct Package {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) version: String,
    /// The SPDX expression.
    pub(crate) licence: Option<String>,
    /// Where it came from; `None` for the workspace's own.
    pub(crate) source: Option<String>,
    pub(crate) folder: PathBuf,
    pub(crate) features: BTreeSet<String>,
    /// Kind and name of each target.
    pub(crate) targets: Vec<(String, String)>,
    /// The oldest Rust that compiles it.
    pub(crate) rust_version: Option<String>,
    /// Whether it may be published.
    pub(crate) publish: bool,
    /// Whether it is of this workspace.
    pub(crate) member: bool,
}

impl Package {
    /// Whether it has a target of this kind.
    pub(crate) fn has(&self, kind: &str) -> bool {
        self.targets.iter().any(|(own, _)| own == kind)
    }
}

impl Metadata {
    /// Asks cargo.
    pub(crate) fn read() -> Result<Self> {
        let json =
            process::read(&mut process::cargo(["metadata", "--format-version=1", "--all-features", "--locked"]))?;
        let json: Value = serde_json::from_str(&json).context("cannot read the output of `cargo metadata`")?;
        let members: BTreeSet<_> = strings(&json["workspace_members"]).collect();
        let packages =
            array(&json["packages"]).map(|package| read_package(package, &members)).collect::<Result<_>>()?;
        Ok(Self { packages })
    }

    /// The workspace's own packages.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| package.member)
    }

    /// All packages.
    pub(crate) fn packages(&self) -> &[Package] {
        &self.packages
    }
}

fn read_package(package: &Value, members: &BTreeSet<String>) -> Result<Package> {
    let manifest = PathBuf::from(text(&package["manifest_path"]));
    let id = text(&package["id"]);
    Ok(Package {
        name: text(&package["name"]),
        version: text(&package["version"]),
        licence: package["license"].as_str().map(str::to_owned),
        source: package["source"].as_str().map(str::to_owned),
        folder: manifest.parent().context("a manifest without a folder")?.to_owned(),
        features: package["features"]
            .as_object()
            .map(|features| features.keys().cloned().collect())
            .unwrap_or_default(),
        targets: array(&package["targets"])
            .flat_map(|target| strings(&target["kind"]).map(|kind| (kind, text(&target["name"]))).collect::<Vec<_>>())
            .collect(),
        rust_version: package["rust_version"].as_str().map(str::to_owned),
        // `publish = false` is an empty list of registries.
        publish: package["publish"].as_array().is_none_or(|registries| !registries.is_empty()),
        member: members.contains(&id),
        id,
    })
}

pub(crate) fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn strings(value: &Value) -> impl Iterator<Item = String> + '_ {
    array(value).map(text)
}
