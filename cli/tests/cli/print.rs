//! What is printed without a store.

use crate::process::{leasehold, output, tell, told};
use crate::store::Store;

#[test]
fn completions_for_every_shell() {
    let store = Store::any();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, text, _) = tell(&store, &["completions", shell]);
        assert_eq!(code, 0);
        assert!(text.contains("max-hold") && !text.contains("__start"), "{shell}");
    }
}

#[test]
fn a_man_page_for_every_subcommand() {
    let store = Store::any();
    assert_eq!(tell(&store, &["man", "pages/man1"]), (0, String::new(), String::new()));
    let page = |name: &str| std::fs::read_to_string(store.file("pages/man1").join(name)).unwrap();
    assert!(page("leasehold.1").contains("Exit codes"));
    for name in ["run", "status", "ls", "watch", "break", "doctor"] {
        assert!(page(&format!("leasehold-{name}.1")).contains(".TH"));
    }
    assert!(page("leasehold-run.1").contains("121"));
    assert_eq!(tell(&store, &["man", "/proc/nowhere"]).0, 125);
}

#[test]
fn help_has_the_codes_and_goes_to_standard_output() {
    let store = Store::any();
    for args in [&["--help"][..], &["run", "--help"]] {
        let (code, text, stderr) = tell(&store, args);
        assert_eq!((code, &*stderr), (0, ""));
        assert!(text.contains("  121      the lease was lost"), "{text}");
        assert!(!text.contains("sqlite:///") && !text.contains("__"), "{text}");
    }
    let (code, text, _) = tell(&store, &["--version"]);
    assert_eq!((code, text), (0, format!("leasehold {}", env!("CARGO_PKG_VERSION"))));
    assert_eq!(tell(&store, &[]).0, 2);
}

#[test]
fn a_store_in_the_environment_is_not_shown() {
    let store = Store::any();
    let mut command = leasehold(&store, &["run", "--help"]);
    let (_, text, _) = told(&output(command.env("LEASEHOLD_STORE", "redis://:hunter2@host")));
    assert!(text.contains("LEASEHOLD_STORE") && !text.contains("hunter2"), "{text}");
}

#[cfg(feature = "sqlite")]
#[test]
fn the_schema_is_sql() {
    let store = Store::any();
    let (code, text, _) = tell(&store, &["schema"]);
    assert_eq!(code, 0);
    rusqlite::Connection::open_in_memory().unwrap().execute_batch(&text).unwrap();
    assert_eq!(tell(&store, &["--store", "redis://127.0.0.1", "schema"]).0, 2);
}

#[cfg(feature = "redis")]
#[test]
fn the_permissions_are_those_of_the_prefix() {
    let store = Store::any();
    let (code, text, _) = tell(&store, &["acl", "--store", "redis://127.0.0.1:1?prefix=team%3A"]);
    assert_eq!(code, 0);
    assert_eq!(text, leasehold::redis::acl("team:"));
    let (_, text, _) = tell(&store, &["acl", "--store", "redis://127.0.0.1:1"]);
    assert_eq!(text, leasehold::redis::acl("leasehold:"));
    let (_, text, _) = tell(&store, &["acl", "--operator", "--store", "redis://127.0.0.1:1"]);
    assert_eq!(text, leasehold::redis::operator_acl("leasehold:"));
}
