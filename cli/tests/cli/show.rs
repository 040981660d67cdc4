//! `status`, `ls`, `watch`, `break` and `doctor`.

use rustix::process::Signal;
use serde_json::Value;

use crate::process::{Running, id_of, is_running, json, leasehold, outcome, outcome_of, output, until};
use crate::store::Store;

on_every_store!(
    status_shows_who_holds,
    ls_shows_what_is_held,
    ls_counts_its_limit_after_filtering,
    ls_names_unreadable_records,
    watch_prints_each_change,
    break_ends_the_lease_and_raises_the_token,
    break_without_a_terminal_needs_yes,
    a_store_without_errors_passes_doctor,
);

const WAITS: [&str; 3] = ["sh", "-c", "echo $$ > id; read line < gate"];

fn status_shows_who_holds(store: &Store) {
    let free = json(store, &["status", "x", "--json"]);
    assert_eq!((&free["held"], &free["holders"]), (&false.into(), &Value::Array(Vec::new())));
    assert_eq!(free["waiters"], if store.has_queue() { 0.into() } else { Value::Null });
    assert_eq!(outcome(store, &["status", "x", "--exit-code"]).0, 1);

    let gate = store.gate();
    let args = [&["run", "x", "--label", "nightly build", "--ttl", "20s", "--"][..], &WAITS].concat();
    let run = Running::start(store, &args);
    id_of(&store.file("id"));
    let held = json(store, &["status", "x", "--json"]);
    assert_eq!((&held["name"], &held["held"]), (&"x".into(), &true.into()));
    let holder = &held["holders"][0];
    assert_eq!(holder["token"], held["last_token"]);
    assert!((1..=20_000).contains(&holder["ttl_left_ms"].as_u64().unwrap()), "{held}");
    assert_eq!((&holder["pid"], &holder["label"]), (&run.id().into(), &"nightly build".into()));
    assert_eq!(holder["host"], rustix::system::uname().nodename().to_str().unwrap());
    let (code, text, _) = outcome(store, &["status", "x", "--exit-code"]);
    assert_eq!(code, 0);
    for part in ["state    held", "started  20", "nightly build", &run.id().to_string(), &holder["token"].to_string()] {
        assert!(text.contains(part), "{text}");
    }
    gate.open();
    assert_eq!(run.end().0, 0);
    let free = json(store, &["status", "x", "--json"]);
    let last_token = if store.forgets_free_locks() { &Value::Null } else { &holder["token"] };
    assert_eq!((&free["held"], &free["last_token"]), (&false.into(), last_token));
}

