//! The command with all processes that it started, including those outside of its process group: `timeout`, `setsid`
//! and the job control of a shell move processes out of it.
//!
//! On Linux the run adopts the orphans of its command, so every process that the command started is below the run as
//! long as that lives.

use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, test_kill_process_group, waitpid,
};

/// How often the search is repeated. Each round finds what was started during the one before.
const ROUNDS: usize = 20;

/// Makes this process the parent of the orphans below it.
pub(crate) fn adopt_orphans() {
    // If this fails, only orphans outside of the process group are missed.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(getpid()));
}

/// The child processes of this process. At the start, these were started by a script that has then replaced itself by
/// `leasehold` (`exec`). They are not part of the command.
pub(crate) fn children() -> Vec<Pid> {
    let own = getpid().as_raw_nonzero().get();
    all().into_iter().filter(|process| process.parent == own).map(|process| process.id).collect()
}

/// Reaps every child process that has ended. The caller has already waited for those whose end it needs.
pub(crate) fn reap_all() {
    while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
}

/// Which processes belong to the command.
#[derive(Clone, Debug)]
pub(crate) struct Family {
    /// The process group of the command.
    pub(crate) group: Pid,
    /// The processes below these belong to the command,
    pub(crate) roots: Vec<Pid>,
    /// but not these, nor the ones below them.
    pub(crate) except: Vec<Pid>,
}

impl Family {
    /// Kills them all.
    pub(crate) fn kill(&self) {
        // A process that is stopped runs no code, starts no other process, and stays the parent of those that it has
        // started. So a search that finds nothing new has found them all.
        let _ = kill_process_group(self.group, Signal::STOP);
        let mut found: Vec<Pid> = Vec::new();
        for _ in 0..ROUNDS {
            let new: Vec<Pid> =
                self.outside(&all()).map(|process| process.id).filter(|id| !found.contains(id)).collect();
            if new.is_empty() {
                break;
            }
            for &id in &new {
                let _ = kill_process(id, Signal::STOP);
            }
            found.extend(new);
        }
        for id in found {
            let _ = kill_process(id, Signal::KILL);
        }
        let _ = kill_process_group(self.group, Signal::KILL);
    }

    /// Sends TERM to the orphans outside of the process group, once to each. They may pass it on, as `timeout` does, so
    /// their child processes do not get it from here: these would get it twice.
    pub(crate) fn term_orphans(&self, told: &mut Vec<Pid>) {
        let own = getpid().as_raw_nonzero().get();
        for orphan in self.outside(&all()).filter(|process| process.parent == own) {
            if !told.contains(&orphan.id) {
                told.push(orphan.id);
                let _ = kill_process(orphan.id, Signal::TERM);
                // A stopped process handles TERM only after CONT.
                let _ = kill_process(orphan.id, Signal::CONT);
            }
        }
    }

    /// Whether none of them runs. Call it after the command was reaped. Zombies do not count, because a container
    /// without an init process reaps no orphans. If the system does not show the state of processes, every process
    /// group that exists counts as running.
    pub(crate) fn is_gone(&self) -> bool {
        let all = all();
        let group = self.group.as_raw_nonzero().get();
        let mut members = all.iter().filter(|process| process.group == group).peekable();
        let has_zombies_only = members.peek().is_some() && members.all(|process| process.is_dead);
        self.outside(&all).next().is_none() && (has_zombies_only || test_kill_process_group(self.group).is_err())
    }

    /// Reaps adopted processes that have ended, and no other child process of this one.
    pub(crate) fn reap_orphans(&self) {
        let own = getpid().as_raw_nonzero().get();
        for process in all().into_iter().filter(|process| process.parent == own && process.is_dead) {
            if process.id != self.group && !self.except.contains(&process.id) {
                let _ = waitpid(Some(process.id), WaitOptions::NOHANG);
            }
        }
    }

    /// Those that run outside of the process group.
    fn outside<'a>(&self, all: &'a [Process]) -> impl Iterator<Item = &'a Process> + use<'a> {
        let group = self.group.as_raw_nonzero().get();
        below(all, &self.roots, &self.except)
            .into_iter()
            .filter(move |process| process.group != group && !process.is_dead)
    }
}

/// A process as `/proc` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    id: Pid,
    parent: i32,
    group: i32,
    is_dead: bool,
}

/// Every process, or none if the system has no `/proc`.
fn all() -> Vec<Process> {
    let Ok(folder) = std::fs::read_dir("/proc") else { return Vec::new() };
    let process = |entry: std::fs::DirEntry| {
        let id = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        let stat = std::fs::read(entry.path().join("stat")).ok()?;
        parse(id, &String::from_utf8_lossy(&stat))
    };
    folder.flatten().filter_map(process).collect()
}

fn parse(id: Pid, stat: &str) -> Option<Process> {
    // State, parent and group follow the name, which may contain any character.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let is_dead = matches!(fields.next()?, "Z" | "X");
    Some(Process { id, parent: fields.next()?.parse().ok()?, group: fields.next()?.parse().ok()?, is_dead })
}

/// The processes below the roots.
fn below<'a>(all: &'a [Process], roots: &[Pid], except: &[Pid]) -> Vec<&'a Process> {
    let mut found: Vec<&Process> = Vec::new();
    let mut parents = roots.to_vec();
    while let Some(parent) = parents.pop() {
        for process in all.iter().filter(|process| process.parent == parent.as_raw_nonzero().get()) {
            // An id that was reused while `/proc` was read could make a circle.
            if !except.contains(&process.id) && !found.iter().any(|other| other.id == process.id) {
                found.push(process);
                parents.push(process.id);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pid(id: i32) -> Pid {
        Pid::from_raw(id).unwrap()
    }

    #[test]
    fn a_name_may_contain_anything() {
        let process = parse(pid(7), "7 (a) Z 1 (b) S 3 4 4 0 -1").unwrap();
        assert_eq!(process, Process { id: pid(7), parent: 3, group: 4, is_dead: false });
        assert!(parse(pid(7), "7 (a) Z 3 4 4").unwrap().is_dead);
        assert_eq!(parse(pid(7), "7 (a"), None);
    }

    #[test]
    fn a_branch_that_is_excepted_is_left_out() {
        let all: Vec<_> = [(2, 1), (3, 2), (4, 3), (5, 2), (6, 5), (7, 1), (8, 9), (9, 8)]
            .map(|(id, parent)| Process { id: pid(id), parent, group: id, is_dead: id == 4 })
            .into();
        let ids =
            |found: Vec<&Process>| found.iter().map(|process| process.id.as_raw_nonzero().get()).collect::<Vec<_>>();
        assert_eq!(ids(below(&all, &[pid(2)], &[pid(5)])), [3, 4]);
        assert_eq!(ids(below(&all, &[pid(8)], &[])), [9, 8], "a circle has an end");
        let family = Family { group: pid(3), roots: vec![pid(2)], except: Vec::new() };
        assert_eq!(ids(family.outside(&all).collect()), [5, 6], "neither the group nor a zombie");
    }
}
