//! Checks that every path and name in backticks in ARCHITECTURE.md exists.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{hygiene, process};

/// The endings by which a path without a slash is recognized.
const FILE_ENDINGS: &[&str] = &[".rs", ".toml", ".lua", ".md", ".sql", ".yml"];

/// The files in which names are searched.
const SOURCES: &[&str] = &[".rs", ".toml", ".lua"];

/// Compares ARCHITECTURE.md with the tracked files.
pub(crate) fn check() -> Result<String> {
    let root = process::root();
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).context("cannot read ARCHITECTURE.md")?;
    let words = words_of_sources(&root)?;
    let (mut paths, mut names, mut gone) = (0, 0, Vec::new());
    for quoted in quoted(&text) {
        match kind(quoted) {
            Kind::Path => {
                paths += 1;
                if !root.join(quoted).exists() {
                    gone.push(quoted);
                }
            }
            Kind::Name => {
                names += 1;
                let mut parts = quoted.trim_end_matches("()").split("::");
                if !parts.all(|part| words.contains(part)) {
                    gone.push(quoted);
                }
            }
            Kind::Other => {}
        }
    }
    if !gone.is_empty() {
        bail!("ARCHITECTURE.md names what does not exist: {}", gone.join(", "));
    }
    if paths == 0 || names == 0 {
        bail!("ARCHITECTURE.md names no path or no name in backticks");
    }
    Ok(format!("{paths} paths, {names} names"))
}

enum Kind {
    Path,
    Name,
    Other,
}

fn kind(quoted: &str) -> Kind {
    let plain = |c: char| c.is_alphanumeric() || "_-./".contains(c);
    let path = quoted.contains('/') || FILE_ENDINGS.iter().any(|ending| quoted.ends_with(ending));
    if path && quoted.chars().all(plain) && !quoted.starts_with('/') {
        return Kind::Path;
    }
    let name = quoted.trim_end_matches("()");
    let ident = |part: &str| {
        part.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && part.chars().all(|c| c.is_alphanumeric() || c == '_')
    };
    if name.split("::").all(ident) { Kind::Name } else { Kind::Other }
}

/// Text in single backticks outside of code blocks.
fn quoted(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut in_block = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            found.extend(line.split('`').skip(1).step_by(2));
        }
    }
    found
}

fn words_of_sources(root: &Path) -> Result<BTreeSet<String>> {
    let mut words = BTreeSet::new();
    for file in hygiene::tracked()?.iter().filter(|file| SOURCES.iter().any(|ending| file.ends_with(ending))) {
        let Ok(text) = std::fs::read_to_string(root.join(file)) else { continue };
        words.extend(text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned));
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backticks_are_told_apart() {
        let text = "a `src/lib.rs` b `LockGuard::lost()`\n```\n`not/this`\n```\n`cargo xtask check`, `x = 1`, `a_b`";
        let found = quoted(text);
        assert_eq!(found, ["src/lib.rs", "LockGuard::lost()", "cargo xtask check", "x = 1", "a_b"]);
        let kinds: String = found
            .into_iter()
            .map(|quoted| match kind(quoted) {
                Kind::Path => 'p',
                Kind::Name => 'n',
                Kind::Other => '-',
            })
            .collect();
        assert_eq!(kinds, "pn--n");
    }
}
