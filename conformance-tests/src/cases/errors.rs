//! Errors: their kinds, their texts, and secrets that they must not contain.

use std::error::Error as _;
use std::fmt::Write;
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, HolderId, HolderInfo, LockClient, LockGuard, LockName, Mode};

use crate::clients::{build, builder, client, hold, kind_of, long_client, queued, steady_client};
use crate::fault::{PathFault, ServerFault};
use crate::fixture::{Fixture, Route};
use crate::logs::Logs;
use crate::support::{AT_ONCE, eventually, join, name};

/// Bad input gets `InvalidInput` before anything is sent.
pub async fn bad_input_is_refused_before_anything_is_sent(fixture: &dyn Fixture) {
    let ann = client(fixture, Route::Clear).await;
    let claimed = ann.capabilities();
    let lock = || ann.lock("input");
    let served = fixture.served().await;
    let longest = claimed.max_ttl;
    let wrong = [
        ("an empty name", ann.lock("")),
        ("a name that is too long", ann.lock("x".repeat(LockName::MAX_BYTES + 1))),
        ("a ttl of zero", lock().ttl(Duration::ZERO)),
        ("a ttl below the bound", lock().ttl(claimed.min_ttl - Duration::from_nanos(1))),
        ("a ttl above the bound", lock().ttl(longest + Duration::from_nanos(1))),
        ("a ttl that overflows", lock().ttl(Duration::MAX)),
        ("a max_hold of zero", lock().max_hold(Duration::ZERO)),
        ("a min_hold above the bound of a ttl", lock().min_hold(longest + Duration::from_nanos(1))),
        ("a min_hold that overflows", lock().min_hold(Duration::MAX)),
        ("a min_hold above max_hold", lock().min_hold(fixture.ttl() * 2).max_hold(fixture.ttl())),
    ];
    for (what, lock) in wrong {
        for refused in
            [lock.acquire().await.map(drop), lock.try_acquire().await.map(drop), lock.run(async |_| ()).await]
        {
            assert_eq!(kind_of(&refused), ErrorKind::InvalidInput, "{what}");
        }
    }
    for mode in [Mode::Exclusive, Mode::Shared].into_iter().filter(|mode| !claimed.modes.contains(mode)) {
        assert_eq!(kind_of(&lock().mode(mode).acquire().await), ErrorKind::Unsupported, "{mode:?}");
    }
    assert_eq!(kind_of(&ann.inspect("").await), ErrorKind::InvalidInput);
    for (what, builder) in [
        ("no margin", builder(fixture, Route::Clear).await.margin_percent(0)),
        ("a margin that leaves nothing", builder(fixture, Route::Clear).await.margin_percent(51)),
        (
            "a label that is too long",
            builder(fixture, Route::Clear).await.label("x".repeat(HolderInfo::MAX_LABEL_BYTES + 1)),
        ),
        ("a label with a control character", builder(fixture, Route::Clear).await.label("a\tb")),
    ] {
        let refused = builder.build().map(drop);
        assert_eq!(kind_of(&refused), ErrorKind::InvalidInput, "{what}");
    }
    tokio::time::sleep(fixture.ttl()).await;
    assert_eq!(fixture.served().await, served, "something was sent for input that is refused");
    // Extreme values are valid.
    let lock =
        lock().wait(Duration::MAX).max_hold(Duration::MAX).min_hold(Duration::from_nanos(1)).holder(HolderId::new());
    lock.acquire().await.expect("long and short names are valid").release().await.expect("a release");
}

