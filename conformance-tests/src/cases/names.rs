//! Names of locks, and the stored form of their state.

use leasehold_core::{ErrorKind, LockName};

use crate::clients::{handoff_bound, hold, is_free, kind_of, long_client, queued};
use crate::fault::Tamper;
use crate::fixture::{Fixture, Route};
use crate::support::{AT_ONCE, join, name};
use crate::timing_control::in_time;

/// Names that a layer could confuse with one another or interpret as syntax.
fn tricky() -> Vec<LockName> {
    let mut names: Vec<String> = [
        // Case, spaces and Unicode forms, which text collations merge.
        "job",
        "Job",
        "JOB",
        "jöb",
        "jo\u{308}b",
        "job\u{301}",
        "ｊｏｂ",
        "job ",
        " job",
        "job\t",
        "job\n",
        "job\0",
        "\0",
        " ",
        "ß",
        "ss",
        "ﬀ",
        "ff",
        // Syntax of keys, patterns, paths and scripts.
        "jo",
        "job/",
        "job/1",
        "job/10",
        "job0",
        "job%",
        "job:1",
        "job%2F1",
        "%",
        "%%",
        "%2",
        "~",
        "{job}",
        "{job}1",
        "{",
        "}",
        "{}",
        "*",
        "?",
        "[a]",
        "\\",
        "'",
        "\"",
        "`",
        "$",
        ";",
        "--",
        "/",
        "//",
        ".",
        "..",
        "../job",
        "zookeeper",
        "a,b",
        "a b",
        "a+b",
        "a=b",
        "#",
        "|",
        // Characters that are not letters.
        "🔒",
        "名前",
        "\u{feff}job",
        "job\u{200b}",
        "\u{202e}job",
        "\r\n",
        "\u{7f}",
        "\u{85}",
    ]
    .map(str::to_owned)
    .to_vec();
    // Lengths around the limit at which an encoding changes its form, plain and three times as long.
    for length in [64, 65, 66, 80, 199, 200, 201, 255, 256, 512, LockName::MAX_BYTES - 1, LockName::MAX_BYTES] {
        names.push("x".repeat(length));
        names.push(format!("{}y", "x".repeat(length - 1)));
        names.push("/".repeat(length));
    }
    names.iter().map(|text| name(text)).collect()
}

/// Invariant 16: different names are different locks, so all are held at once.
pub async fn all_names_are_distinct(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let mut guards = Vec::new();
    for name in tricky() {
        let guard = ann.lock(name.as_str()).try_acquire().await;
        let guard = guard.unwrap_or_else(|error| panic!("{name:?} does not work as a name: {error:?}"));
        guards.push(guard.unwrap_or_else(|| panic!("{name:?} is confused with the name of a held lock")));
    }
    for guard in &guards {
        assert!(
            !is_free(&bob, guard.name()).await,
            "{:?} is held, but an acquire of the same name succeeds",
            guard.name()
        );
    }
    for guard in guards {
        let name = guard.name().clone();
        guard.release().await.unwrap_or_else(|error| panic!("{name:?} cannot be released: {error:?}"));
        assert!(is_free(&bob, &name).await, "{name:?} was released, but is not free");
    }
}

/// Invariant 16: a waiter of any name is notified.
pub async fn a_waiter_gets_a_lock_with_any_name(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    for strange in ["{job} 1/%2F\0\n'\"🔒", &"/".repeat(LockName::MAX_BYTES)] {
        let name = name(strange);
        let guard = hold(&ann, &name).await;
        let waiter = tokio::spawn(hold(&bob, &name));
        queued(fixture, &bob, &name, (1, 1)).await;
        guard.release().await.expect("a release");
        let bound = handoff_bound(&bob.capabilities());
        let next = in_time(bound, "the waiter of an unusual name acquires the lock at once", join(waiter)).await;
        next.release().await.expect("a release");
    }
}

/// Invariant 16: the encoding of names is frozen: the server stores each lock under its frozen name.
pub async fn the_encoding_is_frozen(fixture: &dyn Fixture) {
    let ann = long_client(fixture, Route::Clear).await;
    for name in tricky() {
        let guard = hold(&ann, &name).await;
        let record = fixture.record(&name).await;
        assert!(record.lease().is_some(), "the server has no lease under the frozen form of {name:?}");
        assert_eq!(record.last_token, Some(guard.fencing_token()), "{name:?} is stored under another name");
        guard.release().await.expect("a release");
        assert_eq!(fixture.record(&name).await.lease(), None);
    }
}

/// Stored state of another format version causes a typed error and never a grant. The backend does not change it.
pub async fn another_format_version_is_an_error(fixture: &dyn Fixture) {
    unreadable(fixture, Tamper::OtherVersion).await;
}

/// Unreadable stored state causes a typed error and never a grant. Other locks are not affected.
pub async fn an_unreadable_record_is_an_error(fixture: &dyn Fixture) {
    unreadable(fixture, Tamper::Corrupt).await;
}

async fn unreadable(fixture: &dyn Fixture, tamper: Tamper) {
    let ann = long_client(fixture, Route::Clear).await;
    let name = name("unreadable");
    hold(&ann, &name).await.release().await.expect("a release");
    if let Err(unsupported) = fixture.tamper(&name, tamper).await {
        assert!(!unsupported.reason.is_empty());
        assert!(is_free(&ann, &name).await, "a readable record is free");
        return;
    }
    let refused = ann.lock(name.as_str()).acquire().await;
    assert_eq!(kind_of(&refused), ErrorKind::Unsupported, "{refused:?}");
    let refused = ann.lock(name.as_str()).try_acquire().await;
    assert_eq!(kind_of(&refused), ErrorKind::Unsupported, "{refused:?}");
    tokio::time::sleep(AT_ONCE).await;
    // The backend does not repair it, and other locks are not affected.
    assert_eq!(kind_of(&ann.lock(name.as_str()).try_acquire().await), ErrorKind::Unsupported);
    assert!(is_free(&ann, &crate::support::name("readable")).await);
}
