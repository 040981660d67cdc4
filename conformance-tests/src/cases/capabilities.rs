//! The capabilities of a backend are true in both directions: what it claims works, and what it does not claim has no
//! effect.

use std::collections::HashSet;
use std::time::Duration;

use leasehold_core::ErrorKind;
use leasehold_core::admin::{CheckStatus, ListedName, Listing};
use leasehold_core::backend::{
    AcquireOutcome, Delivery, LossNotice, PlaceNumber, RenewReply, RenewRequest, TtlScope, Waiting,
};
use leasehold_core::defaults::DEFAULT_TTL;

use crate::clients::{
    client, hold, kind_of, long_client, long_ttl, lost, offered, operator, poll_bound, queued, steady_client,
    steady_ttl,
};
use crate::direct::Direct;
use crate::fault::{PathFault, ServerFault, Tamper};
use crate::fixture::{Fixture, Route};
use crate::support::{AT_ONCE, Stopwatch, eventually, join, name};
use crate::timing_control::in_time;

/// The figures are consistent, and the same at every read.
pub async fn the_figures_make_sense(fixture: &dyn Fixture) {
    let ann = client(fixture, Route::Clear).await;
    let claimed = ann.capabilities();
    assert_eq!(claimed, client(fixture, Route::Faulty).await.capabilities(), "two clients of one backend differ");
    let name = claimed.backend;
    let plain = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '+');
    assert!(!name.is_empty() && plain, "{name:?} is not usable as the scheme of a URL");
    assert!(!claimed.min_ttl.is_zero() && claimed.min_ttl < claimed.max_ttl);
    assert!(claimed.min_ttl <= fixture.ttl() && claimed.max_ttl >= DEFAULT_TTL, "the default ttl must do");
    assert!(!claimed.ttl_granularity.is_zero() && claimed.ttl_granularity <= claimed.min_ttl);
    for bound in [claimed.min_ttl, claimed.max_ttl] {
        assert_eq!(claimed.round_up(bound), bound, "a bound of the ttl is no multiple of the granularity");
    }
    assert!(!claimed.max_place_ttl.is_zero() && claimed.renew_batch > 0);
    assert!(!claimed.call_bound.is_zero() && claimed.call_bound.as_secs() <= 10, "a call ends soon");
    assert!(!claimed.fencing.is_empty() && claimed.limits_of_exclusion.iter().all(|way| !way.is_empty()));
    hold(&ann, &crate::support::name("capabilities")).await.release().await.expect("a release");
    assert_eq!(ann.capabilities(), claimed, "the capabilities changed with the first call");
}

/// The shortest and the longest claimed ttl are granted as requested, by the record of the server.
pub async fn the_bounds_of_a_ttl_are_true(fixture: &dyn Fixture) {
    let ann = client(fixture, Route::Clear).await;
    let claimed = ann.capabilities();
    for (ttl, name) in [(claimed.min_ttl, name("shortest")), (claimed.max_ttl, name("longest"))] {
        let stopwatch = Stopwatch::start();
        let lock = ann.lock(name.as_str()).ttl(ttl).without_renewal();
        let guard = lock.acquire().await.unwrap_or_else(|error| panic!("{ttl:?} is refused: {error:?}"));
        let left = fixture.record(&name).await.lease().unwrap_or_default();
        let (more, less) = (claimed.ttl_granularity, claimed.ttl_granularity + stopwatch.elapsed());
        assert!(left <= ttl + more && left + less >= ttl, "the store granted {left:?} instead of {ttl:?}");
        if ttl == claimed.min_ttl {
            lost(&guard, ttl, "a lease of the shortest ttl is over after it").await;
        } else {
            guard.release().await.expect("a release");
        }
    }
}

