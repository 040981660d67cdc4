//! The man pages: what the command line says of itself, and the sections that it cannot know.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::args;
use crate::exit::{Exit, Failure, TABLE};

/// Examples of each command, each with what it is for.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "run",
        &[
            (
                "One of these runs at a time, on all machines that use this Redis:",
                "LEASEHOLD_STORE=redis://redis.internal:6379 leasehold run nightly/report -- ./report.sh --all",
            ),
            (
                "A job of cron that runs on one of several machines, and not again on one whose clock is behind:",
                "leasehold run report --no-wait -E 0 --min-hold 1m --max-hold 30m -- /usr/local/bin/report",
            ),
            (
                "On one machine, for a service or for several users:",
                "leasehold run import --store sqlite:///var/lib/app/locks.db -- ./import",
            ),
            ("A name that begins with a dash:", "leasehold run -- -nightly -- ./report.sh"),
        ],
    ),
    (
        "status",
        &[
            (
                "Wait until a lock is free, in a script:",
                "while leasehold status nightly --exit-code >/dev/null; do sleep 1; done",
            ),
            ("The host of the holder:", "leasehold status nightly --json | jq -r .holders[0].host"),
        ],
    ),
    ("ls", &[("What is held below a prefix:", "leasehold ls --prefix orders/")]),
    ("watch", &[("Wait until somebody holds the lock:", "leasehold watch nightly | grep -m1 'held by'")]),
    ("break", &[("End the lease of a holder that is gone, without a question:", "leasehold break nightly --yes")]),
    ("doctor", &[("In a start script, before the service:", "leasehold doctor --store redis://redis.internal:6379")]),
    ("schema", &[("The tables of a SQLite file:", "leasehold schema sqlite | sqlite3 /var/lib/app/locks.db")]),
    (
        "redis",
        &[
            ("A user who may lock:", "redis-cli ACL SETUSER locks on '>PASSWORD' $(leasehold acl redis)"),
            (
                "A user who may only read:",
                "redis-cli ACL SETUSER monitor on '>PASSWORD' $(leasehold acl redis --read-only)",
            ),
        ],
    ),
    (
        "completions",
        &[("For bash:", "leasehold completions bash > ~/.local/share/bash-completion/completions/leasehold")],
    ),
    ("man", &[("For this user:", "leasehold man ~/.local/share/man/man1")]),
];

/// What the commands read from the environment, and what `run` sets.
const READS: &[(&str, &str)] = &[
    ("LEASEHOLD_STORE", "The URL of the store, when --store does not give it. Empty counts as unset."),
    ("XDG_STATE_HOME, HOME", "Where the file of sqlite:// is, when no path is given."),
];
const SETS: &[(&str, &str)] = &[
    ("LEASEHOLD_FENCING_TOKEN", "For the command: a number that grows with every grant. Resources refuse lower ones."),
    ("LEASEHOLD_NAME", "For the command: the name of the lock."),
    (
        "LEASEHOLD_STORE",
        "For the command: the resolved URL of the store, with its password if it has one, so that the command uses the same \
         store.",
    ),
];

const FILES: &[(&str, &str)] = &[
    ("$XDG_STATE_HOME/leasehold/locks.db", "The store of sqlite://."),
    (
        "~/.local/state/leasehold/locks.db",
        "The same without XDG_STATE_HOME. Each user has a file of his own: jobs of cron and services that are to share a lock give \
         a path, as in sqlite:///var/lib/app/locks.db.",
    ),
    (
        "FILE-wal, FILE-shm, FILE-bell",
        "Parts of the store: they stay beside the file and are not deleted while it is in use.",
    ),
];

const OTHERS_EXIT: &str = "\
0        done
1        the answer is no: break was not confirmed, doctor found something
         wrong, or status --exit-code found the lock free
2        wrong input; nothing was sent to the store
122      the store could not be reached or did not answer
123      the store refused (user, permission, version, full)
125      leasehold itself failed, as when its output cannot be written";

/// `man DIR`: one page for the command and one for each subcommand.
pub(crate) fn write(folder: &Path) -> Result<Exit, Failure> {
    let fault = |error| Failure::fault(&format!("cannot write into {}", folder.display()), error);
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
    // The table of exit codes is a section of its own.
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

/// As the usage says it, with the `--` that [`clap_mangen`] leaves out.
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
