//! The time until the first byte of the child: with the command, with `flock`, and for the child alone.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::report::{Figure, Goal, Unit};
use crate::rounds::median;

const ROUNDS: usize = 40;

pub(crate) fn run() -> Result<Vec<Figure>> {
    const WORKLOAD: &str = "startup";
    let folder = tempfile::tempdir()?;
    let (command, store) = (command()?, format!("sqlite://{}", folder.path().join("locks.db").display()));
    let (mut bare, mut flock, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let times = [
            first_byte(Path::new("echo"), &["x"])?,
            first_byte(Path::new("flock"), &[folder.path().join("flock").to_string_lossy().as_ref(), "echo", "x"])?,
            first_byte(&command, &["run", "--store", &store, "startup", "--", "echo", "x"])?,
        ];
        // The first run creates the file.
        if round > 0 {
            bare.push(times[0]);
            flock.push(times[1]);
            ours.push(times[2]);
        }
    }
    let (bare, flock, ours) = (median(bare), median(flock), median(ours));
    let more = (ours - bare) * 1_000.0;
    Ok(vec![
        Figure::new(
            WORKLOAD,
            "first byte of the child later than without a lock",
            more,
            Unit::Milliseconds,
            Goal::AtMost(30.0),
        ),
        Figure::plain(WORKLOAD, "time to it, ratio to `flock`", ours / flock, Unit::Ratio),
    ])
}

/// The command's program, from the folder of this program.
fn command() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let command = own.with_file_name("leasehold");
    ensure!(command.exists(), "{} is not there: `cargo xtask bench` builds it", command.display());
    Ok(command)
}

fn first_byte(program: &Path, args: &[&str]) -> Result<f64> {
    let begin = Instant::now();
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let mut byte = [0];
    let read = child.stdout.take().context("no output")?.read_exact(&mut byte);
    let took = begin.elapsed().as_secs_f64();
    let ended = child.wait()?;
    read.with_context(|| format!("{} printed nothing and ended with {ended}", program.display()))?;
    Ok(took)
}
