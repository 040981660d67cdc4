//! A run in parts. Each part is timed, no part stops the others, and a table at the end shows what failed and which
//! parts took how long.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::process;

/// The parts that ran.
#[derive(Default)]
pub(crate) struct Parts {
    rows: Vec<Part>,
}

/// A part that ran.
pub(crate) struct Part {
    name: String,
    took: Duration,
    /// The processor time of its processes.
    used: Duration,
    /// A note, or the error.
    outcome: Result<String, String>,
}

impl Part {
    /// Runs a part. What it returns is its note in the table.
    pub(crate) fn run(name: &str, part: impl FnOnce() -> Result<String>) -> Self {
        let (start, before) = (Instant::now(), process::processor_time());
        let outcome = part().map_err(|error| format!("{error:#}"));
        let (took, used) = (start.elapsed(), process::processor_time() - before);
        match &outcome {
            Ok(note) => println!("=== {name}: ok after {:.1} s  {note}", took.as_secs_f64()),
            Err(error) => println!("=== {name} FAILED after {:.1} s: {error}", took.as_secs_f64()),
        }
        Self { name: name.to_owned(), took, used, outcome }
    }
}

impl Parts {
    /// Runs a part.
    pub(crate) fn run(&mut self, name: &str, part: impl FnOnce() -> Result<String>) {
        println!("\n=== {name}");
        self.add(Part::run(name, part));
    }

    /// Adds a part that ran elsewhere.
    pub(crate) fn add(&mut self, part: Part) {
        self.rows.push(part);
    }

    /// Prints the table, with the part that took longest first.
    pub(crate) fn print(&self, took: Duration) {
        let width = self.rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
        let mut rows: Vec<_> = self.rows.iter().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.took));
        println!("\n{:width$}  {:>9}  {:>9}", "", "wall", "processor");
        let line = |name: &str, took: Duration, used: Duration, rest: &str| {
            println!("{name:width$}  {:>7.1} s  {:>7.1} s  {rest}", took.as_secs_f64(), used.as_secs_f64());
        };
        for row in rows {
            let rest = match &row.outcome {
                Ok(note) => format!("ok      {note}"),
                Err(error) => format!("FAILED  {}", error.lines().next().unwrap_or_default()),
            };
            line(&row.name, row.took, row.used, &rest);
        }
        line("all", took, self.rows.iter().map(|row| row.used).sum(), "");
    }

    /// Succeeds if every part passed.
    ///
    /// # Errors
    /// Names the parts that failed.
    pub(crate) fn result(&self) -> Result<()> {
        let failed: Vec<_> = self.rows.iter().filter(|row| row.outcome.is_err()).map(|row| &*row.name).collect();
        if !failed.is_empty() {
            bail!("failed: {}", failed.join(", "));
        }
        Ok(())
    }
}
