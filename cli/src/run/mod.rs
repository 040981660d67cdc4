//! `leasehold run`.
//!
//! Four processes take part:
//! - the *run*, this one: holds the lease and decides;
//! - the *command*, in a process group of its own, which begins as a copy of this program that waits for the word;
//! - the *watcher*, in a session of its own, which ends the command when the run cannot;
//! - whatever the command starts. What stays in its process group is ended with it.

mod clock;
mod ending;
pub(crate) mod hidden;
mod hold;
mod job;
mod lookup;
mod signals;
mod start;
mod terminal;
mod terms;
mod wait;
mod watch;
mod watcher;

pub(crate) use self::start::start;
pub(crate) use self::watch::watch;

use leasehold::LockGuard;

use crate::args::{Common, Run};
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::run::ending::Ending;
use crate::run::hold::{Hold, Lease};
use crate::run::job::Job;
use crate::run::signals::Signals;
use crate::run::terminal::Terminal;
use crate::run::terms::Terms;
use crate::run::wait::Early;
use crate::run::watcher::Watcher;
use crate::store;

/// Checks everything that can be checked before the store is asked.
pub(crate) fn check(args: &Run) -> Result<Terms, Failure> {
    let terms = Terms::of(args)?;
    match args.command.first() {
        Some(program) => lookup::check(program)?,
        None => return Err(Failure::input("there is no command")),
    }
    Ok(terms)
}

/// Holds the lock while the command runs.
pub(crate) async fn run(common: &Common, args: &Run, terms: Terms, output: Output) -> Result<Exit, Failure> {
    signals::block_ttou().map_err(|error| Failure::fault("cannot prepare the terminal", error))?;
    let mut signals = Signals::listen().map_err(|error| Failure::fault("cannot listen to signals", error))?;
    // It gets ready while the store is asked.
    let watcher = Watcher::start().map_err(|error| Failure::fault("cannot start the watcher", error))?;
    let client = tokio::select! {
        biased;
        signal = signals.next_end() => return Ok(Exit::of_signal(signal.as_raw())),
        client = store::connect(common) => client?,
    };
    let guard = match wait::acquire(&client, args, &terms, &mut signals, output).await {
        Ok(guard) => guard,
        Err(Early::Failed(failure)) => return Err(failure),
        Err(Early::Interrupted(signal)) => return Ok(Exit::of_signal(signal.as_raw())),
    };
    match prepare(common, args, terms, (signals, watcher), guard, output).await {
        Ok(hold) => hold.see_through().await,
        Err((guard, failure)) => {
            // Nothing was run, and nothing is to wait for us.
            let _ = guard.release().await;
            Err(failure)
        }
    }
}

/// Lets the command begin.
async fn prepare(
    common: &Common,
    args: &Run,
    terms: Terms,
    (mut signals, mut watcher): (Signals, Watcher),
    guard: LockGuard,
    output: Output,
) -> Result<Hold, (LockGuard, Failure)> {
    let begun = async {
        let fault = |tried: &'static str| move |error: std::io::Error| Failure::fault(tried, error);
        watcher.ready().await.map_err(fault("the watcher does not work"))?;
        signals.listen_to_stop().map_err(fault("cannot listen to signals"))?;
        let env = [
            ("LEASEHOLD_FENCING_TOKEN", guard.fencing_token().to_string()),
            ("LEASEHOLD_NAME", args.name.clone()),
            // As it was given, with a password if it has one: the command asks the same store with it. Only processes of
            // this user can read it.
            ("LEASEHOLD_STORE", common.store.clone()),
        ];
        let mut job = Job::prepare(&args.command, &env).map_err(fault("cannot start the command"))?;
        watcher.guard(job.group()).map_err(fault("the watcher does not listen"))?;
        let mut terminal = Terminal::open();
        if let Some(terminal) = &mut terminal {
            terminal.share(job.group());
        }
        if let Err(error) = job.begin() {
            if let Some(terminal) = &mut terminal {
                terminal.take_back();
            }
            return Err(Failure::fault("cannot let the command begin", error));
        }
        Ok((job, terminal))
    };
    match begun.await {
        Ok((job, terminal)) => Ok(Hold {
            lease: Lease::new(guard, &terms),
            ending: Ending::new(&terms),
            job,
            watcher: Some(watcher),
            terminal,
            signals,
            terms,
            output,
            cause: None,
        }),
        Err(failure) => Err((guard, failure)),
    }
}
