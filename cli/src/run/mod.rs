//! `leasehold run`.
//!
//! Four processes take part:
//! - the *run*, this one: holds the lease and decides;
//! - the *command*, in its own process group, which begins as a copy of this program that waits for the start message;
//! - the *watcher*, in its own session, which kills the command when the run cannot;
//! - the processes that the command starts, which are ended with it.

mod clock;
mod command_group;
mod descendants;
pub(crate) mod hidden;
mod launcher;
mod lookup;
mod options;
mod signals;
mod supervisor;
mod terminal;
mod termination;
mod wait;
mod watcher;
mod watcher_process;

pub(crate) use self::launcher::launch;
pub(crate) use self::signals::exit_by_signal;
pub(crate) use self::watcher_process::watcher_process;

use leasehold::{LockClient, LockGuard};

use crate::args::Run;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::report::printable;
use crate::run::command_group::CommandGroup;
use crate::run::options::RunOptions;
use crate::run::signals::Signals;
use crate::run::supervisor::{HeldLease, Supervisor};
use crate::run::terminal::Terminal;
use crate::run::termination::Termination;
use crate::run::wait::NotStarted;
use crate::run::watcher::Watcher;
use crate::store::{self, Store};

/// Checks everything that can be checked without the store.
pub(crate) fn check(store: &Store, args: &Run) -> Result<RunOptions, Failure> {
    let options = RunOptions::from_args(args)?;
    match args.words().first() {
        Some(program) => lookup::check(program)?,
        None => return Err(Failure::input("there is no command: put it after `--`")),
    }
    let outer = |name| std::env::var(name).ok();
    if outer(TOKEN).is_some()
        && outer(NAME).as_ref() == Some(&args.name)
        && outer(store::VARIABLE).as_deref() == Some(store.url())
    {
        return Err(Failure::input(format!(
            "the `leasehold run` that started this one holds lock `{}`, according to {NAME} and {}, so this one \
             would wait for itself: run the command without a second `leasehold run`",
            printable(&args.name),
            store::VARIABLE
        )));
    }
    Ok(options)
}

/// The environment variables of the command.
const TOKEN: &str = "LEASEHOLD_FENCING_TOKEN";
const NAME: &str = "LEASEHOLD_NAME";

/// Holds the lock while the command runs.
pub(crate) async fn run(store: &Store, args: &Run, options: RunOptions, output: Output) -> Result<Exit, Failure> {
    signals::block_ttou().map_err(|error| Failure::fault("cannot prepare the terminal", error))?;
    let mut signals = Signals::listen().map_err(|error| Failure::fault("cannot listen for signals", error))?;
    let inherited = descendants::children();
    descendants::adopt_orphans();
    // The watcher starts up while the client connects.
    let watcher = Watcher::start(inherited).map_err(|error| Failure::fault("cannot start the watcher", error))?;
    let client = if args.no_wait {
        tokio::select! {
            biased;
            signal = signals.next_termination() => return Ok(Exit::Signal(signal.as_raw())),
            client = store.connect(&args.label) => client?,
        }
    } else {
        store.connect_lazily(&args.label)?
    };
    let guard = match wait::acquire(&client, args, &options, &mut signals, output).await {
        Ok(guard) => guard,
        Err(NotStarted::Failed(failure)) => return Err(failure),
        Err(NotStarted::Skipped(exit)) => return Ok(exit),
        Err(NotStarted::Interrupted(signal)) => return Ok(Exit::Signal(signal.as_raw())),
    };
    match prepare(store, args, options, (signals, watcher), (client, guard), output).await {
        Ok(supervisor) => supervisor.run_to_end().await,
        Err((guard, failure)) => {
            // The command was not started. The lock is released at once.
            let _ = guard.release().await;
            Err(failure)
        }
    }
}

/// Starts the command.
async fn prepare(
    store: &Store,
    args: &Run,
    options: RunOptions,
    (mut signals, mut watcher): (Signals, Watcher),
    (client, guard): (LockClient, LockGuard),
    output: Output,
) -> Result<Supervisor, (LockGuard, Failure)> {
    let begun = async {
        let fault = |tried: &'static str| move |error: std::io::Error| Failure::fault(tried, error);
        watcher.ready().await.map_err(fault("the watcher does not start"))?;
        signals.listen_for_stop().map_err(fault("cannot listen for signals"))?;
        let env = [
            (TOKEN, guard.fencing_token().to_string()),
            (NAME, args.name.clone()),
            // The resolved URL, so that the command uses the same store even with another HOME. It contains the
            // password, if there is one; only processes of this user can read it.
            (store::VARIABLE, store.url().to_owned()),
        ];
        if !guard.is_held() {
            let text = format!("lock `{}` was lost before its command started; nothing was run", printable(&args.name));
            return Err(Failure::new(Exit::NoAnswer, text));
        }
        let mut command = CommandGroup::prepare(&args.words(), &env).map_err(fault("cannot start the command"))?;
        watcher.set_group(command.group()).map_err(fault("cannot send an order to the watcher"))?;
        let mut terminal = Terminal::open();
        if let Some(terminal) = &mut terminal {
            terminal.give_foreground(command.group());
        }
        if let Err(error) = command.start() {
            if let Some(terminal) = &mut terminal {
                terminal.take_foreground();
            }
            return Err(Failure::fault("cannot start the command", error));
        }
        Ok((command, terminal))
    };
    match begun.await {
        Ok((command, terminal)) => Ok(Supervisor {
            termination: Termination::new(&options, guard.validity()),
            lease: HeldLease::new(guard, &options),
            command,
            inherited: watcher.inherited().to_vec(),
            watcher: Some(watcher),
            terminal,
            signals,
            client,
            options,
            output,
            interrupt: None,
            cause: None,
            reap_at: None,
        }),
        Err(failure) => Err((guard, failure)),
    }
}
