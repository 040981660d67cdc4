//! Where a file is: reached by a second path, shared by a group, on a disk that is full, or opened by a crowd at once.

use std::fs::{Permissions, set_permissions};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use leasehold_conformance::harness::{Taker, TakerEvent, machine_now};

use super::bounds;
use super::file::failed;
use super::world::{SOON, Scene as _, TAKEOVER_SLACK, World, is_root, taker_for_all, under};

const TAKER: &str = env!("CARGO_BIN_EXE_taker");

#[test]
fn a_hard_link_to_the_file_is_refused() {
    let world = World::new();
    let (mut holder, _) = world.holder(&[]);
    let link = world.path().with_file_name("link.db");
    std::fs::hard_link(world.path(), &link).unwrap();
    for path in [&link, &world.path()] {
        let mut other = bounds::start(&bounds::with_call(&format!("sqlite://{}", path.display())), &[]);
        let (kind, text) = failed(&mut other);
        assert_eq!(kind, "Unsupported", "{text}");
        assert!(text.contains("hard links"), "{text}");
    }
    // Whoever has it open goes on: a program that makes backups by links ends no lease.
    holder.tell("release").unwrap();
    assert!(holder.wait(SOON).unwrap().success(), "{:?}", holder.said());
}

/// A taker in a mount namespace of its own, after `mount` with these arguments. Its process is the taker's.
fn mounted(mount: &[&str], url: &str, more: &[&str]) -> Taker {
    let script = format!("mount {} && exec \"$@\"", mount.join(" "));
    under("unshare", &["--mount", "sh", "-c", &script, "sh"], Path::new(TAKER), url, more)
}

#[test]
fn a_file_that_is_mounted_alone_is_refused_and_its_folder_is_not() {
    if !is_root("a bind mount of the file alone") {
        return;
    }
    let world = World::new();
    let (mut holder, token) = world.holder(&[]);
    let folder = world.path().with_file_name("mounted");
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("locks.db");
    std::fs::write(&file, "").unwrap();
    let url = bounds::with_call(&format!("sqlite://{}", file.display()));
    let mut alone = mounted(&["--bind", world.path().to_str().unwrap(), file.to_str().unwrap()], &url, &[]);
    let (kind, text) = failed(&mut alone);
    assert_eq!(kind, "Unsupported", "{text}");
    assert!(text.contains("mount its folder"), "{text}");
    // As `docker run -v FOLDER:/locks` does it.
    let own = world.path().parent().unwrap().to_owned();
    let mut waiter = mounted(&["--bind", own.to_str().unwrap(), folder.to_str().unwrap()], &url, &[]);
    waiter.next(SOON, |line| matches!(line.event, TakerEvent::Waiting { .. }).then_some(())).unwrap();
    holder.tell("release").unwrap();
    let (_, next) = waiter.acquired(SOON).unwrap();
    assert!(next > token);
}

/// Releases, and waits for the answer.
fn release(taker: &mut Taker) {
    taker.tell("release").unwrap();
    let released = taker.next(SOON, |line| match &line.event {
        TakerEvent::Released { .. } => Some(Ok(())),
        TakerEvent::Failed { text, .. } => Some(Err(text.clone())),
        _ => None,
    });
    released.unwrap().unwrap();
}

