//! `conformance-tests/counts.toml`: how many cases each test target runs and ignores. Nothing passes by not being run.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::process;

/// Cases run and ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) run: u64,
    pub(crate) ignored: u64,
}

/// Package and test target.
pub(crate) type Target = (String, String);

/// The counts of every test target that has any case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts(pub(crate) BTreeMap<Target, Count>);

const HEADER: &str = "\
# How many cases each test target runs and ignores. `cargo xtask test` holds every run against it,
# `cargo xtask check` holds it against the list of cases, and `cargo xtask test --update-counts` writes it.
";

fn path() -> PathBuf {
    process::root().join("conformance-tests/counts.toml")
}

impl Counts {
    /// Adds the cases of a target.
    pub(crate) fn add(&mut self, target: Target, count: Count) {
        if count != Count::default() {
            let sum = self.0.entry(target).or_default();
            sum.run += count.run;
            sum.ignored += count.ignored;
        }
    }

    /// Reads the checked-in counts.
    pub(crate) fn read() -> Result<Self> {
        let text = std::fs::read_to_string(path()).context("cannot read conformance-tests/counts.toml")?;
        Self::parse(&text).context("conformance-tests/counts.toml is not well-formed")
    }

    /// Writes them.
    pub(crate) fn write(&self) -> Result<()> {
        std::fs::write(path(), self.text()).context("cannot write conformance-tests/counts.toml")
    }

    fn parse(text: &str) -> Result<Self> {
        let mut counts = Self::default();
        for (package, targets) in text.parse::<toml::Table>()? {
            for (target, count) in targets.as_table().with_context(|| format!("`{package}` is no table"))? {
                let number = |key: &str| {
                    let number = count.get(key).and_then(|number| number.as_integer());
                    number
                        .and_then(|number| u64::try_from(number).ok())
                        .with_context(|| format!("`{package}`, `{target}` has no number `{key}`"))
                };
                let count = Count { run: number("run")?, ignored: number("ignored")? };
                counts.0.insert((package.clone(), target.clone()), count);
            }
        }
        Ok(counts)
    }

    fn text(&self) -> String {
        let mut text = HEADER.to_owned();
        let mut last = None;
        for ((package, target), Count { run, ignored }) in &self.0 {
            if last != Some(package) {
                last = Some(package);
                let _ = write!(text, "\n[{package}]\n");
            }
            let _ = writeln!(text, "{target} = {{ run = {run}, ignored = {ignored} }}");
        }
        text
    }

    /// Holds these counts against the checked-in ones. With `whole`, no target of those may be missing.
    ///
    /// # Errors
    /// Names each difference.
    pub(crate) fn hold(&self, written: &Self, whole: bool) -> Result<String> {
        let mut wrong = Vec::new();
        for (target, count) in &self.0 {
            let expected = written.0.get(target).copied().unwrap_or_default();
            if expected != *count {
                wrong.push(difference(target, expected, *count));
            }
        }
        if whole {
            let missing = written.0.iter().filter(|(target, _)| !self.0.contains_key(*target));
            wrong.extend(missing.map(|(target, expected)| difference(target, *expected, Count::default())));
        }
        if !wrong.is_empty() {
            bail!(
                "the cases are not those of conformance-tests/counts.toml; when that is meant, run \
                 `cargo xtask test --update-counts` and commit the file\n{}",
                wrong.join("\n")
            );
        }
        Ok(format!("{} test targets", self.0.len()))
    }
}

fn difference((package, target): &Target, expected: Count, found: Count) -> String {
    format!(
        "{package} {target}: {} run and {} ignored, written are {} and {}",
        found.run, found.ignored, expected.run, expected.ignored
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts() -> Counts {
        let mut counts = Counts::default();
        counts.add(("b".into(), "lib".into()), Count { run: 3, ignored: 1 });
        counts.add(("a".into(), "redis".into()), Count { run: 90, ignored: 0 });
        counts.add(("a".into(), "redis".into()), Count { run: 1, ignored: 0 });
        counts.add(("a".into(), "empty".into()), Count::default());
        counts
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(Counts::parse(&counts().text()).unwrap(), counts());
        assert!(Counts::parse("[a]\nredis = { run = 1 }").is_err());
        assert!(Counts::parse("[a]\nredis = { run = -1, ignored = 0 }").is_err());
    }

    #[test]
    fn every_difference_is_seen() {
        let written = counts();
        assert!(written.hold(&written, true).is_ok());
        let mut fewer = written.clone();
        fewer.0.remove(&("b".to_owned(), "lib".to_owned()));
        assert!(fewer.hold(&written, true).is_err());
        assert!(fewer.hold(&written, false).is_ok());
        assert!(written.hold(&fewer, false).is_err());
        let mut ignored = written.clone();
        ignored.0.insert(("b".to_owned(), "lib".to_owned()), Count { run: 2, ignored: 2 });
        assert!(ignored.hold(&written, false).is_err());
    }
}
