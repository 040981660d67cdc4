//! Under a first process that reaps nothing, as in many containers.
#![cfg(target_os = "linux")]

use std::process::Command;

use rustix::process::{Signal, getpid, set_child_subreaper};

use crate::process::{Running, all_children, id_of, outcome, output, state, watcher};
use crate::store::Store;

/// Set in the process that plays the first process.
const ROLE: &str = "LEASEHOLD_TEST_REAPS_NOTHING";

#[test]
fn no_way_out_leaves_a_zombie() {
    if std::env::var_os(ROLE).is_none() {
        // In a process of its own, because the processes of other tests could become children of this one.
        let mut role = Command::new(std::env::current_exe().unwrap());
        role.args(["--exact", "zombies::no_way_out_leaves_a_zombie", "--nocapture"]).env(ROLE, "1");
        let result = output(&mut role);
        assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
        return;
    }
    set_child_subreaper(Some(getpid())).unwrap();
    let store = Store::sqlite();
    let none_after = |what: &str| {
        let zombies: Vec<_> =
            all_children(std::process::id()).into_iter().filter(|&id| state(id) == Some('Z')).collect();
        assert_eq!(zombies, [] as [u32; 0], "after {what}");
    };
    assert_eq!(outcome(&store, &["run", "x", "--", "true"]).0, 0);
    none_after("a success");
    assert_eq!(outcome(&store, &["run", "x", "--", "sh", "-c", "(sleep 0.05 &) ; sleep 0.3"]).0, 0);
    none_after("a command whose child process ended before it");
    assert_eq!(outcome(&store, &["run", "x", "--store", "redis://127.0.0.1:1", "-n", "--", "true"]).0, 122);
    none_after("a store that cannot be reached");

    let holder = Running::start(&store, &["run", "x", "--", "sh", "-c", "echo $$ > id; exec sleep 600"]);
    id_of(&store.file("id"));
    assert_eq!(outcome(&store, &["run", "x", "-n", "--", "true"]).0, 120);
    none_after("a refusal");
    for signal in [Signal::TERM, Signal::INT] {
        let waiter = Running::start(&store, &["run", "x", "--", "true"]);
        watcher(waiter.id());
        // Its handlers are installed before the watcher is started.
        waiter.signal(signal);
        assert_eq!(waiter.end().0, 128 + signal.as_raw());
        none_after("a signal during the wait");
    }
    holder.signal(Signal::TERM);
    assert_eq!(holder.end().0, 143);
    none_after("a signal to the command");

    let lost = Running::start(&store, &["run", "y", "--ttl", "1s", "--", "sh", "-c", "echo $$ > lost; exec sleep 600"]);
    id_of(&store.file("lost"));
    store.remove_records();
    assert_eq!(lost.end().0, 121);
    none_after("a loss");
}
