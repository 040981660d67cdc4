//! The report of what the cases of the suite could not prove. The cases append it to a file, which is shown after all
//! have run.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::process;

/// The variable that names the file of the report.
pub(crate) const VARIABLE: &str = "LEASEHOLD_SUITE_REPORT";

/// The file to which the suite writes.
pub(crate) fn path() -> PathBuf {
    process::root().join("target/suite-report.tsv")
}

/// Removes the report of an earlier run.
pub(crate) fn reset() -> Result<()> {
    match std::fs::remove_file(path()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).context("cannot remove the old report"),
        _ => Ok(()),
    }
}

/// The report since then as text: each reason with the cases that gave it.
pub(crate) fn read() -> Result<String> {
    match std::fs::read_to_string(path()) {
        Ok(lines) => Ok(text(&lines)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error).context("cannot read the report of the suite"),
    }
}

fn text(lines: &str) -> String {
    let mut reasons: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for line in lines.lines() {
        let mut parts = line.splitn(3, '\t');
        if let (Some(case), Some(kind), Some(reason)) = (parts.next(), parts.next(), parts.next()) {
            reasons.entry((kind, reason)).or_default().insert(case);
        }
    }
    let mut text = String::new();
    for ((kind, reason), cases) in reasons {
        text += &format!("{kind}: {reason}\n");
        for case in cases {
            text += &format!("    {case}\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_reason_is_shown_once_with_its_cases() {
        let lines = "b::x\tunsupported\tStop: no server\na::x\tunsupported\tStop: no server\n\
                     a::x\tunsupported\tStop: no server\n\
                     a::y\tempty\tit lists no locks\n";
        let text = super::text(lines);
        assert_eq!(text, "empty: it lists no locks\n    a::y\nunsupported: Stop: no server\n    a::x\n    b::x\n");
    }
}
