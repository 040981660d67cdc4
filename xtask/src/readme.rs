//! Checks that the snippet in the README is an example that is built and run, that the files that the README names exist,
//! and that the documents that list the stores or their URLs name all of them.

use anyhow::{Context, Result, bail};

use crate::metadata::{self, Metadata};
use crate::process;

/// What a document says of each store, with its feature for `{}`. A new store must not be missing from a list that nobody
/// thought of.
const LISTS: &[(&str, &str)] = &[
    ("README.md", "| `{}`"),
    ("README.md", "](lock-{}/README.md)"),
    ("ARCHITECTURE.md", "lock-{}/ "),
    ("docs/backends.md", "| {} |"),
    ("cli/README.md", "`{}`"),
    ("xtask/policy.toml", "{} = ["),
];

/// Documents that list the URLs of all stores. The help of the command has a test of its own.
const URLS: &[&str] = &["README.md", "cli/README.md", "src/lib.rs", CONNECT];

/// The table of schemes, and the documentation of the functions that take a URL.
const CONNECT: &str = "src/connect.rs";

const EXAMPLE: &str = "examples/quickstart.rs";

/// Compares README.md with the files, and the lists with the stores.
pub(crate) fn check(metadata: &Metadata) -> Result<String> {
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
    let stores = metadata::stores(metadata);
    for (file, pattern) in LISTS {
        let text = read(file)?;
        let missing = stores.iter().map(|store| pattern.replace("{}", store)).filter(|words| !text.contains(words));
        let missing: Vec<_> = missing.collect();
        if !missing.is_empty() {
            bail!("{file} lists the stores, and lacks {missing:?}");
        }
    }
    let table = read(CONNECT)?;
    let schemes = schemes(&table);
    if schemes.is_empty() {
        bail!("{CONNECT} has no table of schemes");
    }
    for file in URLS {
        let text = read(file)?;
        let missing: Vec<_> = schemes.iter().filter(|scheme| !text.contains(&format!("`{scheme}://"))).collect();
        if !missing.is_empty() {
            bail!("{file} lists the URLs of the stores, and lacks {missing:?}");
        }
    }
    Ok(format!("{} files, {} stores, {} schemes", paths.len(), stores.len(), schemes.len()))
}

/// The schemes in the table `SCHEMES`, with one row on a line: `("zk", "zk", cfg!(feature = "zk")),`.
fn schemes(table: &str) -> Vec<&str> {
    let rows = table.lines().filter_map(|line| line.trim().strip_prefix("(\"")?.strip_suffix(")),"));
    rows.filter(|row| row.contains("cfg!(feature")).filter_map(|row| Some(row.split_once('"')?.0)).collect()
}

/// Texts in backticks that end like a file name.
fn quoted_paths(text: &str) -> Vec<&str> {
    let endings = [".rs", ".md", ".toml", "LICENSE-MIT", "LICENSE-APACHE"];
    let lines = text.lines().filter(|line| !line.starts_with("```"));
    let quoted = lines.flat_map(|line| line.split('`').skip(1).step_by(2));
    quoted.filter(|quoted| endings.iter().any(|ending| quoted.ends_with(ending))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_schemes_is_read() {
        let table = "const SCHEMES: &[Row] = &[\n    (\"memory\", \"\", true),\n    (\"zks\", \"zk-tls\", \
            cfg!(feature = \"zk-tls\")),\n];\n    let urls = [(cfg!(feature = \"zk\"), \"zk://\")];\n";
        assert_eq!(schemes(table), ["zks"]);
    }
}
