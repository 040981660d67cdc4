//! `break NAME`.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use leasehold::LockClient;
use leasehold::backend::LossNotice;
use serde::Serialize;

use crate::args::Break;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::report::{LockReport, printable};
use crate::store::Store;

/// What `break --json` prints. Fields are added, never renamed or removed.
#[derive(Serialize)]
struct Broken {
    name: String,
    /// Whether a lease was ended.
    broken: bool,
    /// The raised token. A write with a lower token comes from the old holder or an older one.
    raised_token: Option<u64>,
    /// The lease that was ended.
    before: LockReport,
}

/// Ends the lease of the current holder, after the user has confirmed.
pub(crate) async fn break_lock(args: &Break, output: Output) -> Result<Exit, Failure> {
    let client = Store::from_args(&args.common, output)?.connect("").await?;
    let Some(seen) = client.inspect(&args.name).await?.filter(leasehold::LockInfo::is_held) else {
        let before = LockReport::new(&client, &args.name, None);
        let answer = Broken { name: args.name.clone(), broken: false, raised_token: None, before };
        output.result(&answer, || format!("{}: free, there is nothing to break", printable(&args.name)))?;
        return Ok(Exit::Success);
    };
    let token = seen.holder().map(|lease| lease.token);
    let before = LockReport::new(&client, &args.name, Some(seen));
    if !args.yes && !is_confirmed(&client, &before)? {
        return Err(Failure::new(Exit::No, "not confirmed: the lock was not broken"));
    }
    let raised = match token {
        // The token names the lease that was shown. A client that has acquired the lock since then keeps it.
        Some(token) => client.break_lock(&args.name, token).await?,
        None => None,
    };
    let answer = Broken {
        name: args.name.clone(),
        broken: raised.is_some(),
        raised_token: raised.map(|token| token.get()),
        before,
    };
    output.result(&answer, || match raised {
        Some(raised) => format!(
            "{}: broken, token raised to {raised}. {} {} and may still be writing until then. A resource that checks \
             tokens refuses it from {raised} on.",
            printable(&args.name),
            answer.before.who(),
            learns_of_it(&client)
        ),
        None => {
            format!("{}: the lease ended before it could be broken; nothing was changed", printable(&args.name))
        }
    })?;
    Ok(Exit::Success)
}

/// When the holder is notified of the loss.
fn learns_of_it(client: &LockClient) -> &'static str {
    match client.capabilities().loss_notice {
        LossNotice::Pushed => "learns of it at once if it is connected",
        _ => "learns of it with its next renewal",
    }
}

fn is_confirmed(client: &LockClient, before: &LockReport) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(Failure::input("`break` asks for confirmation on a terminal, and there is none: use --yes"));
    }
    let question = format!(
        "{}\nThis ends the lease now and raises the token. The next waiter then gets the lock.\n\
         The holder {} and may still be writing until then.\nBreak it? [y/N] ",
        before.to_text(),
        learns_of_it(client)
    );
    let mut answer = String::new();
    let asked =
        std::io::stderr().write_all(question.as_bytes()).and_then(|()| std::io::stdin().lock().read_line(&mut answer));
    asked.map_err(|error| Failure::fault("cannot ask for confirmation", error))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
