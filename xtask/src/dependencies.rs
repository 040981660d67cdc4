//! Compares the licences, duplicates and sources of all dependencies with `xtask/policy.toml`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use spdx::{Expression, Licensee, ParseError, ParseMode};

use crate::metadata::{self, Metadata, Package};
use crate::process;

/// The file `xtask/policy.toml`.
pub(crate) struct Policy(toml::Table);

impl Policy {
    /// Reads the file.
    pub(crate) fn read() -> Result<Self> {
        let path = process::root().join("xtask/policy.toml");
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self(text.parse().context("xtask/policy.toml is not well-formed")?))
    }

    /// A table of lists of names.
    pub(crate) fn lists(&self, table: &str) -> Result<BTreeMap<String, Vec<String>>> {
        let table = self.0.get(table).and_then(|value| value.as_table()).with_context(|| format!("no [{table}]"))?;
        Ok(table.iter().map(|(key, list)| (key.clone(), names(list))).collect())
    }

    fn duplicates(&self) -> Result<BTreeSet<String>> {
        let mut found = BTreeSet::new();
        for entry in self.0.get("duplicates").and_then(|list| list.as_array()).into_iter().flatten() {
            let text = |key| entry.get(key).and_then(|value| value.as_str()).filter(|text| !text.is_empty());
            let name = text("name").context("an entry of [[duplicates]] has no name")?;
            text("reason").with_context(|| format!("the duplicate `{name}` has no reason"))?;
            found.insert(name.to_owned());
        }
        Ok(found)
    }
}

fn names(list: &toml::Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|name| name.as_str()).map(str::to_owned).collect()
}

/// Checks that every package can be used under an allowed licence.
pub(crate) fn licences(metadata: &Metadata, policy: &Policy) -> Result<String> {
    let allowed = policy.lists("licences")?.remove("allow").context("no list `allow` in [licences]")?;
    let allowed: Vec<_> = allowed
        .iter()
        .map(|licence| Licensee::parse(licence).with_context(|| format!("`{licence}` is no licence of SPDX")))
        .collect::<Result<_>>()?;
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let expression = package.license.as_deref().unwrap_or_default();
        if !is_met(expression, &allowed).unwrap_or(false) {
            wrong.push(format!("{} {}: `{expression}`", package.name, package.version));
        }
    }
    if !wrong.is_empty() {
        bail!("not under an allowed licence (xtask/policy.toml): {}", wrong.join("; "));
    }
    Ok(format!("{} packages", metadata.packages.len()))
}

/// Whether these licences satisfy an SPDX expression. Old packages separate alternatives by `/`.
fn is_met(expression: &str, allowed: &[Licensee]) -> Result<bool, ParseError> {
    let expression = Expression::parse_mode(expression, ParseMode::LAX)?;
    Ok(expression.evaluate(|required| allowed.iter().any(|licence| licence.satisfies(required))))
}

/// Checks that a user of Leasehold never builds two versions of a package without a reason in the policy. All
/// platforms, all features and dev-dependencies count, and unpublished packages do not.
pub(crate) fn duplicates(metadata: &Metadata, policy: &Policy) -> Result<String> {
    let mut tree = process::cargo(["tree", "--locked", "--all-features", "--edges=normal,build,dev"]);
    tree.args(["--target=all", "--prefix=none", "--format={p}"]);
    tree.args(metadata::published(metadata).map(|package| format!("--package={}", package.name)));
    let tree = process::read(&mut tree)?;
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in tree.lines() {
        let mut words = line.split_whitespace();
        if let (Some(name), Some(version)) = (words.next(), words.next()) {
            versions.entry(name).or_default().insert(version);
        }
    }
    let allowed = policy.duplicates()?;
    let found: BTreeMap<_, _> = versions.into_iter().filter(|(_, versions)| versions.len() > 1).collect();
    let wrong: Vec<_> = found.iter().filter(|(name, _)| !allowed.contains(**name)).collect();
    if !wrong.is_empty() {
        bail!("in more than one version, without a reason in xtask/policy.toml: {wrong:?}");
    }
    let stale: Vec<_> = allowed.iter().filter(|name| !found.contains_key(name.as_str())).collect();
    if !stale.is_empty() {
        bail!("no duplicates any more, remove them from xtask/policy.toml: {stale:?}");
    }
    Ok(format!("{} allowed", allowed.len()))
}

/// Checks that every package comes from this workspace or from the default registry.
pub(crate) fn sources(metadata: &Metadata) -> Result<String> {
    let strange = |package: &&Package| match &package.source {
        Some(source) => !source.is_crates_io(),
        None => !metadata.workspace_members.contains(&package.id),
    };
    let wrong: Vec<_> = metadata.packages.iter().filter(strange).map(|package| package.name.as_str()).collect();
    if !wrong.is_empty() {
        bail!("neither of this workspace nor of the default registry: {}", wrong.join(", "));
    }
    Ok(String::new())
}

/// Checks that a feature of the facade adds only the client of its own store. Dev-dependencies do not count.
pub(crate) fn clients(metadata: &Metadata, policy: &Policy) -> Result<String> {
    let clients = policy.lists("clients")?;
    let features = policy.lists("features")?;
    let facade = metadata::facade(metadata)?;
    let known: BTreeSet<_> = facade.features.keys().map(String::as_str).filter(|name| *name != "default").collect();
    let written: BTreeSet<_> = features.keys().map(String::as_str).filter(|name| *name != "none").collect();
    if known != written {
        bail!("the facade's features are {known:?}, but [features] in xtask/policy.toml has {written:?}");
    }
    for (feature, own) in &features {
        let mut tree = process::cargo(["tree", "--locked", "--package=leasehold", "--edges=normal,build"]);
        tree.args(["--target=all", "--prefix=none", "--format={p}", "--no-default-features"]);
        if feature != "none" {
            tree.arg(format!("--features={feature}"));
        }
        let tree = process::read(&mut tree)?;
        let pulled: BTreeSet<_> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
        for (client, packages) in &clients {
            let found: Vec<_> = packages.iter().filter(|name| pulled.contains(name.as_str())).collect();
            match (own.contains(client), found.is_empty()) {
                (true, true) => bail!("feature `{feature}` pulls nothing of {client}: {packages:?}"),
                (false, false) => bail!("feature `{feature}` must not pull {found:?}"),
                _ => {}
            }
        }
    }
    Ok(format!("{} features", features.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_met_as_written() {
        let allowed = ["MIT", "Unicode-3.0"].map(|licence| Licensee::parse(licence).unwrap());
        for (expression, met) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("MIT/Apache-2.0", true),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0 AND MIT", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("MIT OR Apache-2.0 AND GPL-3.0", true),
            ("(MIT OR Apache-2.0) AND GPL-3.0", false),
            ("MIT WITH LLVM-exception", false),
        ] {
            assert_eq!(is_met(expression, &allowed).unwrap(), met, "{expression}");
        }
        for malformed in ["(MIT", "MIT MIT", ""] {
            assert!(is_met(malformed, &allowed).is_err(), "{malformed}");
        }
    }
}