/// An error is a fragment in lower case that names the lock, the backend and the action. It states no cause twice.
pub async fn an_error_names_the_action(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Faulty).await, long_client(fixture, Route::Clear).await);
    let name = name("named in errors");
    let guard = hold(&bob, &name).await;
    let mut errors = vec![("acquire", failed(ann.lock(name.as_str()).wait(AT_ONCE).acquire().await))];
    fixture.path(PathFault::DropTraffic).await;
    errors.push(("acquire", failed(ann.lock(name.as_str()).wait(AT_ONCE).acquire().await)));
    fixture.path(PathFault::Disconnect).await;
    errors.push(("acquire", failed(ann.lock(name.as_str()).wait(AT_ONCE).acquire().await)));
    errors.push(("acquire", failed(ann.lock(name.as_str()).try_acquire().await)));
    fixture.heal().await;
    errors.push(("acquire", failed(ann.lock(name.as_str()).ttl(Duration::ZERO).acquire().await)));
    let fixed = ann.lock("ends").ttl(fixture.ttl()).without_renewal().acquire().await.expect("nothing is broken");
    fixed.lost().await;
    let lost = failed(fixed.release().await);
    assert!(lost.to_string().contains("\"ends\""), "{lost}");
    for (verb, error) in errors {
        let text = error.to_string();
        let begins_lower = text.chars().next().is_some_and(|first| first.is_lowercase() || !first.is_alphabetic());
        assert!(begins_lower && !text.ends_with('.'), "not a fragment in lower case: {text}");
        assert!(text.contains(name.as_str()) && text.contains(verb), "does not name the action: {text}");
        let backend = ann.capabilities().backend;
        assert!(text.contains(backend) && error.backend() == Some(backend), "does not name the backend: {text}");
        assert_eq!(error.lock(), Some(&name));
        if let Some(source) = error.source() {
            assert!(!text.contains(&source.to_string()), "states its cause twice: {text}");
        }
    }
    drop(guard);
}

#[track_caller]
fn failed<T>(outcome: Result<T, Error>) -> Error {
    outcome.err().expect("this must fail")
}

/// The same situation has the same kind on every backend.
pub async fn the_same_situation_has_the_same_kind(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Faulty).await, long_client(fixture, Route::Clear).await);
    let name = name("kinds");
    let wait = fixture.ttl();
    let acquire = async || kind_of(&ann.lock(name.as_str()).wait(wait).acquire().await);
    let guard = hold(&bob, &name).await;
    assert_eq!(acquire().await, ErrorKind::Timeout, "another held it for the whole wait");
    fixture.path(PathFault::Disconnect).await;
    // Not with an established connection: the client notices that it is broken only when it sends a request, whose
    // outcome is then unknown.
    let fresh = long_client(fixture, Route::Faulty).await;
    let refused = fresh.lock(name.as_str()).wait(wait).acquire().await;
    assert_eq!(kind_of(&refused), ErrorKind::Unavailable, "nothing was sent");
    for fault in [PathFault::DropTraffic, PathFault::LoseReplies, PathFault::Hold] {
        // On an established connection: without one, the client knows that nothing was sent.
        fixture.heal().await;
        let well = async || ann.lock("well").try_acquire().await.is_ok();
        eventually(Duration::from_secs(3), "the client works again", well).await;
        fixture.path(fault.clone()).await;
        assert_eq!(acquire().await, ErrorKind::Indeterminate, "no reply, {fault:?}");
    }
    fixture.heal().await;
    fixture.deliver().await;
    guard.release().await.expect("a release");
    let back = async || ann.lock(name.as_str()).try_acquire().await.is_ok_and(|guard| guard.is_some());
    eventually(Duration::from_secs(3), "the client works again", back).await;
    let guard = hold(&ann, &name).await;
    fixture.path(PathFault::DropTraffic).await;
    assert_eq!(kind_of(&guard.release().await), ErrorKind::Indeterminate, "no reply to a release");
    fixture.heal().await;
    bob.shutdown().await.expect("the server replies");
    assert_eq!(kind_of(&bob.lock(name.as_str()).acquire().await), ErrorKind::Unavailable, "the client was shut down");
}

