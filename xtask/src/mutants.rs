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
/// Runs lock-core's own tests against each mutant, and 300 seeds of the simulation against those that survive them. A mutant that
/// survives both has to stand in `lock-core/mutants.toml` with the reason why it is accepted. The whole run takes about an hour on
/// two cores that have nothing else to do; `--since` takes a few minutes for a change of 100 lines. The full output stays in
/// `target/mutants/mutants.out`, that of the first stage in `mutants.out.old`.
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
const SKIPPED: [&str; 7] = [
    "--",
    "--skip",
    "every_planted_bug_is_caught",
    "--skip",
    "a_seed_replays_exactly",
    "--skip",
    "every_broken_rule_is_caught",
];

/// The tests that are run against mutants.
struct Stage {
    profile: &'static str,
    packages: &'static [&'static str],
    /// A test that runs longer has been made to hang by its mutant.
    bound: &'static str,
    /// Whether only mutants are tried that the stage before did not notice.
    rest: bool,
}

/// Building the simulation takes longer than everything else, and most mutants are noticed without it. Without a mutant the first
/// stage runs for one second and the second for seven, and for twice that beside another mutant.
const STAGES: [Stage; 2] = [
    Stage { profile: "mutants", packages: &[MUTATED], bound: "--timeout=30", rest: false },
    Stage { profile: "mutants-simulation", packages: &[MUTATED, SIMULATION], bound: "--timeout=60", rest: true },
];

/// What `Debug` does not print harms nobody. That it prints no secret is a case of the suite.
const UNHARMFUL: &str = "--exclude-re=fmt::Debug";

/// cargo-mutants ends with these when mutants survived, or hung. Everything else but 0 is an error of the run.
const SURVIVED: i32 = 2;
const HUNG: i32 = 3;

/// Runs it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let installed = process::cargo(["mutants", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !installed.is_ok_and(|status| status.success()) {
        bail!("cargo-mutants is not installed; `cargo install --locked cargo-mutants` installs it");
    }
    let metadata = metadata::read()?;
    let accepted = Accepted::read()?;
    let output = process::root().join("target/mutants");
    std::fs::create_dir_all(&output).with_context(|| format!("cannot create {}", output.display()))?;

    let mut results = Results::default();
    for stage in &STAGES {
        let targets = targets(&metadata, stage.packages);
        // cargo-mutants tries only the mutated package without a mutant, and the simulation has to pass as well.
        let mut baseline = process::cargo(["test", "--quiet", "--locked", "--profile", stage.profile]);
        baseline.args(stage.packages.iter().map(|package| format!("--package={package}"))).args(&targets).args(SKIPPED);
        process::show(baseline.env(SEEDS.0, SEEDS.1)).context("the tests fail without a mutant")?;

        let mut command = process::cargo(["mutants", "--baseline=skip", "--build-timeout=600", UNHARMFUL, stage.bound]);
        command
            .args([format!("--profile={}", stage.profile), format!("--package={MUTATED}")])
            .args(stage.packages.iter().map(|package| format!("--test-package={package}")))
            .args(targets.iter().map(|target| format!("--cargo-arg={target}")))
            .args([format!("--jobs={}", args.jobs), format!("--output={}", output.display())])
            .args(args.files.iter().map(|file| format!("--file={file}")))
            .env(SEEDS.0, SEEDS.1);
        if stage.rest {
            hung_is_noticed(&output)?;
            command.arg("--iterate");
        }
        if let Some(commit) = &args.since {
            command.arg(format!("--in-diff={}", changed_since(commit, &output)?));
        }
        command.arg("--").args(SKIPPED);
        if !mutate(&mut command, &output, &mut results)? {
            break;
        }
    }
    if results.is_empty() {
        println!("no mutant of {MUTATED} in the selection");
        return Ok(());
    }
    println!("{}", results.summary());
    let whole = args.files.is_empty() && args.since.is_none();
    accepted.hold(&results.survivors, whole)
}

