//! A pseudo-terminal and the processes in it.

use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pty_process::Size;
use pty_process::blocking::{Command, Pty};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{Termios, tcgetattr, tcgetpgrp};

use crate::process::{BOUND, NO_SIGNAL_IGNORED, pid};
use crate::store::Store;

/// A terminal whose session leader is a child process of the test.
pub(crate) struct Terminal {
    pty: Arc<Pty>,
    leader: Child,
    seen: Arc<Mutex<String>>,
}

impl Terminal {
    /// Runs `leasehold` with arguments as the only process of the terminal.
    pub(crate) fn of_leasehold(store: &Store, args: &[&str]) -> Self {
        let command = Command::new("env").args([NO_SIGNAL_IGNORED, env!("CARGO_BIN_EXE_leasehold")]).args(args);
        Self::of(command, store)
    }

    /// An interactive shell, in which `leasehold` is on the search path.
    pub(crate) fn of_shell(store: &Store) -> Self {
        let command = Command::new("env").args([NO_SIGNAL_IGNORED, "bash", "--norc", "--noprofile", "-i"]);
        let command = command.env("PATH", search_path()).env("PS1", "ready> ");
        let terminal = Self::of(command, store);
        terminal.shows("ready> ");
        terminal
    }

    /// A script as the only job of the terminal, in which `leasehold` is on the search path.
    pub(crate) fn of_script(store: &Store, shell: &str, script: &str) -> Self {
        let command = Command::new("env").args([NO_SIGNAL_IGNORED, shell, "-c", script]);
        Self::of(command.env("PATH", search_path()), store)
    }

    fn of(command: Command, store: &Store) -> Self {
        let (pty, pts) = pty_process::blocking::open().unwrap();
        pty.resize(Size::new(24, 200)).unwrap();
        let command = command.env("LEASEHOLD_STORE", store.url()).env("TERM", "dumb").env("HISTFILE", "");
        let leader = command.current_dir(store.folder()).spawn(pts).unwrap();
        let (pty, seen) = (Arc::new(pty), Arc::new(Mutex::new(String::new())));
        std::thread::spawn({
            let (pty, seen) = (pty.clone(), seen.clone());
            move || read_on(&pty, &seen)
        });
        Self { pty, leader, seen }
    }

    pub(crate) fn leader(&self) -> u32 {
        self.leader.id()
    }

    /// Types a text.
    pub(crate) fn write(&self, text: &str) {
        // A process that does not read must not block the test.
        let patience = Timespec { tv_sec: BOUND.as_secs().cast_signed(), tv_nsec: 0 };
        let ready = poll(&mut [PollFd::from_borrowed_fd(self.pty.as_fd(), PollFlags::OUT)], Some(&patience));
        assert_eq!(ready, Ok(1), "nobody reads what is typed: {text:?}");
        (&*self.pty).write_all(text.as_bytes()).unwrap();
    }

    /// Types a line.
    pub(crate) fn line(&self, text: &str) {
        self.write(&format!("{text}\n"));
    }

    /// Waits until a text is shown, and drops the output up to its end.
    #[track_caller]
    pub(crate) fn shows(&self, text: &str) {
        let begin = Instant::now();
        loop {
            let mut seen = self.seen.lock().unwrap();
            if let Some(at) = seen.find(text) {
                seen.drain(..at + text.len());
                return;
            }
            assert!(begin.elapsed() < BOUND, "`{text}` is not shown within {BOUND:?}, but {:?}", *seen);
            drop(seen);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The output that was not dropped yet.
    pub(crate) fn rest(&self) -> String {
        self.seen.lock().unwrap().clone()
    }

    /// Whether a process group is in the foreground.
    pub(crate) fn is_in_foreground(&self, group: u32) -> bool {
        tcgetpgrp(&*self.pty).is_ok_and(|now| now == pid(group))
    }

    pub(crate) fn modes(&self) -> Termios {
        tcgetattr(&*self.pty).unwrap()
    }

    /// Waits for the leader to exit with this code.
    #[track_caller]
    pub(crate) fn ends_with(&mut self, code: i32) {
        let status = self.status();
        assert_eq!(status.code(), Some(code), "{status}, after {:?}", self.rest());
    }

    /// Waits for the leader to die of a signal. Returns the signal.
    #[track_caller]
    pub(crate) fn signal_at_end(&mut self) -> Option<i32> {
        self.status().signal()
    }

    /// Whether the leader dumped core.
    #[track_caller]
    pub(crate) fn dumped_core(&mut self) -> bool {
        self.status().core_dumped()
    }

    #[track_caller]
    fn status(&mut self) -> ExitStatus {
        let mut status = None;
        let begin = Instant::now();
        while status.is_none() {
            assert!(begin.elapsed() < BOUND, "the leader of the terminal does not end: {:?}", self.rest());
            std::thread::sleep(Duration::from_millis(1));
            status = self.leader.try_wait().unwrap();
        }
        status.unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.leader.kill();
        let _ = self.leader.wait();
    }
}

fn search_path() -> String {
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_leasehold"));
    format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap())
}

fn read_on(pty: &Pty, seen: &Mutex<String>) {
    let sleep = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    loop {
        // Polls with a bound: on some systems a terminal that no process has open never becomes readable.
        let ready = poll(&mut [PollFd::from_borrowed_fd(pty.as_fd(), PollFlags::IN)], Some(&sleep));
        if matches!(ready, Ok(0)) {
            continue;
        }
        let mut bytes = [0; 1024];
        match (&mut &*pty).read(&mut bytes) {
            Ok(read @ 1..) => seen.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..read])),
            // The kernel reports this after the last process of the terminal has exited.
            Ok(0) | Err(_) => return,
        }
    }
}
