//! The reader of the output closes the pipe.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use crate::process::{Running, leasehold, outcome_of, output};
use crate::store::Store;

on_every_store!(watch_ends_with_its_reader, watch_ends_when_grep_has_found_its_line);

/// `watch … | head -1`: the lock does not change any more, so `watch` writes nothing either.
fn watch_ends_with_its_reader(store: &Store) {
    let (reader, writer) = std::io::pipe().unwrap();
    let watch =
        Running::spawn(leasehold(store, &["watch", "x", "--every", "1h"]).stdout(writer).stderr(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(reader).read_line(&mut line).unwrap();
    assert!(line.ends_with("x: free, no record of it\n"), "{line}");
    let (code, _, stderr) = watch.end();
    assert_eq!((code, &*stderr), (0, ""));
}

fn watch_ends_when_grep_has_found_its_line(store: &Store) {
    let script = format!("'{0}' watch x | grep -m1 -c 'x: free'", env!("CARGO_BIN_EXE_leasehold"));
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env("LEASEHOLD_STORE", store.url()).current_dir(store.folder());
    assert_eq!(outcome_of(&output(&mut shell)), (0, "1".to_owned(), String::new()));
}

#[test]
fn a_failed_write_of_the_result_is_reported() {
    let store = Store::any();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let end = Running::spawn(leasehold(&store, &["status", "x"]).stdout(full)).end();
    assert_eq!(end.0, 125, "{}", end.2);
    assert!(end.2.contains("standard output"), "{}", end.2);
}
