//! Locations of a file: reached by a second path, shared by a group, on a full disk, or opened by many clients at once.

use std::fs::{Permissions, set_permissions};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use leasehold_conformance::harness::{HolderEvent, LockHolder, machine_now};

use super::bounds;
use super::environment::{Environment, SOON, StoreUnderTest as _, TAKEOVER_SLACK, holder_for_all, is_root, under};
use super::file::failed;

const LOCK_HOLDER: &str = env!("CARGO_BIN_EXE_lock-holder");

#[test]
fn a_hard_link_to_the_file_is_refused() {
    let environment = Environment::new();
    let (mut holder, _) = environment.holder(&[]);
    let link = environment.path().with_file_name("link.db");
    std::fs::hard_link(environment.path(), &link).unwrap();
    for path in [&link, &environment.path()] {
        let mut other = bounds::start(&bounds::with_call(&format!("sqlite://{}", path.display())), &[]);
        let (kind, text) = failed(&mut other);
        assert_eq!(kind, "Unsupported", "{text}");
        assert!(text.contains("hard links"), "{text}");
    }
    // A process that has the file open continues: a backup program that creates links ends no lease.
    holder.send("release").unwrap();
    assert!(holder.wait(SOON).unwrap().success(), "{:?}", holder.events());
}

/// A lock holder in a mount namespace of its own, after `mount` with these arguments. Its process is the lock holder's.
fn mounted(mount: &[&str], url: &str, more: &[&str]) -> LockHolder {
    let script = format!("mount {} && exec \"$@\"", mount.join(" "));
    under("unshare", &["--mount", "sh", "-c", &script, "sh"], Path::new(LOCK_HOLDER), url, more)
}

#[test]
fn a_file_that_is_mounted_alone_is_refused_and_its_folder_is_not() {
    if !is_root("a bind mount of the file alone") {
        return;
    }
    let environment = Environment::new();
    let (mut holder, token) = environment.holder(&[]);
    let folder = environment.path().with_file_name("mounted");
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("locks.db");
    std::fs::write(&file, "").unwrap();
    let url = bounds::with_call(&format!("sqlite://{}", file.display()));
    let mut alone = mounted(&["--bind", environment.path().to_str().unwrap(), file.to_str().unwrap()], &url, &[]);
    let (kind, text) = failed(&mut alone);
    assert_eq!(kind, "Unsupported", "{text}");
    assert!(text.contains("mount its folder"), "{text}");
    // As `docker run -v FOLDER:/locks` does it.
    let own = environment.path().parent().unwrap().to_owned();
    let mut waiter = mounted(&["--bind", own.to_str().unwrap(), folder.to_str().unwrap()], &url, &[]);
    waiter.next(SOON, |line| matches!(line.event, HolderEvent::Waiting { .. }).then_some(())).unwrap();
    holder.send("release").unwrap();
    let (_, next) = waiter.acquired(SOON).unwrap();
    assert!(next > token);
}

/// Releases, and waits for the reply.
fn release(lock_holder: &mut LockHolder) {
    lock_holder.send("release").unwrap();
    let released = lock_holder.next(SOON, |line| match &line.event {
        HolderEvent::Released { .. } => Some(Ok(())),
        HolderEvent::Failed { text, .. } => Some(Err(text.clone())),
        _ => None,
    });
    released.unwrap().unwrap();
}

