//! The man pages: the texts of the command line, and sections that clap does not know.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::args;
use crate::exit::{Exit, Failure, TABLE};

/// Examples of each subcommand, each with a description.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "run",
        &[
            #[cfg(feature = "redis")]
            (
                "Run one instance at a time on all machines that use this Redis:",
                "LEASEHOLD_STORE=redis://redis.internal:6379 leasehold run nightly/report -- ./report.sh --all",
            ),
            #[cfg(feature = "redis")]
            (
                "The same with three independent Redis servers, one of which may fail:",
                "LEASEHOLD_STORE=redis+quorum://one,two,three leasehold run nightly/report -- ./report.sh --all",
            ),
            (
                "A cron job that runs on one of several machines, and not again on a machine whose clock is behind:",
                "leasehold run report --no-wait -E 0 --min-hold 1m --max-hold 30m -- /usr/local/bin/report",
            ),
            #[cfg(feature = "sqlite")]
            (
                "A lock on one machine, for a service or for several users:",
                "leasehold run import --store sqlite:///var/lib/app/locks.db -- ./import",
            ),
            (
                "A script with the name in a variable, whatever the name begins with:",
                "leasehold run --name=\"$name\" -- ./report.sh",
            ),
        ],
    ),
    (
        "status",
        &[
            (
                "Wait in a script until a lock is free:",
                "while leasehold status nightly --exit-code >/dev/null; do sleep 1; done",
            ),
            ("Print the host of the holder:", "leasehold status nightly --json | jq -r .holders[0].host"),
        ],
    ),
    ("ls", &[("List the locks that are held and whose names begin with a prefix:", "leasehold ls --prefix orders/")]),
    ("watch", &[("Wait until a client holds the lock:", "leasehold watch nightly | grep -m1 'held by'")]),
    ("break", &[("End the lease of a dead holder without confirmation:", "leasehold break nightly --yes")]),
    #[cfg(feature = "redis")]
    (
        "doctor",
        &[(
            "Check the store in a start script, before the service starts:",
            "leasehold doctor --store redis://redis.internal:6379",
        )],
    ),
    (
        "schema",
        &[
            #[cfg(feature = "sqlite")]
            ("Create the tables of a SQLite file:", "leasehold schema sqlite | sqlite3 /var/lib/app/locks.db"),
            #[cfg(feature = "mysql")]
            ("Create the table in a MySQL or MariaDB database:", "leasehold schema mysql | mysql app"),
        ],
    ),
    #[cfg(feature = "redis")]
    (
        "functions",
        &[
            ("Load the functions into a Redis server:", "leasehold functions redis | redis-cli -x FUNCTION LOAD"),
            (
                "Use them:",
                "leasehold run nightly --store 'redis://locks@redis.internal/?scripts=functions' -- ./report.sh",
            ),
        ],
    ),
    #[cfg(feature = "etcd")]
    (
        "etcd",
        &[(
            "Create a role and give it to a user:",
            "leasehold acl etcd | sh && etcdctl user grant-role locks leasehold",
        )],
    ),
    #[cfg(feature = "mysql")]
    (
        "mysql",
        &[(
            "Let a user acquire locks in the database `app`:",
            "leasehold acl mysql --database app --user \"'app'@'%'\" | mysql",
        )],
    ),
    #[cfg(feature = "redis")]
    (
        "redis",
        &[
            (
                "Create a user who can acquire locks:",
                "redis-cli ACL SETUSER locks on '>PASSWORD' $(leasehold acl redis)",
            ),
            (
                "Create a user who can only read:",
                "redis-cli ACL SETUSER monitor on '>PASSWORD' $(leasehold acl redis --read-only)",
            ),
        ],
    ),
    #[cfg(feature = "zk")]
    (
        "zk",
        &[(
            "Let a user acquire locks:",
            "leasehold acl zk --user locks | sed 's/PASSWORD/secret/' | zkCli.sh -server zookeeper.internal",
        )],
    ),
    (
        "completions",
        &[(
            "Install the completions for bash:",
            "leasehold completions bash > ~/.local/share/bash-completion/completions/leasehold",
        )],
    ),
    ("man", &[("Install the man pages for this user:", "leasehold man ~/.local/share/man/man1")]),
];

