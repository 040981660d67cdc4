//! Changes of a file while processes hold and wait for its locks.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_conformance::harness::{ClockStep, HolderEvent, LockHolder, machine_now, micros};

use super::bounds;
use super::environment::{
    CALL, Environment, LOSS_SLACK, MARGIN, SOON, StoreUnderTest as _, TAKEOVER_SLACK, TTL, holder_for_all, is_held,
    name, under,
};

/// The longest time until a waiter without a notification polls.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The longest pause of a client after a failed call.
const PAUSE: Duration = Duration::from_millis(500);

fn delete(path: &Path) {
    for suffix in ["", "-wal", "-shm"] {
        let mut file = path.as_os_str().to_owned();
        file.push(suffix);
        std::fs::remove_file(&file).unwrap_or_else(|error| panic!("{} cannot be deleted: {error}", file.display()));
    }
}

/// Waits for a `failed` event. Returns the kind of the error and its text.
pub(crate) fn failed(lock_holder: &mut LockHolder) -> (String, String) {
    let failed = lock_holder.next(SOON, |line| match &line.event {
        HolderEvent::Failed { kind, text, .. } => Some((kind.clone(), text.clone())),
        _ => None,
    });
    failed.unwrap()
}

/// The holder is notified by its next renewal that its record is gone, and the waiter gets the lock with its next
/// acquire.
fn starts_afresh(
    environment: &Environment,
    (mut holder, token): (LockHolder, u64),
    mut waiter: LockHolder,
    harm: impl FnOnce(),
) {
    let before = machine_now();
    harm();
    let after = machine_now();
    let (at, reason) = holder.lost(SOON).unwrap();
    assert_eq!(reason, "Gone");
    environment.happened("the loss was reported", at, before, after + TTL / 3 + CALL);
    let (at, next) = waiter.acquired(SOON).unwrap();
    environment.happened("the waiter got the lock", at, before, after + MAX_POLL_INTERVAL + CALL);
    assert!(next > token, "token {next} after {token}");
    // Both use the same file again.
    let mut third = environment.waiter(&[]);
    let released = machine_now();
    waiter.send("release").unwrap();
    let (at, last) = third.acquired(SOON).unwrap();
    environment.happened("the next handoff came", at, released, released + TAKEOVER_SLACK);
    assert!(last > next);
}

#[test]
fn a_deleted_file_is_noticed_and_made_again() {
    let environment = Environment::new();
    let holder = environment.holder(&[]);
    let waiter = environment.waiter(&[]);
    starts_afresh(&environment, holder, waiter, || delete(&environment.path()));
}

#[test]
fn an_older_copy_that_is_put_in_its_place_repeats_no_token() {
    let environment = Environment::new();
    let (mut first, _) = environment.holder(&[]);
    first.send("release").unwrap();
    assert!(first.wait(SOON).unwrap().success());
    let copy = environment.path().with_extension("copy");
    environment.stored().connection().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    for _ in 0..3 {
        let (mut lock_holder, _) = environment.holder(&[]);
        lock_holder.send("release").unwrap();
        assert!(lock_holder.wait(SOON).unwrap().success());
    }
    let holder = environment.holder(&[]);
    let waiter = environment.waiter(&[]);
    starts_afresh(&environment, holder, waiter, || {
        delete(&environment.path());
        std::fs::rename(&copy, environment.path()).unwrap();
    });
}

#[test]
fn a_transaction_of_another_program_that_does_not_end() {
    let environment = Environment::new();
    let (mut holder, token) = environment.holder(&["--stay"]);
    let mut waiter = environment.waiter(&[]);
    let other = environment.stored().connection();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (earliest, latest) = environment.lease_ends();
    let mut visitor = environment.lock_holder(&["--wait", "1s"]);
    let (at, reason) = holder.lost(SOON).unwrap();
    assert_eq!(reason, "Expired");
    // The validity counts from the request of the last renewal, the record from its write.
    let written = environment.lag_monitor().allowance();
    environment.happened("the loss was reported", at, earliest - MARGIN - written, latest - MARGIN + LOSS_SLACK);
    let (kind, text) = failed(&mut visitor);
    assert_eq!(kind, "Unavailable", "{text}");
    assert!(text.contains("another process was writing"), "{text}");
    std::thread::sleep(TTL);
    let ended = machine_now();
    other.execute_batch("ROLLBACK").unwrap();
    let (at, next) = waiter.acquired(SOON).unwrap();
    environment.happened("the waiter got the lock", at, ended, ended + CALL + PAUSE + MAX_POLL_INTERVAL);
    assert!(next > token);
    holder.send("check").unwrap();
    assert!(!is_held(&mut holder));
    // The delayed requests do not affect the new holder.
    std::thread::sleep(TTL);
    waiter.send("check").unwrap();
    assert!(is_held(&mut waiter));
}

