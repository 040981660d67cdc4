//! `lock-core/mutants.toml`: the mutants that may survive, and why.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::process;

const PATH: &str = "lock-core/mutants.toml";

/// Mutants that may survive, and how many times each.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Accepted(BTreeMap<String, usize>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    accepted: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    reason: String,
    mutants: Vec<String>,
}

impl Accepted {
    /// Reads the checked-in list.
    pub(crate) fn read() -> Result<Self> {
        let text =
            std::fs::read_to_string(process::root().join(PATH)).with_context(|| format!("cannot read {PATH}"))?;
        Self::parse(&text).with_context(|| format!("{PATH} is not well-formed"))
    }

    fn parse(text: &str) -> Result<Self> {
        let mut accepted = Self::default();
        for entry in toml::from_str::<File>(text)?.accepted {
            if entry.reason.trim().is_empty() {
                bail!("no reason is given for {:?}", entry.mutants);
            }
            for mutant in entry.mutants {
                *accepted.0.entry(mutant).or_default() += 1;
            }
        }
        Ok(accepted)
    }

    /// Compares the list with the survivors of a run.
    ///
    /// # Errors
    /// Names the survivors that are not accepted. After a run of all mutants it also names the accepted ones that did not
    /// survive, so that the list does not outlive its reasons.
    pub(crate) fn hold(&self, survivors: &BTreeMap<String, usize>, whole: bool) -> Result<()> {
        let surplus = |these: &BTreeMap<String, usize>, those: &BTreeMap<String, usize>| {
            let mut lines = Vec::new();
            for (mutant, times) in these {
                let more = times.saturating_sub(those.get(mutant).copied().unwrap_or(0));
                lines.extend(std::iter::repeat_n(format!("  {mutant}"), more));
            }
            lines
        };
        let unnoticed = surplus(survivors, &self.0);
        if !unnoticed.is_empty() {
            bail!(
                "no test notices these mutants; write one, or accept them with a reason in {PATH}:\n{}",
                unnoticed.join("\n")
            );
        }
        let stale = surplus(&self.0, survivors);
        if whole && !stale.is_empty() {
            bail!("these mutants are noticed now; remove them from {PATH}:\n{}", stale.join("\n"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survivors(mutants: &[(&str, usize)]) -> BTreeMap<String, usize> {
        mutants.iter().map(|(mutant, times)| ((*mutant).to_owned(), *times)).collect()
    }

    #[test]
    fn survivors_are_held_against_the_list() {
        let accepted =
            Accepted::parse("[[accepted]]\nreason = \"only a log line\"\nmutants = [\"a: one\", \"a: one\"]").unwrap();
        accepted.hold(&survivors(&[("a: one", 2)]), true).unwrap();
        accepted.hold(&survivors(&[]), false).unwrap();
        let error = accepted.hold(&survivors(&[("a: one", 3), ("a: two", 1)]), false).unwrap_err().to_string();
        assert!(error.contains("a: one\n  a: two"), "{error}");
        let error = accepted.hold(&survivors(&[("a: one", 1)]), true).unwrap_err().to_string();
        assert!(error.contains("remove them"), "{error}");
    }

    #[test]
    fn a_reason_is_required() {
        Accepted::parse("[[accepted]]\nreason = \" \"\nmutants = [\"a\"]").unwrap_err();
        Accepted::parse("[[accepted]]\nmutants = [\"a\"]").unwrap_err();
    }
}
