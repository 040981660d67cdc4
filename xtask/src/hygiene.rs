//! Checks for words that no file of the project may contain.

use anyhow::{Result, bail};

use crate::metadata::{self, Metadata};
use crate::process;

/// Each word is in two parts, so that this file does not contain it.
const FORBIDDEN: &[(&str, &str)] = &[
    ("/wo", "rk/"),
    ("/ro", "ot/"),
    ("/ho", "me/"),
    ("/tmp/tar", "get"),
    ("artif", "actory"),
    (".libr", "ary/"),
    ("TO", "DO"),
    ("FIX", "ME"),
    ("<<<<", "<<<"),
];

/// The files that git tracks.
pub(crate) fn tracked() -> Result<Vec<String>> {
    let mut git = std::process::Command::new("git");
    git.current_dir(process::root()).args(["ls-files", "-z"]);
    Ok(process::read(&mut git)?.split_terminator('\0').map(str::to_owned).collect())
}

/// Checks that no tracked file contains a path of one machine, the name of a mirror, or a note about unfinished work.
pub(crate) fn forbidden() -> Result<String> {
    let root = process::root();
    let files = tracked()?;
    let mut wrong = Vec::new();
    for file in &files {
        // A file that git tracks but that does not exist is part of an unfinished change.
        let Ok(text) = std::fs::read_to_string(root.join(file)) else { continue };
        for (number, line) in text.lines().enumerate() {
            wrong.extend(
                FORBIDDEN
                    .iter()
                    .map(|(head, tail)| format!("{head}{tail}"))
                    .filter(|word| line.contains(word.as_str()))
                    .map(|word| format!("{file}:{}: {word}", number + 1)),
            );
        }
    }
    if !wrong.is_empty() {
        bail!("what no file may contain:\n{}", wrong.join("\n"));
    }
    Ok(format!("{} files", files.len()))
}

/// Checks that every published package contains the texts of both licences.
pub(crate) fn licence_files(metadata: &Metadata) -> Result<String> {
    let mut missing = Vec::new();
    for package in metadata::published(metadata) {
        for file in ["LICENSE-MIT", "LICENSE-APACHE"] {
            if !metadata::folder(package).join(file).is_file() {
                missing.push(format!("{}: {file}", package.name));
            }
        }
    }
    if !missing.is_empty() {
        bail!("missing: {}", missing.join(", "));
    }
    Ok(String::new())
}