/// Environment variables that the subcommands read, and those that `run` sets.
const READS: &[(&str, &str)] = &[
    ("LEASEHOLD_STORE", "URL of the store, if --store is not given. An empty value counts as unset."),
    ("XDG_STATE_HOME, HOME", "Location of the file of sqlite://, if the URL has no path."),
];
const SETS: &[(&str, &str)] = &[
    (
        "LEASEHOLD_FENCING_TOKEN",
        "Set for the command: a number that rises with every grant. Let resources refuse lower numbers.",
    ),
    ("LEASEHOLD_NAME", "Set for the command: the name of the lock."),
    (
        "LEASEHOLD_STORE",
        "Set for the command: the resolved URL of the store, with its password if it has one. The command then uses \
         the same store.",
    ),
];

const FILES: &[(&str, &str)] = &[
    ("$XDG_STATE_HOME/leasehold/locks.db", "The store of sqlite://."),
    (
        "~/.local/state/leasehold/locks.db",
        "The same file if XDG_STATE_HOME is not set. Each user has a different file. Give a path to cron jobs and \
         services that share a lock, as in sqlite:///var/lib/app/locks.db.",
    ),
    (
        "FILE-wal, FILE-shm, FILE-bell",
        "Parts of the store. Keep them beside the file, and do not delete them while it is in use.",
    ),
];

const OTHERS_EXIT: &str = "\
0        done
1        break was not confirmed, doctor found an error, or status
         --exit-code found the lock free
2        wrong input; nothing was sent to the store
122      the store could not be reached or did not reply
123      the store refused (user, permission, version, full)
125      leasehold itself failed, for example to write its output";

/// `man DIR`: one page for the command and one for each subcommand.
pub(crate) fn write(folder: &Path) -> Result<Exit, Failure> {
    let fault = |error| Failure::fault(&format!("cannot write to {}", folder.display()), error);
    std::fs::create_dir_all(folder).map_err(fault)?;
    let mut command = args::command().disable_help_subcommand(true);
    command.build();
    pages(&command, folder).map_err(fault)?;
    Ok(Exit::Success)
}

fn pages(command: &clap::Command, folder: &Path) -> io::Result<()> {
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        pages(subcommand, folder)?;
    }
    // The exit codes have their own section.
    let man = Man::new(command.clone().after_help("").after_long_help(""));
    let mut file = BufWriter::new(File::create(folder.join(man.get_filename()))?);
    page(command, &man, &mut file)?;
    file.flush()
}

fn page(command: &clap::Command, man: &Man, file: &mut dyn Write) -> io::Result<()> {
    let takes = |option: &str| command.get_arguments().any(|argument| argument.get_id() == option);
    let is = |name: &str| command.get_name() == name;
    man.render_title(file)?;
    man.render_name_section(file)?;
    synopsis(command).to_writer(file)?;
    man.render_description_section(file)?;
    man.render_options_section(file)?;
    if command.has_subcommands() {
        man.render_subcommands_section(file)?;
    }
    let exits = if is("run") || is("leasehold") { TABLE } else { OTHERS_EXIT };
    verbatim("EXIT STATUS", exits).to_writer(file)?;
    if takes("store") || is("leasehold") {
        let sets = if is("run") { SETS } else { &[] };
        definitions("ENVIRONMENT", &[READS, sets].concat()).to_writer(file)?;
        definitions("FILES", FILES).to_writer(file)?;
    }
    let shown: Vec<_> =
        EXAMPLES.iter().filter(|(name, _)| is(name) || is("leasehold")).flat_map(|(_, all)| *all).collect();
    if !shown.is_empty() {
        examples(&shown).to_writer(file)?;
    }
    if command.get_version().is_some() {
        man.render_version_section(file)?;
    }
    Ok(())
}

/// The usage with its `--`, which [`clap_mangen`] leaves out.
fn synopsis(command: &clap::Command) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]).control("nf", []);
    for line in usage.lines() {
        roff.text([bold(line.trim_start_matches("Usage:").trim())]);
    }
    roff.control("fi", []);
    roff
}

fn verbatim(section: &str, text: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [section]).control("nf", []);
    for line in text.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff
}

fn definitions(section: &str, rows: &[(&str, &str)]) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [section]);
    for (term, text) in rows {
        roff.control("TP", []).text([bold(*term)]).text([roman(*text)]);
    }
    roff
}

fn examples(rows: &[&(&str, &str)]) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXAMPLES"]);
    for (text, command) in rows {
        roff.control("PP", []).text([roman(*text)]);
        roff.control("RS", ["4"]).control("nf", []).text([roman(*command)]).control("fi", []).control("RE", []);
    }
    roff
}
