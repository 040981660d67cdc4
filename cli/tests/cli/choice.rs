//! Which store is used, and what `--verbose` prints.

use std::process::Command;

use crate::process::{leasehold, outcome, outcome_of, output};
use crate::store::Store;

on_every_store!(verbose_names_the_store, the_command_gets_the_resolved_store);

fn verbose_names_the_store(store: &Store) {
    let (code, stdout, stderr) = outcome(store, &["status", "x", "--verbose"]);
    assert_eq!((code, stdout.lines().next()), (0, Some("lock     x")));
    // A password is not shown.
    let shown = store.url().replace("hunter2", "***");
    assert_eq!(stderr, format!("leasehold: the store is {shown}"));
    let (code, stdout, _) = outcome(store, &["doctor"]);
    assert_eq!(code, 0);
    assert!(stdout.starts_with(&format!("ok  store: {shown}\n")), "{stdout}");
}

fn the_command_gets_the_resolved_store(store: &Store) {
    let result = outcome(store, &["run", "x", "--", "sh", "-c", "echo $LEASEHOLD_STORE"]);
    assert_eq!(result, (0, store.url().to_owned(), String::new()));
}

#[test]
fn the_password_of_a_wrong_url_is_not_shown() {
    let store = Store::any();
    for url in [
        "mysql:s:hunter2@127.0.0.1:1/app",
        "mysql:///s:hunter2@127.0.0.1:1/app",
        "mysql://s:1/hunter2@127.0.0.1:1/app",
        "mysql://s:a#hunter2@127.0.0.1:1/app",
        "redis://hunter2@127.0.0.1:1",
        "redis+unix:///nowhere.sock?user=u&pass=hunter2&hunter2",
        "hunter2@127.0.0.1",
    ] {
        for args in [
            &["run", "x", "-v", "-n", "--", "true"][..],
            &["status", "x", "-v", "--json"],
            &["doctor", "-v"],
            &["ls", "-v"],
            &["status", "x", url],
        ] {
            let (code, stdout, stderr) = outcome_of(&output(leasehold(&store, args).env("LEASEHOLD_STORE", url)));
            assert!(code > 0 && !format!("{stdout}{stderr}").contains("hunter2"), "{url}: {stdout}{stderr}");
        }
    }
}

/// `leasehold` for a user with this home and no settings.
fn at_home(store: &Store, home: &str, args: &[&str]) -> Command {
    let mut command = leasehold(store, args);
    command.env("HOME", store.file(home)).env_remove("XDG_STATE_HOME").env_remove("LEASEHOLD_STORE");
    command
}

#[test]
fn the_users_own_file_is_resolved_for_the_command() {
    let store = Store::sqlite();
    let home = store.file("a home");
    std::fs::create_dir(&home).unwrap();
    let file = home.join(".local/state/leasehold/locks.db").display().to_string();
    let url = format!("sqlite://{}?timeout=2s", file.replace(' ', "%20"));
    // A command with another home uses the same store.
    let job = "HOME=/ leasehold status \"$LEASEHOLD_NAME\" --exit-code >/dev/null && echo $LEASEHOLD_STORE";
    let job = job.replace("leasehold status", &format!("'{}' status", env!("CARGO_BIN_EXE_leasehold")));
    let args = ["run", "x", "--store", "sqlite://?timeout=2s", "--verbose", "--", "sh", "-c", &job];
    let result = outcome_of(&output(&mut at_home(&store, "a home", &args)));
    assert_eq!(result, (0, url.clone(), format!("leasehold: the store is {url}")));
    for value in ["", "sqlite://"] {
        let (code, stdout, _) =
            outcome_of(&output(at_home(&store, "a home", &["doctor"]).env("LEASEHOLD_STORE", value)));
        assert_eq!(code, 0);
        assert!(stdout.contains(&format!("file: {file}\n")), "{value:?}: {stdout}");
    }
}

#[test]
fn nothing_is_created_in_a_home_that_does_not_exist() {
    let store = Store::sqlite();
    for args in [&["run", "x", "--", "touch", "ran"][..], &["doctor"], &["break", "x", "--yes"], &["status", "x"]] {
        let (code, _, stderr) = outcome_of(&output(&mut at_home(&store, "nobody", args)));
        assert!(code == 2 && stderr.contains("sqlite:///path/locks.db"), "{args:?}: {code} {stderr}");
    }
    assert_eq!(outcome_of(&output(&mut at_home(&store, "nobody", &["ls"]))).1, "no locks");
    assert!(!store.file("nobody").exists() && !store.file("ran").exists());
}

#[test]
fn a_missing_folder_is_not_an_empty_store() {
    let store = Store::sqlite();
    for args in [&["status", "x"][..], &["ls"]] {
        let url = "sqlite:///no/such/folder/locks.db";
        let (code, _, stderr) = outcome_of(&output(leasehold(&store, args).env("LEASEHOLD_STORE", url)));
        assert!(code == 2 && stderr.contains("/no/such/folder"), "{args:?}: {code} {stderr}");
    }
}

#[test]
fn a_name_may_begin_with_a_dash() {
    let store = Store::any();
    let result = outcome(&store, &["run", "--", "-x", "--", "sh", "-c", "echo \"$LEASEHOLD_NAME\" \"$1\"", "sh", "--"]);
    assert_eq!(result, (0, "-x --".to_owned(), String::new()));
    for args in [&["status", "--", "-x"][..], &["break", "--yes", "--", "-x"]] {
        assert_eq!(outcome(&store, args).0, 0, "{args:?}");
    }
}

#[test]
fn one_form_takes_every_name_of_a_variable() {
    let store = Store::any();
    for name in ["x", "-x", "--", "--help", "-", "a\nb", "a b", "$(touch ran)"] {
        let script = r#""$LEASEHOLD" run --name="$n" -- sh -c 'printf %s "$LEASEHOLD_NAME"
            "$LEASEHOLD" status --name="$n" --json' &&
            "$LEASEHOLD" break --name="$n" --yes --json"#;
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).current_dir(store.folder()).env("LEASEHOLD", env!("CARGO_BIN_EXE_leasehold"));
        let (code, stdout, stderr) = outcome_of(&output(shell.env("n", name).env("LEASEHOLD_STORE", store.url())));
        assert_eq!((code, &*stderr), (0, ""), "{name:?}");
        let rest = stdout.strip_prefix(name).unwrap_or_else(|| panic!("{name:?}: {stdout}"));
        let lines: Vec<serde_json::Value> = rest.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines.len() == 2 && lines.iter().all(|line| line["name"] == name), "{name:?}: {rest}");
        assert_eq!(lines[0]["held"], true, "{rest}");
    }
    for args in [&["run", "--name=", "--", "touch", "ran"][..], &["status", "--name="], &["break", "--name", ""]] {
        let (code, _, stderr) = outcome(&store, args);
        assert!(code == 2 && stderr.contains("missing or empty"), "{args:?}: {stderr}");
    }
    assert!(!store.file("ran").exists());
}