#[test]
fn a_full_disk_keeps_nobody_from_renewing_and_releasing() {
    if !is_root("a full disk, by mounting a small one") {
        return;
    }
    let world = World::new();
    let disk = world.path().with_file_name("disk");
    std::fs::create_dir(&disk).unwrap();
    let url = bounds::with_call(&format!("sqlite://{}/locks.db", disk.display()));
    let mount = ["-t", "tmpfs", "-o", "size=400k", "none", disk.to_str().unwrap()];
    let mut holder = mounted(&mount, &url, &["--stay"]);
    let (_, token) = holder.acquired(SOON).unwrap();
    let seen = format!("/proc/{}/root{}/ballast", holder.process().id(), disk.display());
    let mut ballast = std::fs::File::create(&seen).unwrap();
    while ballast.write_all(&[7; 512]).is_ok() {}
    drop(ballast);
    // Several renewals, more than what was left of a page of the disk.
    for _ in 0..4 {
        release(&mut holder);
        holder.tell("acquire").unwrap();
        let (_, next) = holder.acquired(SOON).unwrap();
        assert!(next > token);
        std::thread::sleep(bounds::TTL / 2);
    }
    holder.tell("look").unwrap();
    assert!(bounds::look(&mut holder), "a full disk cost a lease: {:#?}", holder.said());
    release(&mut holder);
    std::fs::remove_file(seen).unwrap();
    holder.tell("acquire").unwrap();
    holder.acquired(SOON).unwrap();
}

/// The group of a folder.
const GROUP: u32 = 54_000;

/// A taker of a user of the group, whose first group is another one.
fn member(world: &World, user: u32, umask: &str) -> Taker {
    let url = bounds::with_call(&format!("sqlite://{}/shared/locks.db", world.path().parent().unwrap().display()));
    let script = format!("umask {umask} && exec setpriv --reuid={user} --regid={user} --groups={GROUP} \"$@\"");
    under("sh", &["-c", &script, "sh"], &taker_for_all(world), &url, &[])
}

#[test]
fn the_users_of_a_group_share_the_locks_of_its_folder() {
    if !is_root("two users of a group") {
        return;
    }
    let world = World::new();
    let permit = |path: &Path, mode: u32| set_permissions(path, Permissions::from_mode(mode)).unwrap();
    permit(world.path().parent().unwrap(), 0o755);
    let folder = world.path().with_file_name("shared");
    std::fs::create_dir(&folder).unwrap();
    chown(&folder, Some(0), Some(GROUP)).unwrap();
    permit(&folder, 0o2770);
    let mut last = 0;
    for (first, second, umask) in [(54_001, 54_002, "022"), (54_002, 54_001, "077")] {
        let mut holder = member(&world, first, umask);
        let (_, token) = holder.acquired(SOON).unwrap();
        assert!(token > last);
        let mut waiter = member(&world, second, umask);
        // By then it is notified of releases.
        let bell = folder.join("locks.db-bell");
        bounds::eventually("the waiter waits", || bell.exists());
        std::thread::sleep(Duration::from_millis(300));
        for entry in std::fs::read_dir(&folder).unwrap() {
            let (path, found) = entry.map(|entry| (entry.path(), entry.metadata().unwrap())).unwrap();
            let what = format!("{}: mode {:o}, group {}", path.display(), found.mode(), found.gid());
            assert!(found.mode() & 0o060 == 0o060 && found.gid() == GROUP, "{what}");
        }
        let told = machine_now();
        holder.tell("release").unwrap();
        let (at, next) = waiter.acquired(SOON).unwrap();
        world.happened("the handoff came", at, told, told + TAKEOVER_SLACK);
        waiter.tell("release").unwrap();
        for taker in [&mut holder, &mut waiter] {
            assert!(taker.wait(SOON).unwrap().success(), "{:?}", taker.said());
        }
        last = next;
        // The other one makes the file.
        for entry in std::fs::read_dir(&folder).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }
}

/// How many start at once, on a file that is not there.
const CROWD: usize = 200;

#[test]
fn a_crowd_that_starts_at_once_is_served() {
    let world = World::new();
    // The default bound of a call: that is what users have.
    let url = format!("sqlite://{}", world.path().display());
    let mut takers: Vec<Taker> = (0..CROWD).map(|_| bounds::start(&url, &["--hold", "1ms"])).collect();
    let mut tokens = Vec::new();
    for taker in &mut takers {
        tokens.push(taker.acquired(SOON).unwrap().1);
        assert!(taker.wait(SOON).unwrap().success(), "{:?}", taker.said());
    }
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), CROWD);
}