/// A lock holder with a stepped wall clock.
fn with_clock(clock: &ClockStep, url: &str) -> LockHolder {
    let mut arguments: Vec<_> =
        clock.variables().iter().map(|(name, path)| format!("{name}={}", path.display())).collect();
    arguments.push(env!("CARGO_BIN_EXE_lock-holder").to_owned());
    arguments.extend(bounds::arguments(url));
    LockHolder::start("env", &arguments).unwrap()
}

#[test]
fn no_step_of_the_wall_clock_ends_a_lease_or_makes_one_longer() {
    let environment = Environment::new();
    let hour = 3_600_000_000;
    let clock = |folder: &str| {
        let folder = environment.path().with_file_name(folder);
        std::fs::create_dir(&folder).unwrap();
        ClockStep::new(&folder).unwrap_or_else(|error| panic!("{error}"))
    };
    let (ahead, behind) = (clock("ahead"), clock("behind"));
    ahead.step(hour).unwrap();
    let mut holder = with_clock(&ahead, &environment.url());
    let (_, token) = holder.acquired(SOON).unwrap();
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    assert!(token > micros(wall) + 3_000_000_000, "its wall clock is not an hour ahead: {token} at {wall:?}");
    behind.step(-hour).unwrap();
    let mut waiter = with_clock(&behind, &environment.url());
    // Steps while it is held: far forward, far back.
    for step in [5 * hour, -20 * hour, 10 * hour] {
        ahead.step(step).unwrap();
        behind.step(-step).unwrap();
        std::thread::sleep(TTL / 2);
        holder.send("check").unwrap();
        assert!(is_held(&mut holder), "a step of the wall clock caused the loss of a lease");
        waiter.send("check").unwrap();
        assert!(!is_held(&mut waiter));
    }
    holder.process().kill().unwrap();
    let ends = environment.lease_ends();
    let (at, next) = waiter.acquired(SOON).unwrap();
    environment.happened("the takeover came", at, ends.0, ends.1 + TAKEOVER_SLACK);
    assert!(next > token, "token {next} after {token}");
}

/// Changes the boot of the record, as after a restart of the machine.
fn reboot(environment: &Environment) {
    environment.stored().change("UPDATE leasehold_locks SET boot = boot + 1", &name());
}

#[test]
fn a_lease_from_before_a_reboot_is_kept_for_one_ttl() {
    let environment = Environment::new();
    let (mut holder, token) = environment.holder(&[]);
    holder.process().kill().unwrap();
    // Its deadline counts from another boot and is not valid now.
    std::thread::sleep(TTL / 2);
    reboot(&environment);
    let rebooted = machine_now();
    let mut next = environment.lock_holder(&[]);
    // It counts from the first read.
    let requested =
        next.next(SOON, |line| matches!(line.event, HolderEvent::Waiting { .. }).then_some(line.at_us)).unwrap();
    let (at, after) = next.acquired(SOON).unwrap();
    environment.happened(
        "the takeover came",
        at,
        rebooted + TTL,
        Duration::from_micros(requested) + CALL + TTL + TAKEOVER_SLACK,
    );
    assert!(after > token);
}

#[test]
fn a_holder_whose_record_is_of_another_boot_is_notified() {
    let environment = Environment::new();
    let (mut holder, _) = environment.holder(&[]);
    reboot(&environment);
    let changed = machine_now();
    let (at, reason) = holder.lost(SOON).unwrap();
    assert_eq!(reason, "Gone");
    environment.happened("the loss was reported", at, Duration::ZERO, changed + TTL / 3 + CALL);
}

/// A lock holder of a user who may not write to the environment's folder. Root ignores permissions.
fn of_somebody_else(environment: &Environment) -> LockHolder {
    if !rustix::process::geteuid().is_root() {
        return environment.lock_holder(&[]);
    }
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    under("setpriv", &user, &holder_for_all(environment), &environment.url(), &[])
}

#[test]
fn a_process_without_write_permission_gets_an_error_at_once() {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;
    let environment = Environment::new();
    let permit = |path: &Path, mode: u32| set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let folder = environment.path().parent().unwrap().to_owned();
    let refused = |what: &str| {
        let mut lock_holder = of_somebody_else(&environment);
        let (kind, text) = failed(&mut lock_holder);
        assert_eq!(kind, "Auth", "{what}: {text}");
        assert!(text.contains("permissions"), "{what}: {text}");
        assert_eq!(lock_holder.wait(SOON).unwrap().code(), Some(1));
    };
    permit(&folder, 0o555);
    refused("no file yet, and none may be created");
    permit(&folder, 0o755);
    let (mut holder, _) = environment.holder(&[]);
    for suffix in ["", "-wal", "-shm"] {
        permit(Path::new(&format!("{}{suffix}", environment.path().display())), 0o444);
    }
    refused("a file that another user may write");
    permit(&environment.path(), 0o000);
    refused("a file without any permission");
    // A process that has the file open continues.
    holder.send("release").unwrap();
    assert!(holder.wait(SOON).unwrap().success(), "{:?}", holder.events());
}
