//! Checks that the snippet in the README is an example that is built and run, and that the files that the README names
//! exist.

use anyhow::{Context, Result, bail};

use crate::process;

const EXAMPLE: &str = "examples/quickstart.rs";

/// Compares README.md with the files.
pub(crate) fn check() -> Result<String> {
    let root = process::root();
    let read = |file: &str| std::fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {file}"));
    let readme = read("README.md")?;
    if !readme.contains(&format!("```rust\n{}```\n", read(EXAMPLE)?)) {
        bail!("the snippet in README.md is not {EXAMPLE}");
    }
    let paths = quoted_paths(&readme);
    let gone: Vec<_> = paths.iter().filter(|path| !root.join(path).exists()).collect();
    if !gone.is_empty() {
        bail!("README.md names files that do not exist: {gone:?}");
    }
    Ok(format!("{} files", paths.len()))
}

/// Texts in backticks that end like a file name.
fn quoted_paths(text: &str) -> Vec<&str> {
    let endings = [".rs", ".md", ".toml", "LICENSE-MIT", "LICENSE-APACHE"];
    let lines = text.lines().filter(|line| !line.starts_with("```"));
    let quoted = lines.flat_map(|line| line.split('`').skip(1).step_by(2));
    quoted.filter(|quoted| endings.iter().any(|ending| quoted.ends_with(ending))).collect()
}
