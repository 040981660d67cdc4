//! `cargo xtask counts`, and the list that it writes: how many cases each suite runs and ignores. With it, a case that
//! does not run is noticed.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::metadata::{self, Metadata};
use crate::{harness, process, test};

/// Writes conformance-tests/counts.toml: how many cases each suite runs and ignores.
///
/// Builds the suites and asks them for their list of cases. Runs no case.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Cases run and ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Count {
    pub(crate) run: u64,
    pub(crate) ignored: u64,
}

/// The counts of the suites, by test target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Counts(BTreeMap<String, Count>);

const HEADER: &str = "\
# How many cases each suite runs and ignores. `cargo xtask test` compares every run with it, and `cargo xtask counts`
# writes it.

";

fn path() -> PathBuf {
    process::root().join("conformance-tests/counts.toml")
}

/// Writes the list.
pub(crate) fn run() -> Result<()> {
    std::fs::write(path(), Counts::list(&metadata::read()?)?.text())
        .context("cannot write conformance-tests/counts.toml")
}

impl Counts {
    /// Builds the suites as `cargo xtask test` does, and asks them for their lists of cases.
    fn list(metadata: &Metadata) -> Result<Self> {
        let targets = test::suites().map(|target| format!("--test={target}"));
        let mut counts = Self::default();
        for program in harness::build(metadata, &test::everything().into_iter().chain(targets).collect::<Vec<_>>())? {
            if test::is_suite(&program) {
                counts.add(&program.target, program.list()?);
            }
        }
        Ok(counts)
    }

    /// Adds the cases of a suite.
    pub(crate) fn add(&mut self, target: &str, count: Count) {
        self.0.insert(target.to_owned(), count);
    }

    /// Reads the checked-in counts.
    pub(crate) fn read() -> Result<Self> {
        let text = std::fs::read_to_string(path()).context("cannot read conformance-tests/counts.toml")?;
        toml::from_str(&text).context("conformance-tests/counts.toml is not well-formed")
    }

    fn text(&self) -> String {
        let mut text = HEADER.to_owned();
        for (target, Count { run, ignored }) in &self.0 {
            let _ = writeln!(text, "{target} = {{ run = {run}, ignored = {ignored} }}");
        }
        text
    }

    /// Compares these counts with the checked-in ones. With `whole`, every suite of the checked-in counts must be
    /// present.
    ///
    /// # Errors
    /// Names each difference.
    pub(crate) fn hold(&self, written: &Self, whole: bool) -> Result<String> {
        let mut wrong = Vec::new();
        for (target, found) in &self.0 {
            let expected = written.0.get(target).copied().unwrap_or_default();
            if expected != *found {
                wrong.push(difference(target, expected, *found));
            }
        }
        if whole {
            let missing = written.0.iter().filter(|(target, _)| !self.0.contains_key(*target));
            wrong.extend(missing.map(|(target, expected)| difference(target, *expected, Count::default())));
        }
        if !wrong.is_empty() {
            bail!(
                "the cases are not those of conformance-tests/counts.toml; when that is meant, run \
                 `cargo xtask counts` and commit the file\n{}",
                wrong.join("\n")
            );
        }
        Ok(format!("{} suites", self.0.len()))
    }
}

fn difference(target: &str, expected: Count, found: Count) -> String {
    format!(
        "{target}: {} run and {} ignored, written are {} and {}",
        found.run, found.ignored, expected.run, expected.ignored
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts() -> Counts {
        let mut counts = Counts::default();
        counts.add("sqlite", Count { run: 3, ignored: 1 });
        counts.add("redis", Count { run: 91, ignored: 0 });
        counts
    }

    #[test]
    fn what_is_written_is_read() {
        let parse = |text: &str| toml::from_str::<Counts>(text);
        assert_eq!(parse(&counts().text()).unwrap(), counts());
        assert!(parse("redis = { run = 1 }").is_err());
        assert!(parse("redis = { run = -1, ignored = 0 }").is_err());
        assert!(parse("redis = { run = 1, ignored = 0, skipped = 1 }").is_err());
    }

    #[test]
    fn every_difference_is_seen() {
        let written = counts();
        assert!(written.hold(&written, true).is_ok());
        let mut fewer = written.clone();
        fewer.0.remove("sqlite");
        assert!(fewer.hold(&written, true).is_err());
        assert!(fewer.hold(&written, false).is_ok());
        assert!(written.hold(&fewer, false).is_err());
        let mut ignored = written.clone();
        ignored.add("sqlite", Count { run: 2, ignored: 2 });
        assert!(ignored.hold(&written, false).is_err());
    }
}
