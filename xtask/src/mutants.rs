//! `cargo xtask mutants`.

mod accepted;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::metadata::{self, Metadata};
use crate::process;
use accepted::Accepted;

/// Mutates one line of lock-core at a time with cargo-mutants, and fails when no test notices.
///
/// Runs lock-core's own tests and 300 seeds of the simulation against each mutant. A mutant that survives has to stand in
/// `lock-core/mutants.toml` with the reason why it is accepted. The whole run takes one to two hours on two cores; `--since`
/// takes a few minutes for a change of 100 lines. The full output stays in `target/mutants/mutants.out`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only mutants of these files, for example `lock-core/src/keeper/queue.rs`.
    #[arg(value_name = "FILE")]
    files: Vec<String>,
    /// Only mutants of lines that changed since this commit.
    #[arg(long, value_name = "COMMIT", conflicts_with = "files")]
    since: Option<String>,
    /// How many mutants are built and tested at once.
    #[arg(long, default_value_t = 2)]
    jobs: u32,
}

const MUTATED: &str = "leasehold-core";
const SIMULATION: &str = "leasehold-simulation";

/// As many seeds as find nearly everything that 20,000 find.
const SEEDS: (&str, &str) = ("LEASEHOLD_SEEDS", "300");

/// Tests of the simulation itself: they take most of its time, and say nothing about a mutant of lock-core.
const SKIPPED: [&str; 5] = ["--", "--skip", "every_planted_bug_is_caught", "--skip", "a_seed_replays_exactly"];

/// A test that runs longer has been made to hang by its mutant: without one they take 7 s, beside another mutant 15 s.
const TEST_BOUND: &str = "--timeout=60";

/// cargo-mutants ends with these when mutants survived, or hung. Everything else but 0 is an error of the run.
const SURVIVED: i32 = 2;
const HUNG: i32 = 3;

/// Runs it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let installed = process::cargo(["mutants", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !installed.is_ok_and(|status| status.success()) {
        bail!("cargo-mutants is not installed; `cargo install --locked cargo-mutants` installs it");
    }
    let metadata = Metadata::read()?;
    let targets = targets(&metadata);
    let accepted = Accepted::read()?;
    let output = process::root().join("target/mutants");
    std::fs::create_dir_all(&output).with_context(|| format!("cannot create {}", output.display()))?;

    // cargo-mutants tries only the mutated package without a mutant, and the simulation has to pass as well.
    let mut baseline = process::cargo(["test", "--quiet", "--locked", "--profile=mutants"]);
    baseline.args([MUTATED, SIMULATION].map(|package| format!("--package={package}"))).args(&targets).args(SKIPPED);
    process::show(baseline.env(SEEDS.0, SEEDS.1)).context("the tests fail without a mutant")?;

    let mut command =
        process::cargo(["mutants", "--profile=mutants", "--baseline=skip", TEST_BOUND, "--build-timeout=600"]);
    command
        .arg(format!("--package={MUTATED}"))
        .args([MUTATED, SIMULATION].map(|package| format!("--test-package={package}")))
        .args(targets.iter().map(|target| format!("--cargo-arg={target}")))
        .arg(format!("--jobs={}", args.jobs))
        .arg(format!("--output={}", output.display()))
        .args(args.files.iter().map(|file| format!("--file={file}")))
        .env(SEEDS.0, SEEDS.1);
    if let Some(commit) = &args.since {
        command.arg(format!("--in-diff={}", changed_since(commit, &output)?));
    }
    command.arg("--").args(SKIPPED);
    eprintln!("$ {}", process::text(&command));
    let results = output.join("mutants.out/outcomes.json");
    // Without any mutant cargo-mutants leaves the results of the run before.
    let _ = std::fs::remove_file(&results);
    let status = command.stdin(Stdio::null()).status().context("cannot start `cargo mutants`")?;
    if !status.success() && ![Some(SURVIVED), Some(HUNG)].contains(&status.code()) {
        bail!("`cargo mutants` failed: {status}");
    }
    if !results.exists() {
        println!("no mutant of {MUTATED} in the selection");
        return Ok(());
    }
    let results = Results::read(&results)?;
    println!("{}", results.summary());
    let whole = args.files.is_empty() && args.since.is_none();
    accepted.hold(&results.survivors, whole)
}

