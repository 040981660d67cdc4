//! Commands for people who work on Leasehold: `cargo xtask check`, `test`, `counts` and `bench`.

mod architecture;
mod bench;
mod check;
mod counts;
mod dependencies;
mod features;
mod harness;
mod hygiene;
mod invariants;
mod metadata;
mod minimum_rust;
mod named_tests;
mod needs;
mod parts;
mod process;
mod readme;
mod report;
mod schedule;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Commands for people who work on Leasehold.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Check(check::Args),
    Test(test::Args),
    Counts(counts::Args),
    Bench(bench::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Check(args) => check::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Counts(counts::Args {}) => counts::run(),
        Command::Bench(args) => bench::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nerror: {error:#}");
            ExitCode::FAILURE
        }
    }
}
