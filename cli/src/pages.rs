//! What is printed without a store: completions, man pages, schema and permissions.

use std::io::Write as _;
use std::path::Path;

use clap::CommandFactory as _;

use crate::args::{Cli, Common};
use crate::exit::{Exit, Failure, TABLE};

/// `completions SHELL`.
pub(crate) fn completions(shell: clap_complete::Shell) -> Exit {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "leasehold", &mut text);
    print(&String::from_utf8_lossy(&text));
    Exit::Fine
}

/// `man DIR`: one page for the command and one for each subcommand.
pub(crate) fn man(folder: &Path) -> Result<Exit, Failure> {
    let fault = |error| Failure::fault(&format!("cannot write into {}", folder.display()), error);
    std::fs::create_dir_all(folder).map_err(fault)?;
    clap_mangen::generate_to(Cli::command().after_long_help(TABLE), folder).map_err(fault)?;
    Ok(Exit::Fine)
}

/// `schema`.
pub(crate) fn schema(common: &Common) -> Result<Exit, Failure> {
    match scheme(common) {
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            print(leasehold::sqlite::SCHEMA);
            Ok(Exit::Fine)
        }
        "redis" | "rediss" | "redis+unix" => Err(Failure::input("a Redis has no schema: there is nothing to prepare")),
        other => Err(unknown(other)),
    }
}

/// `acl`.
#[cfg_attr(not(feature = "redis"), expect(unused_variables, reason = "only a server has users to tell apart"))]
pub(crate) fn acl(common: &Common, operator: bool) -> Result<Exit, Failure> {
    match scheme(common) {
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+unix" => {
            print(&format!("{}\n", redis_acl(&common.store, operator)));
            Ok(Exit::Fine)
        }
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            print(
                "# A SQLite file has no users of its own: whoever may write the file and its folder may lock and break locks.\n\
                 # For one user, folder and file for nobody else (the folder of `sqlite://` is made so):\n\
                 chmod 700 FOLDER && chmod 600 FOLDER/locks.db*\n\
                 # For a group, both for the group, and new files of the folder for the group as well:\n\
                 chgrp GROUP FOLDER FOLDER/locks.db* && chmod 2770 FOLDER && chmod 660 FOLDER/locks.db*\n",
            );
            Ok(Exit::Fine)
        }
        other => Err(unknown(other)),
    }
}

#[cfg(feature = "redis")]
fn redis_acl(store: &str, operator: bool) -> String {
    let url = url::Url::parse(store).ok();
    let prefix = url.and_then(|url| {
        let prefix = url.query_pairs().find(|(name, _)| name == "prefix");
        prefix.map(|(_, prefix)| prefix.into_owned())
    });
    let prefix = prefix.unwrap_or_else(|| leasehold::redis::Settings::default().prefix);
    if operator { leasehold::redis::operator_acl(&prefix) } else { leasehold::redis::acl(&prefix) }
}

fn scheme(common: &Common) -> &str {
    common.store.split_once(':').map_or("", |(scheme, _)| scheme)
}

fn unknown(scheme: &str) -> Failure {
    Failure::input(format!("nothing is known of stores with `{scheme}://` here"))
}

/// A reader that went away (`| head`) is no fault of ours.
fn print(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}
