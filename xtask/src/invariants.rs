//! Checks that the page of the invariants and the cases that prove them name each other.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};

use crate::{hygiene, process};

const PAGE: &str = "lock-core/src/backend/invariants.md";
pub(crate) const LIST: &str = "conformance-tests/src/list.rs";
const CASES: &str = "conformance-tests/src/cases/";

/// The cases of each invariant, as `group::case`.
type Invariants = BTreeMap<u32, BTreeSet<String>>;

/// Compares the page with the list of cases, and with the invariants that the docs of the cases name.
pub(crate) fn check() -> Result<String> {
    let root = process::root();
    let read = |file: &str| std::fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {file}"));
    let page = on_page(&read(PAGE)?);
    let cases = listed(&read(LIST)?);
    let mut proved = Invariants::new();
    for file in hygiene::tracked()?.iter().filter(|file| file.starts_with(CASES) && file.ends_with(".rs")) {
        // A file that git tracks but that does not exist is part of an unfinished change.
        let Ok(text) = std::fs::read_to_string(root.join(file)) else { continue };
        let group = file[CASES.len()..].trim_end_matches(".rs").split('/').next().unwrap_or_default();
        add_proved(&text, group, &mut proved);
    }
    let wrong = differences(&page, &cases, &proved);
    if !wrong.is_empty() {
        bail!("{PAGE} and the cases disagree\n{}", wrong.join("\n"));
    }
    Ok(format!("{} invariants", page.len()))
}

fn differences(page: &Invariants, cases: &BTreeSet<String>, proved: &Invariants) -> Vec<String> {
    let mut wrong = Vec::new();
    if page.is_empty() || page.keys().copied().ne(1..=page.len() as u32) {
        wrong.push(format!("the invariants on the page have the numbers {:?}", page.keys().collect::<Vec<_>>()));
    }
    for (number, named) in page {
        if named.is_empty() {
            wrong.push(format!("invariant {number} names no case"));
        }
        let unknown = named.difference(cases);
        wrong.extend(unknown.map(|case| format!("invariant {number} names {case}, which is not in {LIST}")));
    }
    for (number, proving) in proved {
        let named = page.get(number).cloned().unwrap_or_default();
        // A function that is not in the list of cases is a part that several cases share.
        let missing = proving.difference(&named).filter(|case| cases.contains(*case));
        wrong.extend(
            missing.map(|case| format!("invariant {number} does not name {case}, which says that it proves it")),
        );
    }
    wrong
}

/// The items of the page, and each `group::case` in them.
fn on_page(text: &str) -> Invariants {
    let mut invariants = Invariants::new();
    let mut current = None;
    for line in text.lines() {
        if let Some((number, _)) = line.split_once(". ").and_then(|(number, rest)| Some((number.parse().ok()?, rest))) {
            current = Some(number);
            invariants.insert(number, BTreeSet::new());
        } else if line.starts_with(|c: char| !c.is_whitespace()) {
            current = None;
        }
        if let Some(cases) = current.and_then(|number| invariants.get_mut(&number)) {
            let quoted = line.split('`').skip(1).step_by(2);
            cases.extend(quoted.filter(|quoted| is_case(quoted)).map(str::to_owned));
        }
    }
    invariants
}

fn is_case(quoted: &str) -> bool {
    let plain = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    quoted.split_once("::").is_some_and(|(group, case)| plain(group) && plain(case))
}

/// The cases in the list: each name is alone on its line, between the opening and the closing brace of its group.
pub(crate) fn listed(text: &str) -> BTreeSet<String> {
    let mut cases = BTreeSet::new();
    let mut group = None;
    for line in text.lines().map(str::trim) {
        let name = line.trim_end_matches(" {");
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') || name.is_empty() {
            group = None;
        } else if name != line {
            group = Some(name);
        } else if let Some(group) = group {
            cases.insert(format!("{group}::{name}"));
        }
    }
    cases
}

/// Adds the functions whose docs begin with the invariants that they prove, as in `Invariants 1, 4 and 7`.
fn add_proved(text: &str, group: &str, proved: &mut Invariants) {
    let mut numbers = Vec::new();
    let mut in_docs = false;
    for line in text.lines().map(str::trim) {
        if let Some(doc) = line.strip_prefix("/// ") {
            if !in_docs {
                numbers = numbers_of(doc);
            }
            in_docs = true;
        } else {
            in_docs = false;
            if let Some((_, rest)) = line.split_once("fn ").filter(|(before, _)| before.starts_with("pub ")) {
                let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                for number in numbers.drain(..) {
                    proved.entry(number).or_default().insert(format!("{group}::{name}"));
                }
            }
            if !line.starts_with(['#', '/']) {
                numbers.clear();
            }
        }
    }
}

fn numbers_of(doc: &str) -> Vec<u32> {
    let Some(rest) = doc.strip_prefix("Invariants ").or_else(|| doc.strip_prefix("Invariant ")) else {
        return Vec::new();
    };
    rest.split([' ', ',', ':']).filter(|word| !["", "and"].contains(word)).map_while(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Invariants\n\n1. **Exclusion.** `is_held()`\n\n   Cases: `a::one`,\n   `b::two`.\n\n\
        2. **Fencing.**\n\n   Cases: `b::two`.\n\n# More\n\n`a::not_here`\n";
    const LIST: &str = "macro_rules! m {\n    () => {\n        $($then)*! {\n            a {\n                one\n\
            \x20           }\n\
                        b {\n                two\n            }\n        }\n    };\n}\n";
    const CODE: &str = "/// Invariants 1 and 2, by an oracle: it.\n/// Invariant 9 is not meant.\n#[allow(x)]\n\
        pub async fn two(f: F) {}\n\
        /// Invariant 2: a part.\npub fn shared() {}\n/// Nothing.\npub async fn one(f: F) {}\n";

    fn proved(code: &str, group: &str) -> Invariants {
        let mut proved = Invariants::new();
        add_proved(code, group, &mut proved);
        proved
    }

    #[test]
    fn the_page_and_the_cases_name_each_other() {
        assert_eq!(listed(LIST), BTreeSet::from(["a::one".to_owned(), "b::two".to_owned()]));
        assert_eq!(proved(CODE, "b").keys().copied().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(differences(&on_page(PAGE), &listed(LIST), &proved(CODE, "b")), [""; 0]);
    }

    #[test]
    fn every_difference_is_seen() {
        let without = |text: &str| differences(&on_page(&PAGE.replace(text, "")), &listed(LIST), &proved(CODE, "b"));
        assert_eq!(without("`b::two`").len(), 3, "an invariant without a case, and two that do not name it");
        assert_eq!(without("1. **Exclusion.**").len(), 2, "the numbers, and a case of the missing invariant");
        assert_eq!(differences(&on_page(PAGE), &BTreeSet::new(), &Invariants::new()).len(), 3, "unknown cases");
        assert_eq!(differences(&Invariants::new(), &listed(LIST), &Invariants::new()).len(), 1, "an empty page");
    }
}
