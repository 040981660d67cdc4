//! Cases that are known to fail, by name and with a reason. They are not run, counted as skipped and named at each run: what is not
//! on the list has to pass, and the list is there to become empty.

use std::fs;

use anyhow::{Context, Result, bail};

const FILE: &str = "conformance-tests/known-failures.txt";

/// The list.
pub(crate) struct Known(Vec<(String, String, String)>);

impl Known {
    pub(crate) fn read() -> Result<Self> {
        let text = fs::read_to_string(FILE).with_context(|| format!("cannot read {FILE}"))?;
        let mut rows = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let mut parts = line.splitn(3, ' ').map(str::to_owned);
            let (Some(target), Some(case), Some(reason)) = (parts.next(), parts.next(), parts.next()) else {
                bail!("{FILE}: `{line}` is not `target case reason`");
            };
            rows.push((target, case, reason));
        }
        Ok(Self(rows))
    }

    /// The arguments that leave out what is known of a target, which is said aloud.
    pub(crate) fn skips(&self, target: &str) -> Vec<String> {
        let mut args = Vec::new();
        for (_, case, reason) in self.0.iter().filter(|(known, ..)| known == target) {
            println!("known to fail, not run: {case}: {reason}");
            args.extend(["--skip".to_owned(), case.clone()]);
        }
        if !args.is_empty() {
            args.push("--exact".to_owned());
        }
        args
    }

    /// How many cases of a target are known.
    pub(crate) fn count(&self, target: &str) -> u64 {
        self.0.iter().filter(|(known, ..)| known == target).count() as u64
    }
}
