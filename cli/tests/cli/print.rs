//! What is printed without a store.

use crate::process::{leasehold, outcome, outcome_of, output};
use crate::store::Store;

#[test]
fn completions_for_every_shell() {
    let store = Store::any();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, text, _) = outcome(&store, &["completions", shell]);
        assert_eq!(code, 0);
        assert!(
            text.contains("max-hold")
                && !text.contains("__start")
                && !text.replace("subcmd__watch", "").contains("__watch"),
            "{shell}"
        );
    }
}

#[test]
fn a_man_page_for_every_subcommand() {
    let store = Store::any();
    assert_eq!(outcome(&store, &["man", "pages/man1"]), (0, String::new(), String::new()));
    let page = |name: &str| std::fs::read_to_string(store.file("pages/man1").join(name)).unwrap();
    for name in [
        "",
        "-run",
        "-status",
        "-ls",
        "-watch",
        "-break",
        "-doctor",
        "-schema",
        "-functions",
        "-acl",
        "-acl-redis",
        "-completions",
    ] {
        let page = page(&format!("leasehold{name}.1"));
        let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
        for section in ["NAME", "SYNOPSIS", "\"EXIT STATUS\""] {
            assert_eq!(sections.iter().filter(|found| **found == section).count(), 1, "leasehold{name}: {sections:?}");
        }
        let has_store = page.contains("\\-\\-store") || name.is_empty();
        for section in ["ENVIRONMENT", "FILES"] {
            assert_eq!(sections.contains(&section), has_store, "leasehold{name}: {sections:?}");
        }
        assert!(sections.contains(&"EXAMPLES") || name == "-acl", "leasehold{name}: {sections:?}");
    }
    let run = page("leasehold-run.1");
    assert!(run.contains("[OPTIONS] <NAME> \\-\\- <CMD>..."), "{run}");
    assert!(run.contains("LEASEHOLD_FENCING_TOKEN") && run.contains("\n  121      the lease was lost"), "{run}");
    assert_eq!(outcome(&store, &["man", "/proc/nowhere"]).0, 125);
}

#[test]
fn help_goes_to_standard_output_and_the_long_one_has_the_codes() {
    let store = Store::any();
    for args in [&["--help"][..], &["run", "--help"], &["help", "run"]] {
        let (code, text, stderr) = outcome(&store, args);
        assert_eq!((code, &*stderr), (0, ""));
        assert_eq!(text.contains("  121      the lease was lost"), args[0] == "help", "{text}");
        assert!(!text.contains("__"), "{text}");
    }
    let (code, text, _) = outcome(&store, &["--version"]);
    assert_eq!((code, text), (0, format!("leasehold {}", env!("CARGO_PKG_VERSION"))));
    assert_eq!(outcome(&store, &[]).0, 2);
}

#[test]
fn a_store_in_the_environment_is_not_shown() {
    let store = Store::any();
    let mut command = leasehold(&store, &["run", "--help"]);
    let (_, text, _) = outcome_of(&output(command.env("LEASEHOLD_STORE", "redis://:hunter2@host")));
    assert!(text.contains("LEASEHOLD_STORE") && !text.contains("hunter2"), "{text}");
}

#[test]
fn the_schema_is_sql() {
    let store = Store::any();
    let (code, text, _) = outcome_of(&output(leasehold(&store, &["schema", "sqlite"]).env_remove("LEASEHOLD_STORE")));
    assert_eq!(code, 0);
    rusqlite::Connection::open_in_memory().unwrap().execute_batch(&text).unwrap();
    let (code, _, stderr) = outcome(&store, &["schema", "redis"]);
    assert!(code == 2 && stderr.contains("sqlite"), "{stderr}");
}

#[test]
fn the_permissions_need_no_store() {
    use leasehold::redis::ScriptCalls::{Eval, Functions};
    let store = Store::any();
    for (args, expected) in [
        (&["acl", "redis"][..], leasehold::redis::acl("leasehold:", Eval).unwrap()),
        (&["acl", "redis", "--prefix", "team:"], leasehold::redis::acl("team:", Eval).unwrap()),
        (&["acl", "redis", "--operator"], leasehold::redis::operator_acl("leasehold:", Eval).unwrap()),
        (&["acl", "redis", "--read-only"], leasehold::redis::read_only_acl("leasehold:", Eval).unwrap()),
        (&["acl", "redis", "--functions"], leasehold::redis::acl("leasehold:", Functions).unwrap()),
        (
            &["acl", "redis", "--functions", "--read-only"],
            leasehold::redis::read_only_acl("leasehold:", Functions).unwrap(),
        ),
        (&["functions", "redis"], leasehold::redis::functions().trim_end().to_owned()),
    ] {
        for url in ["", "sqlite:///nowhere/locks.db", "nonsense"] {
            let result = outcome_of(&output(leasehold(&store, args).env("LEASEHOLD_STORE", url)));
            assert_eq!(result, (0, expected.clone(), String::new()), "{args:?}");
        }
    }
}

#[test]
fn a_prefix_that_the_rules_cannot_have_is_refused() {
    let store = Store::any();
    for options in [&[][..], &["--operator"], &["--read-only"]] {
        let (code, stdout, stderr) = outcome(&store, &[&["acl", "redis", "--prefix", "a b"], options].concat());
        assert!(code == 2 && stdout.is_empty() && stderr.contains("space"), "{code}: {stderr}");
    }
}

/// A shell with a function in the place of `etcdctl` runs what is printed.
#[cfg(feature = "etcd")]
#[test]
fn a_shell_reads_the_role_of_etcd() {
    let store = Store::any();
    for (prefix, role) in [
        ("leasehold", "locks"),
        ("a'b c", "it's"),
        ("-x", "-r"),
        ("$(touch ran)`touch ran`", "\"a\\ b\""),
        ("a\nb", "*"),
    ] {
        for (options, permission) in [(&[][..], "readwrite"), (&["--read-only"], "read")] {
            let (prefix_option, role_option) = (format!("--prefix={prefix}"), format!("--role={role}"));
            let args = [&["acl", "etcd", &*prefix_option, &*role_option], options].concat();
            let (code, commands, stderr) = outcome(&store, &args);
            assert_eq!((code, &*stderr), (0, ""));
            let mut shell = std::process::Command::new("sh");
            shell
                .args(["-c", &format!("etcdctl() {{ printf '[%s]' \"$@\"; }}\n{commands}")])
                .current_dir(store.folder());
            let (code, read, stderr) = outcome_of(&output(&mut shell));
            let expected = format!(
                "[role][add][--][{role}][role][grant-permission][--prefix=true][--][{role}][{permission}][{prefix}/]"
            );
            assert_eq!((code, read, &*stderr), (0, expected, ""), "{commands}");
        }
    }
    assert!(!store.file("ran").exists());
}
