//! `leasehold`: holds a lock while a command runs, and shows who holds which lock.

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
use crate::output::{Output, report_failure};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    #[cfg(unix)]
    if let Some(exit) = run_hidden(&arguments) {
        return exit;
    }
    let cli = match args::parse(&arguments) {
        Ok(cli) => cli,
        Err(error) => return report_wrong_arguments(&error, &arguments),
    };
    let output = Output::new(cli.command.json());
    let exit = report_failure(output, execute(&cli, output));
    #[cfg(unix)]
    if let Exit::Signal(signal) = exit {
        run::exit_by_signal(signal);
    }
    exit.into()
}

/// The internal subcommands, which `run` starts this program with.
#[cfg(unix)]
fn run_hidden(arguments: &[OsString]) -> Option<ExitCode> {
    match arguments.get(1)?.to_str()? {
        run::hidden::WATCHER => Some(run::watcher_process(&arguments[2..])),
        run::hidden::LAUNCHER => {
            let failure = run::launch(&arguments[2..]);
            Output::new(false).failure(&failure);
            Some(failure.exit.into())
        }
        _ => None,
    }
}

/// Prints wrong arguments in one line, `--help` and `--version` unchanged.
fn report_wrong_arguments(error: &clap::Error, arguments: &[OsString]) -> ExitCode {
    use clap::error::ErrorKind;
    let wants_text =
        [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion, ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand];
    if wants_text.contains(&error.kind()) {
        // If the reader has closed the pipe, that is not an error.
        let _ = error.print();
        return if error.use_stderr() { Exit::BadInput } else { Exit::Success }.into();
    }
    let json = arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == "--json");
    report_failure(Output::new(json), Err(Failure::input(args::to_one_line(error, arguments)))).into()
}

fn execute(cli: &Cli, output: Output) -> Result<Exit, Failure> {
    match &cli.command {
        #[cfg(unix)]
        Command::Run(args) => {
            let store = store::Store::from_args(&args.common, output)?;
            let options = run::check(&store, args)?;
            in_runtime(run::run(&store, args, options, output))
        }
        #[cfg(not(unix))]
        Command::Run(_) => Err(Failure::input("`run` needs process groups and signals: use a Unix system")),
        Command::Status(args) => in_runtime(show::status(args, output)),
        Command::Ls(args) => in_runtime(show::ls(args, output)),
        Command::Watch(args) => in_runtime(show::watch(args, output)),
        Command::Break(args) => in_runtime(break_lock::break_lock(args, output)),
        Command::Doctor(common) => in_runtime(doctor::doctor(common, output)),
        #[cfg(any(feature = "mysql", feature = "sqlite"))]
        Command::Schema { store } => pages::schema(*store),
        #[cfg(feature = "redis")]
        Command::Functions { store } => pages::functions(*store),
        #[cfg(any(feature = "etcd", feature = "mysql", feature = "redis", feature = "sqlite", feature = "zk"))]
        Command::Acl(store) => pages::acl(store),
        Command::Completions { shell } => pages::completions(*shell),
        Command::Man { folder } => man::write(folder),
    }
}

fn in_runtime(work: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::fault("cannot start the runtime", error))?;
    let result = runtime.block_on(work);
    // Exits without waiting for threads that still run.
    runtime.shutdown_background();
    result
}
