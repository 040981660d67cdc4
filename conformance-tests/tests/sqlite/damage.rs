//! One of the three files of an open database is deleted, replaced or truncated. Exclusion ends until each client has
//! made its next call. Afterwards all clients use the same files again, and none is stuck.

use std::fs::{File, copy, remove_file, rename};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use leasehold_conformance::harness::{HolderEvent, LockHolder};

use super::environment::{CALL, Environment, SOON, StoreUnderTest as _, TTL, is_held};

/// The interval at which an idle client checks its files. It closes them if they are not those at the path.
const CHECK: Duration = Duration::from_secs(1);

/// A damage to a file.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Delete,
    Replace,
    MoveAway,
    Truncate,
}

/// The next step of the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Hold,
    Release,
}

impl Damage {
    fn apply(self, file: &Path) {
        let other = file.with_extension("other");
        match self {
            Self::Delete => remove_file(file).unwrap(),
            Self::Replace => {
                copy(file, &other).unwrap();
                rename(&other, file).unwrap();
            }
            Self::MoveAway => rename(file, &other).unwrap(),
            Self::Truncate => drop(File::create(file).unwrap()),
        }
    }
}

/// A process that starts now. Its acquire may fail with `Unavailable` while others have the damaged files open.
fn newcomer(environment: &Environment) -> LockHolder {
    let until = Instant::now() + SOON;
    loop {
        let mut lock_holder = environment.lock_holder(&["--stay"]);
        let refused = lock_holder.next(SOON, |line| match &line.event {
            HolderEvent::Waiting { .. } => Some(None),
            HolderEvent::Failed { kind, text, .. } => Some(Some((kind.clone(), text.clone()))),
            _ => None,
        });
        let Some((kind, text)) = refused.unwrap() else { return lock_holder };
        assert_eq!(kind, "Unavailable", "{text}");
        assert!(Instant::now() < until, "still refused: {text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The times and tokens of its grants.
fn grants(lock_holder: &LockHolder) -> Vec<(u64, u64)> {
    let grant = |line: &leasehold_conformance::harness::HolderLine| match line.event {
        HolderEvent::Acquired { token, .. } => Some((line.at_us, token)),
        _ => None,
    };
    lock_holder.events().iter().filter_map(grant).collect()
}

/// Lets each lock holder have the lock, one at a time.
fn take_turns(lock_holders: &mut [LockHolder]) {
    let until = Instant::now() + SOON;
    loop {
        let held: Vec<bool> = lock_holders
            .iter_mut()
            .map(|lock_holder| {
                lock_holder.send("check").unwrap();
                is_held(lock_holder)
            })
            .collect();
        let holders = held.iter().filter(|held| **held).count();
        assert!(
            holders <= 1,
            "{holders} hold at once: {:#?}",
            lock_holders.iter().map(LockHolder::events).collect::<Vec<_>>()
        );
        if let Some(holder) = held.iter().position(|held| *held) {
            lock_holders[holder].send("release").unwrap();
            let released = lock_holders[holder].next(SOON, |line| match &line.event {
                HolderEvent::Released { .. } => Some(Ok(())),
                HolderEvent::Failed { text, .. } => Some(Err(text.clone())),
                _ => None,
            });
            released.unwrap().unwrap();
        } else if lock_holders.iter().all(|lock_holder| !grants(lock_holder).is_empty()) {
            return;
        }
        let events = || lock_holders.iter().map(LockHolder::events).collect::<Vec<_>>();
        assert!(Instant::now() < until, "a lock holder never had the lock: {:#?}", events());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn survives(suffix: &str, damage: Damage, then: Then) {
    let environment = Environment::new();
    let (mut holder, _) = environment.holder(&["--stay"]);
    let waiter = environment.waiter(&["--stay"]);
    // An idle client: it must not block the others.
    let (mut idle, _) = environment.holder(&["--name", "another", "--stay"]);
    idle.send("release").unwrap();
    damage.apply(&PathBuf::from(format!("{}{suffix}", environment.path().display())));
    if then == Then::Release {
        holder.send("release").unwrap();
    }
    let newcomer = newcomer(&environment);
    // By then the holder has made a call. A second holder would have taken over.
    std::thread::sleep(TTL + CHECK + CALL);
    let mut lock_holders = [holder, waiter, newcomer];
    take_turns(&mut lock_holders);
    let mut grants: Vec<_> = lock_holders.iter().flat_map(grants).collect();
    grants.sort_unstable();
    assert!(grants.is_sorted_by_key(|(_, token)| token), "tokens do not rise: {grants:?}");
    // Nothing is wrong with the database.
    let state: String =
        environment.stored().connection().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(state, "ok");
}

/// Each damage to one file, at the same time, each in its own environment.
fn survives_all(suffix: &'static str) {
    let all = [Damage::Delete, Damage::Replace, Damage::MoveAway, Damage::Truncate]
        .into_iter()
        .flat_map(|damage| [Then::Hold, Then::Release].map(|then| (damage, then)));
    let started: Vec<_> = all
        .map(|(damage, then)| ((damage, then), std::thread::spawn(move || survives(suffix, damage, then))))
        .collect();
    let failed: Vec<_> = started.into_iter().filter_map(|(case, thread)| thread.join().err().map(|_| case)).collect();
    assert!(failed.is_empty(), "`locks.db{suffix}`: {failed:?}");
}

#[test]
fn damage_to_the_database() {
    survives_all("");
}

#[test]
fn damage_to_the_wal() {
    survives_all("-wal");
}

#[test]
fn damage_to_the_shm() {
    survives_all("-shm");
}
