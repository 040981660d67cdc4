//! Checks that the tests that documents name exist: a promise is proved only by a test that is run.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};

use crate::{hygiene, invariants, process};

/// The folders of test targets. A target `a` is the file `a.rs` there, with modules in the folder `a`.
const TARGETS: &[&str] = &["conformance-tests/tests/", "simulation/tests/"];

const SUITE: &str = "conformance-tests/src/suite.rs";

/// A page that has to name some.
const PAGE: &str = "docs/redis-quorum.md";

/// What a name may refer to.
struct Tests {
    /// The cases of the suite, as `group::case`.
    cases: BTreeSet<String>,
    /// The groups that a target with several servers leaves out.
    left_out: BTreeSet<String>,
    /// The path of each file with tests and its text.
    files: Vec<(String, String)>,
}

/// Compares the documents with the tests.
pub(crate) fn check() -> Result<String> {
    let root = process::root();
    let read = |file: &str| std::fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {file}"));
    let tracked = hygiene::tracked()?;
    let is_test = |file: &&String| TARGETS.iter().any(|target| file.starts_with(target)) && file.ends_with(".rs");
    let files = tracked.iter().filter(is_test).filter_map(|file| Some((file.clone(), read(file).ok()?))).collect();
    let tests = Tests { cases: invariants::listed(&read(invariants::LIST)?), left_out: left_out(&read(SUITE)?), files };
    let (mut found, mut wrong) = (0, Vec::new());
    for document in tracked.iter().filter(|file| file.ends_with(".md")) {
        // A file that git tracks but that does not exist is part of an unfinished change.
        let Ok(text) = read(document) else { continue };
        let names: Vec<_> = text.split('`').skip(1).step_by(2).filter(|name| tests.is_name(name)).collect();
        if document == PAGE && names.is_empty() {
            bail!("{PAGE} names no test");
        }
        found += names.len();
        wrong.extend(names.iter().filter(|name| !tests.has(name)).map(|name| format!("{document}: {name}")));
    }
    if !wrong.is_empty() {
        bail!("documents name tests that do not exist\n{}", wrong.join("\n"));
    }
    Ok(format!("{found} names"))
}

/// The groups that `topology_group!` leaves out, each on a line of its own: `(keeper $cases:tt) => {};`.
fn left_out(suite: &str) -> BTreeSet<String> {
    let lines = suite.lines().filter_map(|line| line.trim().strip_prefix('(')?.strip_suffix(" $cases:tt) => {};"));
    lines.map(str::to_owned).collect()
}

impl Tests {
    /// Whether a text in backticks has the form of a name, and begins with a target or a group of cases.
    fn is_name(&self, name: &str) -> bool {
        let plain = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        let Some((first, rest)) = name.split_once("::") else { return false };
        plain(first) && rest.split("::").all(plain) && (self.target(first).is_some() || self.has_group(first))
    }

    fn has(&self, name: &str) -> bool {
        let parts: Vec<_> = name.split("::").collect();
        match parts[..] {
            [target, test] if self.target(target).is_some_and(|text| defines(text, test)) => true,
            [_, _] => self.cases.contains(name),
            [target, module, test] => {
                let Some(text) = self.target(target) else { return false };
                let is_run = text.contains("::suite!(")
                    || text.contains("::topology_suite!(") && !self.left_out.contains(module);
                is_run && self.cases.contains(&format!("{module}::{test}"))
                    || self.file(&format!("{target}/{module}.rs")).is_some_and(|text| defines(text, test))
            }
            _ => false,
        }
    }

    fn has_group(&self, group: &str) -> bool {
        self.cases.iter().any(|case| case.split_once("::").is_some_and(|(of, _)| of == group))
    }

    fn target(&self, name: &str) -> Option<&str> {
        self.file(&format!("{name}.rs"))
    }

    fn file(&self, path: &str) -> Option<&str> {
        let is_it = |file: &str| TARGETS.iter().any(|target| file.strip_prefix(target) == Some(path));
        self.files.iter().find(|(file, _)| is_it(file)).map(|(_, text)| &**text)
    }
}

fn defines(text: &str, test: &str) -> bool {
    text.contains(&format!("#[test]\nfn {test}()"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tests_are_found_and_others_are_not() {
        let suite = "    (keeper $cases:tt) => {};\n    ($group:ident $cases:tt) => {\n";
        let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
        let tests = Tests {
            cases: ["faults::a_kill", "keeper::a_loss"].map(str::to_owned).into(),
            left_out: left_out(suite),
            files: vec![
                file("conformance-tests/tests/one.rs", "leasehold_conformance::suite!(One);"),
                file("conformance-tests/tests/three.rs", "leasehold_conformance::topology_suite!(Three);"),
                file("conformance-tests/tests/three/minority.rs", "#[test]\nfn is_down() {\nfn helper() {"),
                file("simulation/tests/model.rs", "#[test]\nfn holds() {"),
            ],
        };
        for name in ["faults::a_kill", "one::keeper::a_loss", "three::faults::a_kill", "three::minority::is_down"] {
            assert!(tests.is_name(name) && tests.has(name), "{name}");
        }
        assert!(tests.has("model::holds"));
        // A function that is no test, groups that are left out, and names that are gone.
        for name in ["three::minority::helper", "three::keeper::a_loss", "model::faults::a_kill", "faults::gone"] {
            assert!(tests.is_name(name) && !tests.has(name), "{name}");
        }
        for name in ["leasehold::redis", "a_kill", "Faults::a_kill", "one::", "one::a b"] {
            assert!(!tests.is_name(name), "{name}");
        }
    }
}
