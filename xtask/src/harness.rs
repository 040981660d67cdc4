//! Builds the test programs once, and runs each separately, so that its time and its cases are known.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cargo_metadata::Message;

use crate::counts::Count;
use crate::metadata::{self, Metadata, Package};
use crate::process::{self, End};
use crate::report;

/// The longest time that a test program may run. The slowest ones take a few minutes, but those at the lowest priority
/// run only while all others wait.
const BOUND: Duration = Duration::from_secs(60 * 60);

/// A program that cargo built.
pub(crate) struct Program {
    pub(crate) package: Package,
    /// The name of its target: `lib`, the name of a test target, `bin-…`, `example-…`.
    pub(crate) target: String,
    pub(crate) kind: Kind,
    path: PathBuf,
}

/// How a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// As a program of Rust's test harness.
    Tests,
    /// An example, which runs to its end.
    Example,
}

/// The results of the cases of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl Outcome {
    /// Adds the results of another program.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// For the counts.
    pub(crate) fn count(self) -> Count {
        Count { run: self.passed + self.failed, ignored: self.ignored }
    }

    /// Reads the closing line of Rust's test harness.
    pub(crate) fn read(line: &str) -> Option<Self> {
        let (_, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let mut outcome = Self::default();
        for part in numbers.split("; ") {
            let (number, what) = part.split_once(' ')?;
            match what {
                "passed" => outcome.passed = number.parse().ok()?,
                "failed" => outcome.failed = number.parse().ok()?,
                "ignored" => outcome.ignored = number.parse().ok()?,
                _ => {}
            }
        }
        Some(outcome)
    }
}

/// Builds the tests and examples that `selection` names.
pub(crate) fn build(metadata: &Metadata, selection: &[String]) -> Result<Vec<Program>> {
    let mut command = process::cargo(["test", "--no-run", "--locked", "--message-format=json-render-diagnostics"]);
    command.args(selection);
    eprintln!("$ {}", process::text(&command));
    let messages = process::read(&mut command)?;
    let mut programs = Vec::new();
    for message in Message::parse_stream(messages.as_bytes()) {
        let Message::CompilerArtifact(artifact) = message.context("cannot read what cargo built")? else { continue };
        let (Some(path), built) = (artifact.executable, artifact.target) else { continue };
        let kind = match (artifact.profile.test, built.is_example()) {
            (true, _) => Kind::Tests,
            (false, true) => Kind::Example,
            (false, false) => continue,
        };
        let target = if built.is_test() {
            built.name
        } else if built.is_bin() {
            format!("bin-{}", built.name)
        } else if built.is_example() {
            format!("example-{}", built.name)
        } else {
            "lib".to_owned()
        };
        let mut members = metadata.workspace_packages().into_iter();
        let id = artifact.package_id;
        let package = members.find(|package| package.id == id);
        let package = package.with_context(|| format!("cargo built {id}, which is not in this workspace"))?.clone();
        programs.push(Program { package, target, kind, path: path.into() });
    }
    Ok(programs)
}

impl Program {
    /// Its name for people.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.package.name, self.target)
    }

    /// The command as `cargo test` or `cargo run` starts it.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        let folder = match self.kind {
            Kind::Tests => metadata::folder(&self.package).to_owned(),
            Kind::Example => process::root(),
        };
        command.current_dir(folder);
        command
            .env("CARGO_MANIFEST_DIR", metadata::folder(&self.package))
            .env("CARGO_PKG_NAME", self.package.name.as_str());
        command.env(report::VARIABLE, report::path());
        command
    }

    /// Runs the program with these arguments, at the lowest priority if `is_niced`. Its name is shown before each of
    /// its lines, because other programs run at the same time. The messages of failed cases are added to `said`.
    ///
    /// # Errors
    /// If the program cannot be started. A case that fails is counted and is not an error.
    pub(crate) fn run(&self, args: &[String], is_niced: bool, said: &mut Vec<String>) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let (mut closed, mut failures) = (false, false);
        let mut command = self.command();
        command.args(args);
        if is_niced {
            command = process::niced(&command);
        }
        let end = process::watch(&mut command, BOUND, |line| {
            println!("{} | {line}", self.target);
            if let Some(read) = Outcome::read(line) {
                outcome.add(read);
                closed = true;
            }
            // The closing part of Rust's test harness.
            failures = !closed && (failures || line == "failures:");
            if failures {
                said.push(line.to_owned());
            }
        })?;
        match (self.kind, end) {
            (_, End::TooLong) => {
                println!("{} was killed after {} s", self.name(), BOUND.as_secs());
                outcome.failed += 1;
            }
            (Kind::Example, End::Success) => outcome.passed = 1,
            (Kind::Example, End::Failure) => outcome.failed = 1,
            (Kind::Tests, End::Success) if !closed => bail!("{} ended without a result", self.name()),
            (Kind::Tests, End::Success) => {}
            (Kind::Tests, End::Failure) => outcome.failed = outcome.failed.max(1),
        }
        Ok(outcome)
    }

    /// How many cases the program would run and ignore.
    pub(crate) fn list(&self) -> Result<Count> {
        let list = |args: &[&str]| -> Result<u64> {
            let list =
                process::read(self.command().args(["--list", "--format=terse"]).args(args).stderr(Stdio::inherit()))?;
            Ok(list.lines().filter(|line| line.ends_with(": test")).count() as u64)
        };
        let (all, ignored) = (list(&[])?, list(&["--ignored"])?);
        Ok(Count { run: all - ignored, ignored })
    }
}

/// Runs the doc tests of the packages that `selection` names, at the lowest priority.
pub(crate) fn doc_tests(selection: &[String]) -> Result<Outcome> {
    let mut command = process::cargo(["test", "--doc", "--locked", "--no-fail-fast"]);
    command.args(selection);
    println!("$ {}", process::text(&command));
    let mut outcome = Outcome::default();
    let end = process::watch(&mut process::niced(&command), BOUND, |line| {
        println!("doc tests | {line}");
        if let Some(read) = Outcome::read(line) {
            outcome.add(read);
        }
    })?;
    if end != End::Success && outcome.failed == 0 {
        bail!("the doc tests cannot be run");
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_is_read() {
        let line = "test result: FAILED. 15 passed; 2 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.01s";
        assert_eq!(Outcome::read(line), Some(Outcome { passed: 15, failed: 2, ignored: 1 }));
        assert_eq!(Outcome::read("test lease::expires ... ok"), None);
    }
}