/// Waiting works as claimed: a waiter gets a place in a queue of the server, or the time until its next poll.
pub async fn waiting_is_as_claimed(fixture: &dyn Fixture) {
    let (ann, bob) = (Direct::new(fixture, Route::Clear).await, Direct::new(fixture, Route::Clear).await);
    let (name, ttl) = (name("waiting"), fixture.ttl() * 20);
    let (holder, waiter) = (ann.claim(&name), bob.claim(&name));
    ann.granted(&holder, ttl).await;
    let reply = bob.acquire(&waiter, ttl).await.expect("nothing is broken");
    let waiters = fixture.record(&name).await.waiting();
    let claimed = bob.capabilities().clone();
    match (claimed.waiting, reply) {
        (Waiting::ServerQueue, AcquireOutcome::Queued { confirmation, retry_after }) => {
            assert_eq!(waiters, 1, "the server has no such place");
            assert!(confirmation.place > PlaceNumber::NONE && confirmation.ttl <= claimed.max_place_ttl);
            assert!(retry_after <= ttl, "the holder's lease lasts {ttl:?}, the next poll is in {retry_after:?}");
            bob.take_events();
            ann.release(&holder, Delivery::Confirmed).await.expect("a release");
            let pushed = async || !bob.take_events().is_empty();
            eventually(AT_ONCE, "the head of the queue is notified", pushed).await;
            let reply = bob.renew(RenewRequest::new(waiter, confirmation.place, ttl)).await;
            assert!(
                matches!(reply, RenewReply::Granted(_)),
                "the lock was handed to the place, and its renewal returned {reply:?}"
            );
        }
        (Waiting::Notification, AcquireOutcome::Contended { .. } | AcquireOutcome::Queued { .. }) => {
            bob.take_events();
            ann.release(&holder, Delivery::Confirmed).await.expect("a release");
            let pushed = async || !bob.take_events().is_empty();
            eventually(AT_ONCE, "the waiter is notified", pushed).await;
        }
        (Waiting::Poll, AcquireOutcome::Contended { retry_after }) => {
            assert!(waiters == 0 && retry_after <= ttl);
        }
        (claimed, reply) => panic!("the backend claims {claimed:?}, and a waiter gets {reply:?}"),
    }
}

/// The notification of an ended lease is as claimed: pushed at once, or not pushed.
pub async fn the_notice_of_a_loss_is_as_claimed(fixture: &dyn Fixture) {
    let ann = Direct::new(fixture, Route::Clear).await;
    let (name, ttl) = (name("notice"), fixture.ttl() * 20);
    let claim = ann.claim(&name);
    let place = ann.granted(&claim, ttl).await.confirmation.place;
    ann.take_events();
    if fixture.tamper(&name, Tamper::Remove).await.is_ok() {
        tokio::time::sleep(AT_ONCE * 5).await;
        let pushed = ann.take_events().iter().any(|event| matches!(event, leasehold_core::backend::Event::Gone { .. }));
        assert_eq!(pushed, ann.capabilities().loss_notice == LossNotice::Pushed, "whether a loss was pushed");
    }
    let reply = ann.renew(RenewRequest::new(claim.clone(), place, ttl)).await;
    let has_lease = fixture.record(&name).await.lease().is_some();
    assert_eq!(matches!(reply, RenewReply::Renewed(_)), has_lease, "the next renewal returned {reply:?}");
}

