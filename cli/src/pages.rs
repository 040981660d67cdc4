//! Subcommands that need no store: completions, schema and permissions.

use crate::args;
#[cfg(any(feature = "etcd", feature = "mysql", feature = "redis", feature = "sqlite", feature = "zk"))]
use crate::args::Acl;
#[cfg(feature = "redis")]
use crate::args::FunctionStore;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
use crate::args::SqlStore;
use crate::exit::{Exit, Failure};
use crate::output::write_out;

/// `completions SHELL`.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result<Exit, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut args::command(), "leasehold", &mut text);
    print(&String::from_utf8_lossy(&text))
}

/// `schema STORE`.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) fn schema(store: SqlStore) -> Result<Exit, Failure> {
    match store {
        #[cfg(feature = "mysql")]
        SqlStore::Mysql => print(leasehold::mysql::SCHEMA),
        #[cfg(feature = "sqlite")]
        SqlStore::Sqlite => print(leasehold::sqlite::SCHEMA),
    }
}

/// `functions STORE`.
#[cfg(feature = "redis")]
pub(crate) fn functions(store: FunctionStore) -> Result<Exit, Failure> {
    match store {
        FunctionStore::Redis => print(&leasehold::redis::functions()),
    }
}

/// `acl STORE`.
#[cfg(any(feature = "etcd", feature = "mysql", feature = "redis", feature = "sqlite", feature = "zk"))]
pub(crate) fn acl(store: &Acl) -> Result<Exit, Failure> {
    match store {
        #[cfg(feature = "etcd")]
        Acl::Etcd { read_only, prefix, role } => print(&match read_only {
            true => leasehold::etcd::read_only_role(prefix, role),
            false => leasehold::etcd::role(prefix, role),
        }),
        #[cfg(feature = "mysql")]
        Acl::Mysql { read_only, database, user } => {
            let grants = match read_only {
                true => leasehold::mysql::read_only_grants(database, user),
                false => leasehold::mysql::grants(database, user),
            };
            print(&format!("{grants};\n"))
        }
        #[cfg(feature = "redis")]
        Acl::Redis { operator, read_only, functions, prefix } => {
            let calls = match functions {
                true => leasehold::redis::ScriptCalls::Functions,
                false => leasehold::redis::ScriptCalls::Eval,
            };
            let rules = match (operator, read_only) {
                (true, _) => leasehold::redis::operator_acl(prefix, calls)?,
                (_, true) => leasehold::redis::read_only_acl(prefix, calls)?,
                _ => leasehold::redis::acl(prefix, calls)?,
            };
            print(&format!("{rules}\n"))
        }
        #[cfg(feature = "sqlite")]
        Acl::Sqlite => print(
            "# SQLite has no users: whoever can write to the file and its folder can acquire and break locks.\n\
             # Restrict folder and file to one user (leasehold creates the folder of `sqlite://` that way):\n\
             chmod 700 FOLDER && chmod 600 FOLDER/locks.db*\n\
             # Restrict folder and file to a group, and give new files in the folder to the same group:\n\
             chgrp GROUP FOLDER FOLDER/locks.db* && chmod 2770 FOLDER && chmod 660 FOLDER/locks.db*\n",
        ),
        #[cfg(feature = "zk")]
        Acl::Zk { root, user } => print(&leasehold::zk::acl(root, user)?),
    }
}

fn print(text: &str) -> Result<Exit, Failure> {
    write_out(text).map(|_| Exit::Success)
}