/// Every test target of lock-core, and the simulation without the model, which does not use lock-core.
fn targets(metadata: &Metadata) -> Vec<String> {
    let own = metadata.members().filter(|package| package.name == MUTATED).flat_map(|package| &package.targets);
    let tests = own.filter(|(kind, _)| kind == "test").map(|(_, name)| format!("--test={name}"));
    ["--lib".to_owned(), "--test=simulation".to_owned()].into_iter().chain(tests).collect()
}

/// The file with the changes of lock-core since a commit.
fn changed_since(commit: &str, output: &Path) -> Result<String> {
    let mut git = Command::new("git");
    git.current_dir(process::root()).args(["diff", "--no-color", commit, "--", "lock-core/src"]);
    let file = output.join("since.diff");
    std::fs::write(&file, process::read(&mut git)?).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file.display().to_string())
}

/// What became of the mutants.
#[derive(Debug, Default)]
struct Results {
    caught: usize,
    /// The tests hung, which is noticed too.
    hung: usize,
    /// Did not compile.
    unviable: usize,
    /// Mutant, and how many times it is found: positions are left out, because they change with every line above.
    survivors: BTreeMap<String, usize>,
}

impl Results {
    fn read(path: &Path) -> Result<Self> {
        let json = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self::of(&serde_json::from_str(&json).with_context(|| format!("cannot read {}", path.display()))?))
    }

    fn of(json: &Value) -> Self {
        let mut results = Self::default();
        for outcome in metadata::array(&json["outcomes"]) {
            match &*metadata::text(&outcome["summary"]) {
                "CaughtMutant" => results.caught += 1,
                "Timeout" => results.hung += 1,
                "Unviable" => results.unviable += 1,
                "MissedMutant" => {
                    let name = metadata::text(&outcome["scenario"]["Mutant"]["name"]);
                    *results.survivors.entry(without_position(&name)).or_default() += 1;
                }
                _ => {}
            }
        }
        results
    }

    fn summary(&self) -> String {
        let survived: usize = self.survivors.values().sum();
        let noticed = self.caught + self.hung;
        format!(
            "{noticed} of {} mutants are noticed ({:.1} %), {} of them because the tests hang; {survived} survive; \
             {} do not compile",
            noticed + survived,
            noticed as f64 * 100.0 / (noticed + survived).max(1) as f64,
            self.hung,
            self.unviable,
        )
    }
}

/// `file:line:column: text` without line and column.
fn without_position(name: &str) -> String {
    let mut parts = name.splitn(4, ':');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(file), Some(line), Some(column), Some(text))
            if [line, column].iter().all(|number| number.bytes().all(|byte| byte.is_ascii_digit())) =>
        {
            format!("{file}:{text}")
        }
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_left_out() {
        assert_eq!(without_position("a/b.rs:12:7: replace x with y::Z in f"), "a/b.rs: replace x with y::Z in f");
        assert_eq!(without_position("a/b.rs: replace x"), "a/b.rs: replace x");
    }

    #[test]
    fn outcomes_are_counted() {
        let mutant = |name: &str, summary: &str| serde_json::json!({ "scenario": { "Mutant": { "name": name } }, "summary": summary });
        let results = Results::of(&serde_json::json!({ "outcomes": [
            { "scenario": "Baseline", "summary": "Success" },
            mutant("a.rs:1:1: one", "CaughtMutant"),
            mutant("a.rs:2:1: two", "MissedMutant"),
            mutant("a.rs:3:1: two", "MissedMutant"),
            mutant("a.rs:4:1: three", "Timeout"),
            mutant("a.rs:5:1: four", "Unviable"),
        ] }));
        assert_eq!(results.survivors, BTreeMap::from([("a.rs: two".to_owned(), 2)]));
        assert_eq!(
            results.summary(),
            "2 of 4 mutants are noticed (50.0 %), 1 of them because the tests hang; 2 survive; 1 do not compile"
        );
    }
}