#[test]
fn renewals_and_releases_work_on_a_full_disk() {
    if !is_root("a full disk, by mounting a small one") {
        return;
    }
    let environment = Environment::new();
    let disk = environment.path().with_file_name("disk");
    std::fs::create_dir(&disk).unwrap();
    let url = bounds::with_call(&format!("sqlite://{}/locks.db", disk.display()));
    let mount = ["-t", "tmpfs", "-o", "size=400k", "none", disk.to_str().unwrap()];
    let mut holder = mounted(&mount, &url, &["--stay"]);
    let (_, token) = holder.acquired(SOON).unwrap();
    let seen = format!("/proc/{}/root{}/ballast", holder.process().id(), disk.display());
    let mut ballast = std::fs::File::create(&seen).unwrap();
    while ballast.write_all(&[7; 512]).is_ok() {}
    drop(ballast);
    // Several renewals, more than fit into the rest of a page of the disk.
    for _ in 0..4 {
        release(&mut holder);
        holder.send("acquire").unwrap();
        let (_, next) = holder.acquired(SOON).unwrap();
        assert!(next > token);
        std::thread::sleep(bounds::TTL / 2);
    }
    holder.send("check").unwrap();
    assert!(bounds::is_held(&mut holder), "a full disk caused the loss of a lease: {:#?}", holder.events());
    release(&mut holder);
    std::fs::remove_file(seen).unwrap();
    holder.send("acquire").unwrap();
    holder.acquired(SOON).unwrap();
}

/// The group of a folder.
const GROUP: u32 = 54_000;

/// A lock holder of a user of the group, whose primary group is another one.
fn member(environment: &Environment, user: u32, umask: &str) -> LockHolder {
    let url =
        bounds::with_call(&format!("sqlite://{}/shared/locks.db", environment.path().parent().unwrap().display()));
    let script = format!("umask {umask} && exec setpriv --reuid={user} --regid={user} --groups={GROUP} \"$@\"");
    under("sh", &["-c", &script, "sh"], &holder_for_all(environment), &url, &[])
}

#[test]
fn the_users_of_a_group_share_the_locks_of_its_folder() {
    if !is_root("two users of a group") {
        return;
    }
    let environment = Environment::new();
    let permit = |path: &Path, mode: u32| set_permissions(path, Permissions::from_mode(mode)).unwrap();
    permit(environment.path().parent().unwrap(), 0o755);
    let folder = environment.path().with_file_name("shared");
    std::fs::create_dir(&folder).unwrap();
    chown(&folder, Some(0), Some(GROUP)).unwrap();
    permit(&folder, 0o2770);
    let mut last = 0;
    for (first, second, umask) in [(54_001, 54_002, "022"), (54_002, 54_001, "077")] {
        let mut holder = member(&environment, first, umask);
        let (_, token) = holder.acquired(SOON).unwrap();
        assert!(token > last);
        let mut waiter = member(&environment, second, umask);
        // By then it is notified of releases.
        let notifier = folder.join("locks.db-bell");
        bounds::eventually("the waiter waits", || notifier.exists());
        std::thread::sleep(Duration::from_millis(300));
        for entry in std::fs::read_dir(&folder).unwrap() {
            let (path, found) = entry.map(|entry| (entry.path(), entry.metadata().unwrap())).unwrap();
            let what = format!("{}: mode {:o}, group {}", path.display(), found.mode(), found.gid());
            assert!(found.mode() & 0o060 == 0o060 && found.gid() == GROUP, "{what}");
        }
        let released = machine_now();
        holder.send("release").unwrap();
        let (at, next) = waiter.acquired(SOON).unwrap();
        environment.happened("the handoff came", at, released, released + TAKEOVER_SLACK);
        waiter.send("release").unwrap();
        for lock_holder in [&mut holder, &mut waiter] {
            assert!(lock_holder.wait(SOON).unwrap().success(), "{:?}", lock_holder.events());
        }
        last = next;
        // The other user creates the file.
        for entry in std::fs::read_dir(&folder).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }
}

/// The number of clients that start at once on a missing file.
const CLIENTS: usize = 200;

#[test]
fn clients_that_start_at_once_are_served() {
    let environment = Environment::new();
    // With the default bound of a call, as for users.
    let url = format!("sqlite://{}", environment.path().display());
    let mut lock_holders: Vec<LockHolder> = (0..CLIENTS).map(|_| bounds::start(&url, &["--hold", "1ms"])).collect();
    let mut tokens = Vec::new();
    for lock_holder in &mut lock_holders {
        tokens.push(lock_holder.acquired(SOON).unwrap().1);
        assert!(lock_holder.wait(SOON).unwrap().success(), "{:?}", lock_holder.events());
    }
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), CLIENTS);
}