/// Whether each lease has its own ttl is as claimed.
pub async fn the_scope_of_a_ttl_is_as_claimed(fixture: &dyn Fixture) {
    let ann = Direct::new(fixture, Route::Clear).await;
    let (short, long) = (name("short"), name("long"));
    ann.granted(&ann.claim(&long), fixture.ttl() * 10).await;
    ann.granted(&ann.claim(&short), fixture.ttl()).await;
    let bound = fixture.ttl() + ann.capabilities().takeover_slack;
    eventually(bound, "the short lease ends", async || fixture.record(&short).await.lease().is_none()).await;
    assert!(fixture.record(&long).await.lease().is_some(), "the long lease ended with the short one");

    let (first, second, ttl) = (name("first"), name("second"), fixture.ttl() * 5);
    ann.granted(&ann.claim(&first), ttl).await;
    let stopwatch = Stopwatch::start();
    tokio::time::sleep(ttl / 2).await;
    ann.granted(&ann.claim(&second), ttl).await;
    tokio::time::sleep((ttl + ann.capabilities().takeover_slack).saturating_sub(stopwatch.elapsed())).await;
    let together = fixture.record(&first).await.lease().is_some();
    assert!(fixture.record(&second).await.lease().is_some(), "this machine is too slow for a ttl of {ttl:?}");
    match ann.capabilities().ttl_scope {
        TtlScope::Lease | TtlScope::Connection => {
            assert!(!together, "a lease of the same ttl kept another one alive");
        }
        _ => assert!(together, "leases of one session end together"),
    }
    if ann.capabilities().ttl_scope == TtlScope::Connection {
        let (bob, cut) = (Direct::warm(fixture, Route::Faulty).await, name("cut"));
        bob.granted(&bob.claim(&cut), ttl).await;
        fixture.path(PathFault::Disconnect).await;
        let ended = async || fixture.record(&cut).await.lease().is_none();
        eventually(AT_ONCE, "a lease ends with its connection", ended).await;
        fixture.heal().await;
    }
}

