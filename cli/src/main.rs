//! `leasehold`: holds a lock while a command runs, and shows who holds which.

mod args;
mod break_lock;
mod doctor;
mod exit;
mod man;
mod output;
mod pages;
mod report;
#[cfg(unix)]
mod run;
mod show;
mod store;

use std::ffi::OsString;
use std::process::ExitCode;

use crate::args::{Cli, Command};
use crate::exit::{Exit, Failure};
use crate::output::{Output, told};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    #[cfg(unix)]
    if let Some(exit) = hidden(&arguments) {
        return exit;
    }
    let cli = match args::parse(&arguments) {
        Ok(cli) => cli,
        Err(error) => return refuse(&error, &arguments),
    };
    let output = Output::new(cli.command.json());
    let exit = told(output, carry_out(&cli, output));
    #[cfg(unix)]
    if let Exit::Signal(signal) = exit {
        run::die_of(signal);
    }
    exit.into()
}

/// What `run` starts this program with, for itself.
#[cfg(unix)]
fn hidden(arguments: &[OsString]) -> Option<ExitCode> {
    match arguments.get(1)?.to_str()? {
        run::hidden::WATCH => Some(run::watch()),
        run::hidden::START => {
            let failure = run::start(&arguments[2..]);
            Output::new(false).failure(&failure);
            Some(failure.exit.into())
        }
        _ => None,
    }
}

/// Wrong arguments in one line; `--help` and `--version` as they are.
fn refuse(error: &clap::Error, arguments: &[OsString]) -> ExitCode {
    use clap::error::ErrorKind;
    let asked_for_text =
        [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion, ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand];
    if asked_for_text.contains(&error.kind()) {
        // A reader that went away is no fault of ours.
        let _ = error.print();
        return if error.use_stderr() { Exit::BadInput } else { Exit::Fine }.into();
    }
    let json = arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == "--json");
    told(Output::new(json), Err(Failure::input(args::in_one_line(error)))).into()
}

fn carry_out(cli: &Cli, output: Output) -> Result<Exit, Failure> {
    match &cli.command {
        #[cfg(unix)]
        Command::Run(args) => {
            let store = store::Store::of(&args.common, output)?;
            let terms = run::check(&store, args)?;
            in_runtime(run::run(&store, args, terms, output))
        }
        #[cfg(not(unix))]
        Command::Run(_) => Err(Failure::input("`run` needs a Unix system: process groups and signals")),
        Command::Status(args) => in_runtime(show::status(args, output)),
        Command::Ls(args) => in_runtime(show::ls(args, output)),
        Command::Watch(args) => in_runtime(show::watch(args, output)),
        Command::Break(args) => in_runtime(break_lock::break_lock(args, output)),
        Command::Doctor(common) => in_runtime(doctor::doctor(common, output)),
        #[cfg(feature = "sqlite")]
        Command::Schema { store } => pages::schema(*store),
        #[cfg(any(feature = "redis", feature = "sqlite"))]
        Command::Acl(store) => pages::acl(store),
        Command::Completions { shell } => pages::completions(*shell),
        Command::Man { folder } => man::write(folder),
    }
}

fn in_runtime(work: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::fault("cannot start", error))?;
    let result = runtime.block_on(work);
    // Nothing that is left is worth waiting for.
    runtime.shutdown_background();
    result
}