/// No Debug, Display or log output contains an owner token in any form. The case covers a whole lock lifecycle and
/// every kind of error.
pub async fn no_secret_is_shown(fixture: &dyn Fixture) {
    let logs = Logs::listen();
    let (ann, bob) = (steady_client(fixture, Route::Faulty).await, steady_client(fixture, Route::Clear).await);
    let name = name("secret");
    let mut shown = String::new();
    let mut owners: Vec<[u8; 16]> = Vec::new();
    let mut keep = |guard: &LockGuard, shown: &mut String| {
        let lease = guard.lease_ref();
        owners.push(*lease.claim.owner().as_bytes());
        let _ = write!(shown, "{guard:?} {lease:?} {:?} {:?} ", lease.claim, lease.claim.owner());
    };
    let show_client = |client: &LockClient, shown: &mut String| {
        let stats = client.stats();
        let _ = write!(shown, "{client:?} {stats:?} {:?} {:?} ", client.capabilities(), client.lock("x"));
    };

    let guard = hold(&ann, &name).await;
    keep(&guard, &mut shown);
    let waiter = tokio::spawn(hold(&bob, &name));
    queued(fixture, &bob, &name, (1, 1)).await;
    let _ = write!(shown, "{:?} ", bob.inspect(name.as_str()).await);
    tokio::time::sleep(fixture.ttl()).await;
    guard.release().await.expect("a release");
    let guard = join(waiter).await;
    keep(&guard, &mut shown);
    for fault in [PathFault::Disconnect, PathFault::DropTraffic, PathFault::LoseReplies] {
        fixture.path(fault).await;
        for error in [
            failed(ann.lock(name.as_str()).wait(AT_ONCE).acquire().await),
            failed(ann.lock("other").wait(AT_ONCE).acquire().await),
        ] {
            show_error(&error, &mut shown);
        }
        fixture.heal().await;
    }
    drop(guard);
    let guard = hold(&ann, &crate::support::name("lost")).await;
    keep(&guard, &mut shown);
    fixture.path(PathFault::DropTraffic).await;
    let _ = write!(shown, "{:?} {} ", guard.lost().await, guard.lost().await);
    show_error(&failed(guard.release().await), &mut shown);
    fixture.heal().await;
    if fixture.server(ServerFault::RefuseUser).await.is_ok() {
        let fresh = build(builder(fixture, Route::Clear).await);
        show_error(&failed(fresh.lock("refused").acquire().await), &mut shown);
        fixture.server(ServerFault::Restore).await.expect("the fault can be ended");
    }
    show_client(&ann, &mut shown);
    show_client(&bob, &mut shown);

    let log = logs.text();
    assert!(log.contains("secret"), "the log does not contain the lifecycle: the subscriber recorded nothing");
    for (place, text) in [("Debug or Display", &shown), ("a log line", &log)] {
        let text = text.to_lowercase();
        for owner in &owners {
            for form in forms(owner) {
                assert!(!text.contains(&form.to_lowercase()), "an owner token is in {place}");
            }
        }
        for secret in fixture.secrets() {
            assert!(!text.contains(&secret.to_lowercase()), "a password is in {place}");
        }
    }
}

fn show_error(error: &Error, shown: &mut String) {
    let _ = write!(shown, "{error} {error:?} {error:#?} ");
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(shown, "{error} {error:?} ");
        cause = error.source();
    }
}

/// The ways to write 16 bytes: digits with and without separators, numbers, a list, text.
fn forms(owner: &[u8; 16]) -> Vec<String> {
    let digits: Vec<_> = owner.iter().map(|byte| format!("{byte:02x}")).collect();
    let hex = digits.concat();
    let uuid = format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
    let list = format!("{owner:?}");
    let escaped = owner.escape_ascii().to_string();
    let numbers = [u128::from_be_bytes(*owner).to_string(), u128::from_le_bytes(*owner).to_string()];
    let halves = [hex[..16].to_owned(), hex[16..].to_owned()];
    [hex.clone(), uuid, list, escaped, digits.join(" "), digits.join(":")]
        .into_iter()
        .chain(numbers)
        .chain(halves)
        .collect()
}