/// The takeover bound is true if both the holder and the head of the queue are dead.
pub async fn the_takeover_bound_is_true(fixture: &dyn Fixture) {
    let (dead, bob) = (Direct::new(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let (name, ttl) = (name("takeover"), fixture.ttl());
    let stopwatch = Stopwatch::start();
    dead.granted(&dead.claim(&name), ttl).await;
    dead.not_granted(&dead.claim(&name), ttl).await;
    // The lease and the place end together, and a waiter that has polled knows when.
    let bound = ttl + bob.capabilities().takeover_slack;
    let guard = in_time(bound, "the takeover bound", hold(&bob, &name)).await;
    stopwatch.not_before(ttl, "taken over before the lease ended");
    assert!(guard.is_held());
}

/// The takeover bound is true in its worst case: the lock is handed to a dead waiter just after the waiters behind it
/// have polled. Without a queue, that waiter may be the only one that was notified.
pub async fn the_worst_takeover_is_in_time(fixture: &dyn Fixture) {
    let (ann, dead) = (long_client(fixture, Route::Clear).await, Direct::new(fixture, Route::Clear).await);
    let bob = long_client(fixture, Route::Clear).await;
    // Bob has half of it to be seen in the queue, before the place of the dead one ends.
    let ttl = fixture.ttl().max(Duration::from_secs(2));
    let (name, bobs_ttl) = (name("worst takeover"), ttl * 3);
    let guard = hold(&ann, &name).await;
    let claim = dead.claim(&name);
    dead.not_granted(&claim, ttl).await;
    // Its place begins at the server, at the latest now: a bound from before the request would count the request, too.
    let stopwatch = Stopwatch::start();
    tokio::time::sleep((ttl / 2).saturating_sub(stopwatch.elapsed())).await;
    let lock = bob.lock(name.as_str()).ttl(bobs_ttl);
    let waiter = tokio::spawn(async move { lock.acquire().await.expect("nothing is broken") });
    queued(fixture, &bob, &name, (1, 2)).await;
    guard.release().await.expect("a release");
    let capabilities = bob.capabilities();
    let at_worst = match capabilities.waiting {
        Waiting::ServerQueue => capabilities.takeover_at_worst(bobs_ttl),
        _ => capabilities.takeover_slack + poll_bound(&capabilities, bobs_ttl),
    };
    let bound = ttl.saturating_sub(stopwatch.elapsed()) + at_worst;
    let guard = in_time(bound, "takeover from a waiter that was dead when it got the lock", join(waiter)).await;
    assert!(guard.is_held());
}

/// One call renews as many leases as the backend claims, and returns one reply for each.
pub async fn a_whole_batch_is_renewed(fixture: &dyn Fixture) {
    let ann = Direct::new(fixture, Route::Clear).await;
    let (count, ttl) = (ann.capabilities().renew_batch, fixture.ttl() * 50);
    let mut leases = Vec::with_capacity(count);
    for index in 0..count {
        let claim = ann.claim(&name(&format!("batch {index}")));
        let place = ann.granted(&claim, ttl).await.confirmation.place;
        leases.push(RenewRequest::new(claim, place, ttl));
    }
    let gone = leases.len() / 2;
    ann.release(&leases[gone].claim, Delivery::Confirmed).await.expect("a release");
    let replies = ann.renew_all(&leases).await;
    assert_eq!(replies.len(), count, "each request gets one reply");
    for (index, reply) in replies.iter().enumerate() {
        let renewed = matches!(reply, RenewReply::Renewed(_));
        assert_eq!(renewed, index != gone, "lease {index} of {count}: {reply:?}");
    }
}

/// Inspection, if supported, matches the record of the server and changes nothing. Otherwise it returns `Unsupported`.
pub async fn inspection_is_true_or_unsupported(fixture: &dyn Fixture) {
    let (ann, bob) = (long_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let name = name("inspected");
    let Some(fresh) = offered("nothing is broken", bob.inspect(name.as_str()).await) else {
        return fixture.empty("it inspects no locks");
    };
    assert!(fresh.is_none_or(|fresh| !fresh.is_held() && fresh.waiters.unwrap_or(0) == 0));
    let guard = hold(&ann, &name).await;
    let lock = bob.lock(name.as_str());
    let waiter = tokio::spawn(async move { lock.acquire().await });
    queued(fixture, &bob, &name, (1, 1)).await;
    // By now less than the whole ttl is left.
    tokio::time::sleep(AT_ONCE * 2).await;
    let stopwatch = Stopwatch::start();
    let seen = bob.inspect(name.as_str()).await.expect("nothing is broken").expect("it is held");
    let record = fixture.record(&name).await;
    let [lease] = &seen.holders[..] else { panic!("one holds an exclusive lock: {seen:?}") };
    assert_eq!((Some(lease.token), seen.last_token), (record.last_token, record.last_token));
    assert_eq!((lease.token, seen.waiters), (guard.fencing_token(), record.waiters));
    let left = record.lease().expect("an inspection ended the lease");
    let step = fixture.record_step() + bob.capabilities().ttl_granularity;
    let at_most = if lease.ttl_left_exact { left + step + stopwatch.elapsed() } else { long_ttl(fixture) };
    assert!(lease.ttl_left + step >= left && lease.ttl_left <= at_most, "{lease:?}, the server has {left:?}");
    if let Some(holder) = &lease.holder {
        assert_eq!((holder.label.as_str(), holder.pid), ("conformance", std::process::id()), "who holds");
    }
    waiter.abort();
    drop(waiter.await);
    guard.release().await.expect("a release");
    // A waiter that gave up may still be leaving the queue.
    let free = async || {
        let after = bob.inspect(name.as_str()).await.expect("nothing is broken");
        after.is_none_or(|after| !after.is_held())
    };
    eventually(AT_ONCE, "a released lock is shown as free", free).await;
}

/// Listing, if supported, shows held locks first, by prefix and up to the limit. Otherwise it returns `Unsupported`.
pub async fn a_list_is_true_or_unsupported(fixture: &dyn Fixture) {
    let (ann, ops) = (long_client(fixture, Route::Clear).await, operator(fixture).await);
    if offered("nothing is broken", ops.list("", 10).await).is_none() {
        return fixture.empty("it lists no locks");
    }
    assert_eq!(kind_of(&ops.list("", 0).await), ErrorKind::InvalidInput);
    let names: Vec<_> = (0..20).map(|index| name(&format!("list/{index:02}"))).collect();
    let mut guards = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let guard = hold(&ann, name).await;
        // The locks with even numbers are free again. The store may list them or not.
        if index % 2 == 1 {
            guards.push(guard);
        }
    }
    guards.push(hold(&ann, &name("other/1")).await);
    fixture.connected().await;
    let free = async || fixture.resource_counts().await.leases == guards.len() as u64;
    eventually(AT_ONCE, "the locks of dropped guards are free", free).await;
    let listed = ops.list("list/", 100).await.expect("nothing is broken").locks;
    let held: Vec<_> =
        listed.iter().take_while(|lock| lock.state.is_held()).map(|lock| lock.name.to_string()).collect();
    let mut sorted = held.clone();
    sorted.sort();
    let expected: Vec<_> = names.iter().skip(1).step_by(2).map(ToString::to_string).collect();
    assert_eq!(sorted, expected, "held locks come first and are complete");
    assert!(
        listed[held.len()..].iter().all(|lock| !lock.state.is_held() && lock.name.to_string().starts_with("list/"))
    );
    assert_eq!(ops.list("list/", 4).await.expect("nothing is broken").locks.len(), 4, "the limit");
    assert_eq!(ops.list("nothing begins so", 4).await.expect("nothing is broken"), Listing::default());
    let long = name(&format!("long/{}", "ü".repeat(400)));
    guards.push(hold(&ann, &long).await);
    let listed = ops.list("long/", 10).await.expect("nothing is broken").locks;
    let shown: Vec<_> = listed.iter().map(|lock| lock.name.to_string()).collect();
    assert!(
        matches!(&shown[..], [shown] if long.as_str().starts_with(shown.trim_end_matches('…'))),
        "a long name is listed as {shown:?}"
    );
}

/// A prefix is literal: it has no wildcards, and its case matters.
pub async fn a_prefix_is_taken_as_it_is(fixture: &dyn Fixture) {
    let (ann, ops) = (long_client(fixture, Route::Clear).await, operator(fixture).await);
    if offered("nothing is broken", ops.list("", 10).await).is_none() {
        return fixture.empty("it lists no locks");
    }
    let mut guards = Vec::new();
    for plain in ["list/1", "list/2", "100%/a_b[c]?*\\"] {
        guards.push(hold(&ann, &name(plain)).await);
    }
    fixture.connected().await;
    let patterns =
        ["li_t/", "%", "_", "*", "?", "l*", "li?t/", "[l]ist/", "LIST/", "List/", "list/\\", "^list/", "list/[12]"];
    for prefix in patterns {
        let listed = ops.list(prefix, 10).await.expect("nothing is broken").locks;
        assert_eq!(listed, [], "no name begins with {prefix:?}");
    }
    for prefix in ["100%", "100%/a_", "100%/a_b[c]", "100%/a_b[c]?*\\"] {
        let listed = ops.list(prefix, 10).await.expect("nothing is broken").locks;
        assert_eq!(listed.len(), 1, "one name begins with {prefix:?}: {listed:?}");
    }
    assert_eq!(ops.list("list/", 10).await.expect("nothing is broken").locks.len(), 2);
}

/// A list names the records that this version cannot read, because each may be a held lock.
pub async fn a_list_names_what_it_cannot_read(fixture: &dyn Fixture) {
    let (ann, ops) = (long_client(fixture, Route::Clear).await, operator(fixture).await);
    if offered("nothing is broken", ops.list("", 10).await).is_none() {
        return fixture.empty("it lists no locks");
    }
    let guard = hold(&ann, &name("mixed/readable")).await;
    let mut expected = Vec::new();
    for (unreadable, tamper) in [("mixed/newer", Tamper::OtherVersion), ("mixed/spoilt", Tamper::Corrupt)] {
        let name = name(unreadable);
        hold(&ann, &name).await.release().await.expect("a release");
        if fixture.tamper(&name, tamper).await.is_ok() {
            expected.push(ListedName::Whole(name));
        }
    }
    let mut listing = ops.list("mixed/", 10).await.expect("nothing is broken");
    listing.unreadable.sort();
    assert_eq!(listing.unreadable, expected, "the records that the backend cannot read");
    let held = listing.locks.first().expect("the lock that is held");
    assert_eq!((&held.name, held.state.is_held()), (&ListedName::Whole(guard.name().clone()), true));
    assert!(listing.locks.iter().all(|lock| !expected.contains(&lock.name)), "{listing:?}");
    assert!(ops.list("mixed/", 1).await.expect("nothing is broken").unreadable.len() <= 1, "the limit");
    assert_eq!(ops.list("other/", 10).await.expect("nothing is broken"), Listing::default());
    guard.release().await.expect("a release");
}

/// Breaking, if supported, ends the lease with the given token and no other, and raises the token. Otherwise it returns
/// `Unsupported`.
pub async fn a_break_ends_the_lease_that_was_meant(fixture: &dyn Fixture) {
    let (ann, bob) = (steady_client(fixture, Route::Clear).await, long_client(fixture, Route::Clear).await);
    let name = name("broken");
    let guard = hold(&ann, &name).await;
    let meant = guard.fencing_token();
    let Some(never_seen) = offered("nothing is broken", bob.break_lock("never seen", meant).await) else {
        return fixture.empty("it breaks no locks");
    };
    assert_eq!(never_seen, None);
    let waiter = tokio::spawn(hold(&bob, &name));
    queued(fixture, &bob, &name, (1, 1)).await;
    let raised =
        bob.break_lock(name.as_str(), meant).await.expect("nothing is broken").expect("it is the current lease");
    assert!(raised > meant, "{meant} was raised to {raised}");
    let next = join(waiter).await;
    assert!(next.fencing_token() > raised, "the waiter has token {} after {raised}", next.fencing_token());
    lost(&guard, steady_ttl(fixture) / 3 + AT_ONCE, "the old holder is notified by its next renewal").await;
    // The same token again names a lease that has ended.
    let again = bob.break_lock(name.as_str(), meant).await.expect("nothing is broken");
    assert_eq!(again, None, "a lease with another token was broken");
    assert!(next.is_held(), "a lease with another token was broken");
    next.release().await.expect("a lease with another token was broken");
}

/// An examination, if supported, finds no error in a working store, and finds one in a store that refuses writes.
/// Otherwise it returns `Unsupported`.
pub async fn an_examination_is_true_or_unsupported(fixture: &dyn Fixture) {
    let ops = operator(fixture).await;
    let Some(checks) = offered("nothing is broken", ops.examine().await) else {
        return fixture.empty("it does not examine its store");
    };
    let subjects: HashSet<_> = checks.iter().map(|check| check.about).collect();
    assert!(!checks.is_empty() && subjects.len() == checks.len(), "a subject is listed twice: {checks:?}");
    for check in &checks {
        let hint = match &check.status {
            CheckStatus::Ok => None,
            CheckStatus::Warning(hint) => Some(hint),
            CheckStatus::Error(hint) => panic!("an error in a working store: {}: {}, {hint}", check.about, check.found),
        };
        assert!(!check.found.is_empty() && hint.is_none_or(|hint| !hint.is_empty()), "{check:?} has no text");
    }
    let shown = format!("{checks:?}");
    assert!(fixture.secrets().iter().all(|secret| !shown.contains(secret)), "a password is shown");
    if fixture.server(ServerFault::ReadOnly).await.is_err() {
        return;
    }
    let is_wrong = match ops.examine().await {
        Ok(checks) => checks.iter().any(|check| matches!(check.status, CheckStatus::Error(_))),
        Err(error) => error.kind() == ErrorKind::Unavailable,
    };
    assert!(is_wrong, "no error in a store that refuses writes");
    fixture.server(ServerFault::Restore).await.expect("the fault can be ended");
}