fn ls_shows_what_is_held(store: &Store) {
    assert_eq!(outcome(store, &["ls"]), (0, "no locks".to_owned(), String::new()));
    let gate = store.gate();
    for name in ["jobs/free", "other"] {
        assert_eq!(outcome(store, &["run", name, "--", "true"]).0, 0);
    }
    let run = Running::start(store, &[&["run", "jobs/ä {1}", "--label", "me", "--"][..], &WAITS].concat());
    id_of(&store.file("id"));
    let names = |args: &[&str]| -> Vec<String> {
        let listing = json(store, args);
        assert_eq!(listing["whole"], true);
        let locks = listing["locks"].as_array().unwrap();
        assert!(locks.iter().all(|lock| lock["whole_name"] == true), "{listing}");
        locks.iter().map(|lock| lock["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&["ls", "--json"]), ["jobs/ä {1}"]);
    let known = |names: &[&'static str]| -> Vec<&'static str> {
        names.iter().copied().filter(|name| *name == "jobs/ä {1}" || !store.forgets_free_locks()).collect()
    };
    assert_eq!(names(&["ls", "--json", "--all"]), known(&["jobs/free", "jobs/ä {1}", "other"]));
    assert_eq!(names(&["ls", "--json", "--all", "--prefix", "jobs/"]), known(&["jobs/free", "jobs/ä {1}"]));
    assert_eq!(names(&["ls", "--json", "--prefix", "jobs/f"]), [""; 0]);
    let (_, text, _) = outcome(store, &["ls"]);
    assert!(text.starts_with("jobs/ä {1}: held by ") && text.contains(", me)"), "{text}");
    let (_, text, _) = outcome(store, &["ls", "--all", "--limit", "1"]);
    let are_more = text.ends_with("there are more: use --limit or --prefix");
    assert!(text.starts_with("jobs/ä {1}: held") && are_more != store.forgets_free_locks(), "{text}");
    assert_eq!(outcome(store, &["ls", "--limit", "0"]).0, 2);
    gate.open();
    assert_eq!(run.end().0, 0);
}

fn ls_counts_its_limit_after_filtering(store: &Store) {
    let gate = store.gate();
    for name in ["a", "b"] {
        assert_eq!(outcome(store, &["run", name, "--", "true"]).0, 0);
    }
    let run = Running::start(store, &[&["run", "held", "--"][..], &WAITS].concat());
    id_of(&store.file("id"));
    for limit in ["1", "2", "3", "4"] {
        let listing = json(store, &["ls", "--json", "--limit", limit]);
        assert_eq!((listing["locks"].as_array().unwrap().len(), &listing["whole"]), (1, &true.into()), "{listing}");
        let listing = json(store, &["ls", "--json", "--all", "--limit", limit]);
        let (limit, locks) = (limit.parse().unwrap(), if store.forgets_free_locks() { 1 } else { 3 });
        let (shown, whole) = (locks.min(limit), limit >= locks);
        assert_eq!(
            (listing["locks"].as_array().unwrap().len(), &listing["whole"]),
            (shown, &whole.into()),
            "{listing}"
        );
    }
    gate.open();
    assert_eq!(run.end().0, 0);
}

fn ls_names_unreadable_records(store: &Store) {
    assert_eq!(outcome(store, &["run", "jobs/newer", "--", "true"]).0, 0);
    store.set_newer_format("jobs/newer");
    let listing = json(store, &["ls", "--json"]);
    assert_eq!(listing["unreadable"], serde_json::json!(["jobs/newer"]), "{listing}");
    let (code, text, _) = outcome(store, &["ls", "--prefix", "jobs/"]);
    assert_eq!(code, 0);
    assert!(text.contains("jobs/newer: not readable by this version"), "{text}");
    assert_eq!(outcome(store, &["ls", "--prefix", "other/"]).1, "no locks");
}

fn watch_prints_each_change(store: &Store) {
    let watch = Running::spawn(
        leasehold(store, &["watch", "x", "--json", "--every", "50ms"])
            .stdout(std::fs::File::create(store.file("seen")).unwrap()),
    );
    let seen = || -> Vec<Value> {
        let text = std::fs::read_to_string(store.file("seen")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    until("it sees the free lock", || seen().len() == 1);
    let gate = store.gate();
    let run = Running::start(store, &[&["run", "x", "--"][..], &WAITS].concat());
    until("it sees the holder", || seen().len() == 2);
    gate.open();
    assert_eq!(run.end().0, 0);
    until("it sees the release", || seen().len() == 3);
    let held: Vec<bool> = seen().iter().map(|lock| lock["held"].as_bool().unwrap()).collect();
    assert_eq!(held, [false, true, false]);
    watch.signal(Signal::TERM);
    watch.end();
}

fn break_ends_the_lease_and_raises_the_token(store: &Store) {
    let (code, text, _) = outcome(store, &["break", "x", "--yes"]);
    assert_eq!((code, &*text), (0, "x: free, there is nothing to break"));
    let args = ["run", "x", "--ttl", "9s", "--", "sh", "-c", "echo $$ > id; sleep 600"];
    let run = Running::start(store, &args);
    let command = id_of(&store.file("id"));
    let before = json(store, &["status", "x", "--json"]);
    let broken = json(store, &["break", "x", "--yes", "--json"]);
    let token = |seen: &Value| seen["holders"][0]["token"].as_u64().unwrap();
    assert_eq!((&broken["broken"], token(&broken["before"])), (&true.into(), token(&before)));
    let raised = broken["raised_token"].as_u64().unwrap();
    assert!(raised > token(&before));
    let out = outcome(store, &["run", "x", "--no-wait", "--", "sh", "-c", "echo $LEASEHOLD_FENCING_TOKEN"]);
    assert_eq!(out.0, 0, "the lock is free at once: {out:?}");
    assert!(out.1.parse::<u64>().unwrap() > raised);
    let (code, _, stderr) = run.end();
    assert_eq!(code, 121, "{stderr}");
    assert!(!is_running(command));
}

fn break_without_a_terminal_needs_yes(store: &Store) {
    let gate = store.gate();
    let run = Running::start(store, &[&["run", "x", "--"][..], &WAITS].concat());
    id_of(&store.file("id"));
    let (code, _, stderr) = outcome(store, &["break", "x"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("--yes"), "{stderr}");
    let (code, text, _) = {
        let status = json(store, &["status", "x", "--json"]);
        assert_eq!(status["held"], true, "nothing was broken");
        outcome(store, &["break", "x", "--yes"])
    };
    assert_eq!(code, 0);
    let learns = if store.pushes_losses() { "learns of it at once" } else { "learns of it with its next renewal" };
    for part in ["broken", learns, "may still be writing"] {
        assert!(text.contains(part), "no {part}: {text}");
    }
    // The command has ended already where the loss is reported at once.
    if !store.pushes_losses() {
        gate.open();
    }
    run.end();
}

fn a_store_without_errors_passes_doctor(store: &Store) {
    let (code, text, stderr) = outcome(store, &["doctor"]);
    assert_eq!((code, &*stderr), (0, ""), "{text}");
    for part in ["connection", "round trip", "acquire and release", "limits of exclusion", "fit for locks"] {
        assert!(text.contains(part), "no {part}: {text}");
    }
    let report = json(store, &["doctor", "--json"]);
    assert_eq!(report["fit"], true);
    // Its test lock is released.
    assert_eq!(json(store, &["ls", "--json"])["locks"], Value::Array(Vec::new()));
}

#[test]
fn an_unreachable_store_fails_doctor_with_a_hint() {
    let store = Store::any();
    let mut command = leasehold(&store, &["doctor", "--json"]);
    let (code, stdout, _) = outcome_of(&output(command.env("LEASEHOLD_STORE", "redis://127.0.0.1:1")));
    assert_eq!(code, 1);
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&report["fit"], &report["checks"][1]["status"]), (&false.into(), &"error".into()));
    assert!(report["checks"][1]["hint"].as_str().unwrap().contains("firewall"), "{report}");
}

#[test]
fn ls_without_permission_names_the_command_that_prints_it() {
    let store = Store::redis();
    let url = store.user(&outcome(&store, &["acl", "redis"]).1);
    let (code, _, stderr) = outcome_of(&output(leasehold(&store, &["ls"]).env("LEASEHOLD_STORE", &url)));
    assert_eq!(code, 123, "{stderr}");
    assert!(stderr.contains("`leasehold acl redis --operator`") && !stderr.contains("leasehold_redis"), "{stderr}");
    let url = store.user(&outcome(&store, &["acl", "redis", "--operator"]).1);
    assert_eq!(outcome_of(&output(leasehold(&store, &["ls"]).env("LEASEHOLD_STORE", &url))).0, 0);
}
