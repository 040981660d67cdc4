//! A run in parts: each is timed, none stops the others, and a table at the end says what failed and where the time went.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The parts that ran.
#[derive(Default)]
pub(crate) struct Parts {
    rows: Vec<Row>,
}

struct Row {
    name: String,
    took: Duration,
    /// A note, or the error.
    outcome: Result<String, String>,
}

impl Parts {
    /// Runs a part. What it returns is its note in the table.
    pub(crate) fn run(&mut self, name: &str, part: impl FnOnce() -> Result<String>) {
        println!("\n=== {name}");
        let start = Instant::now();
        let outcome = part().map_err(|error| format!("{error:#}"));
        let took = start.elapsed();
        if let Err(error) = &outcome {
            println!("{name} FAILED: {error}");
        }
        self.rows.push(Row { name: name.to_owned(), took, outcome });
    }

    /// Prints the table, with the part that took longest first.
    pub(crate) fn print(&self) {
        let width = self.rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
        let mut rows: Vec<_> = self.rows.iter().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.took));
        println!();
        for row in rows {
            let (state, note) = match &row.outcome {
                Ok(note) => ("ok", note.as_str()),
                Err(error) => ("FAILED", error.lines().next().unwrap_or_default()),
            };
            println!("{:width$}  {:>7.1} s  {state:6}  {note}", row.name, row.took.as_secs_f64());
        }
        let total: Duration = self.rows.iter().map(|row| row.took).sum();
        println!("{:width$}  {:>7.1} s", "all", total.as_secs_f64());
    }

    /// Whether everything passed.
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