/// cargo-mutants would try again what hung in the stage before, and wait for each once more.
fn hung_is_noticed(output: &Path) -> Result<()> {
    let [hung, caught] = ["timeout.txt", "caught.txt"].map(|file| output.join("mutants.out").join(file));
    let hung = std::fs::read_to_string(&hung).with_context(|| format!("cannot read {}", hung.display()))?;
    let mut list = std::fs::read_to_string(&caught).with_context(|| format!("cannot read {}", caught.display()))?;
    list.push_str(&hung);
    std::fs::write(&caught, list).with_context(|| format!("cannot write {}", caught.display()))
}

/// Runs one stage and adds what it found. Says whether anything is left for another one.
fn mutate(command: &mut Command, output: &Path, results: &mut Results) -> Result<bool> {
    eprintln!("$ {}", process::text(command));
    let outcomes = output.join("mutants.out/outcomes.json");
    // Without any mutant cargo-mutants leaves the results of the run before.
    let _ = std::fs::remove_file(&outcomes);
    let status = command.stdin(Stdio::null()).status().context("cannot start `cargo mutants`")?;
    if !status.success() && ![Some(SURVIVED), Some(HUNG)].contains(&status.code()) {
        bail!("`cargo mutants` failed: {status}");
    }
    if outcomes.exists() {
        results.add(&outcomes)?;
    }
    Ok(!status.success())
}

/// Every test target of lock-core, and of the simulation only that which uses lock-core.
fn targets(metadata: &Metadata, packages: &[&str]) -> Vec<String> {
    let own = metadata.workspace_packages().into_iter().filter(|package| package.name == MUTATED);
    let tests = own.flat_map(|package| &package.targets).filter(|target| target.is_test());
    let tests = tests.map(|target| format!("--test={}", target.name));
    let simulation = packages.contains(&SIMULATION).then(|| "--test=simulation".to_owned());
    ["--lib".to_owned()].into_iter().chain(tests).chain(simulation).collect()
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
    fn add(&mut self, path: &Path) -> Result<()> {
        let json = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        self.add_outcomes(&serde_json::from_str(&json).with_context(|| format!("cannot read {}", path.display()))?);
        Ok(())
    }

    /// A stage tries again what survived in the one before.
    fn add_outcomes(&mut self, json: &Value) {
        self.survivors.clear();
        for outcome in json["outcomes"].as_array().into_iter().flatten() {
            match outcome["summary"].as_str().unwrap_or_default() {
                "CaughtMutant" => self.caught += 1,
                "Timeout" => self.hung += 1,
                "Unviable" => self.unviable += 1,
                "MissedMutant" => {
                    let name = outcome["scenario"]["Mutant"]["name"].as_str().unwrap_or_default();
                    *self.survivors.entry(without_position(name)).or_default() += 1;
                }
                _ => {}
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.caught + self.hung + self.unviable + self.survivors.len() == 0
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
        let mut results = Results::default();
        results.add_outcomes(&serde_json::json!({ "outcomes": [
            { "scenario": "Baseline", "summary": "Success" },
            mutant("a.rs:1:1: one", "CaughtMutant"),
            mutant("a.rs:2:1: two", "MissedMutant"),
            mutant("a.rs:3:1: two", "MissedMutant"),
            mutant("a.rs:4:1: three", "Timeout"),
            mutant("a.rs:5:1: four", "Unviable"),
            mutant("a.rs:6:1: five", "MissedMutant"),
        ] }));
        results.add_outcomes(&serde_json::json!({ "outcomes": [
            mutant("a.rs:2:1: two", "MissedMutant"),
            mutant("a.rs:3:1: two", "MissedMutant"),
            mutant("a.rs:6:1: five", "CaughtMutant"),
        ] }));
        assert_eq!(results.survivors, BTreeMap::from([("a.rs: two".to_owned(), 2)]));
        assert_eq!(
            results.summary(),
            "3 of 5 mutants are noticed (60.0 %), 1 of them because the tests hang; 2 survive; 1 do not compile"
        );
    }
}
