//! A child process that never outlives its owner.

use std::io;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// How long a signal may take to have its effect before the harness gives up.
const SIGNAL_BOUND: Duration = Duration::from_secs(10);

/// A child process that can be killed, paused and resumed. It is killed when this is dropped, and also when the owner
/// dies without a drop (kill -9, abort, a test runner's time limit).
#[derive(Debug)]
pub struct ChildProcess {
    child: Child,
    guardian: Child,
    exit: Option<ExitStatus>,
}

impl ChildProcess {
    /// Starts it.
    ///
    /// # Errors
    /// If the program, or `sh` for its guardian, cannot be started.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        let mut child = command.spawn()?;
        match guardian(child.id()) {
            Ok(guardian) => Ok(Self { child, guardian, exit: None }),
            Err(error) => {
                child.kill()?;
                child.wait()?;
                Err(error)
            }
        }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its standard input, output and error, if they are pipes and were not taken before.
    pub fn take_pipes(&mut self) -> (Option<ChildStdin>, Option<ChildStdout>, Option<ChildStderr>) {
        (self.child.stdin.take(), self.child.stdout.take(), self.child.stderr.take())
    }

    /// SIGKILL, also while it is paused. When this returns, the process has ended and its files and ports are closed.
    ///
    /// # Errors
    /// Those of the system.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        if let Some(exit) = self.try_wait()? {
            return Ok(exit);
        }
        self.child.kill()?;
        let exit = self.child.wait()?;
        self.exit = Some(exit);
        Ok(exit)
    }

    /// SIGTERM, then waits until it has ended.
    ///
    /// # Errors
    /// If it has not ended after ten seconds, and those of the system.
    pub fn terminate(&mut self) -> io::Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait(SIGNAL_BOUND)
    }

    /// SIGTERM, and SIGKILL if it has not ended after `grace`.
    ///
    /// # Errors
    /// Those of the system.
    pub fn terminate_within(&mut self, grace: Duration) -> io::Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        match self.wait(grace) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => self.kill(),
            other => other,
        }
    }

    /// SIGSTOP. No thread of it runs any more when this returns.
    ///
    /// # Errors
    /// If it has ended, and those of the system.
    pub fn pause(&mut self) -> io::Result<()> {
        self.signal(Signal::STOP)?;
        let until = Instant::now() + SIGNAL_BOUND;
        // NOWAIT leaves an exit for the standard library's own wait.
        let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        loop {
            match waitid(WaitId::Pid(self.pid()?), options)? {
                Some(status) if status.stopped() => return Ok(()),
                Some(_) => return Err(io::Error::other("the process ended before it could be paused")),
                None if Instant::now() > until => return Err(io::Error::other("the process does not stop")),
                None => std::thread::sleep(Duration::from_micros(200)),
            }
        }
    }

    /// SIGCONT.
    ///
    /// # Errors
    /// If it has ended, and those of the system.
    pub fn resume(&mut self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Its exit status, if it has ended.
    ///
    /// # Errors
    /// Those of the system.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.exit.is_none() {
            self.exit = self.child.try_wait()?;
        }
        Ok(self.exit)
    }

    /// Waits until it has ended, at most for `bound`.
    ///
    /// # Errors
    /// If it has not ended by then, and those of the system.
    pub fn wait(&mut self, bound: Duration) -> io::Result<ExitStatus> {
        let until = Instant::now() + bound;
        loop {
            if let Some(exit) = self.try_wait()? {
                return Ok(exit);
            }
            if Instant::now() > until {
                let text = format!("process {} does not end within {bound:?}{}", self.id(), threads(self.id()));
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn signal(&mut self, signal: Signal) -> io::Result<()> {
        // The id of a process that was waited for may belong to another process.
        if let Some(exit) = self.try_wait()? {
            return Err(io::Error::other(format!("the process has ended: {exit}")));
        }
        Ok(kill_process(self.pid()?, signal)?)
    }

    fn pid(&self) -> io::Result<Pid> {
        let id = i32::try_from(self.id()).ok().and_then(Pid::from_raw);
        id.ok_or_else(|| io::Error::other("the process has no usable id"))
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // The guardian ends first, so that it cannot kill a process that got the same id later.
        let _ = self.guardian.kill();
        let _ = self.guardian.wait();
        let _ = self.kill();
    }
}

/// The wait channels of the threads of a process, if the system shows them, to find out why the process does not end.
fn threads(id: u32) -> String {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{id}/task")) else { return String::new() };
    let line = |thread: std::fs::DirEntry| {
        let read = |file: &str| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
        let stat = read("stat");
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?');
        format!("\n  thread {}: {state} in {}", read("comm").trim_end(), read("wchan"))
    };
    threads.flatten().map(line).collect()
}

/// A shell that kills the process `id` as soon as its standard input closes. The system closes it however this process
/// ends. (A parent-death signal would need code between fork and exec, and fires when the *thread* ends that started
/// the child.)
fn guardian(id: u32) -> io::Result<Child> {
    Command::new("sh")
        .args(["-c", r#"trap "" INT TERM HUP; read -r _; kill -9 "$0""#, &id.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn alive(id: u32) -> bool {
        // A zombie is not alive: it holds no file and no port.
        std::fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    }

    fn sleeper() -> ChildProcess {
        ChildProcess::spawn(Command::new("sleep").arg("600")).unwrap()
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn is_killed_on_drop_and_on_panic_also_while_paused() {
        let mut process = sleeper();
        let id = process.id();
        process.pause().unwrap();
        drop(process);
        assert!(!alive(id));

        let process = sleeper();
        let id = process.id();
        let panicked = std::thread::spawn(move || {
            let _process = process;
            std::panic::resume_unwind(Box::new("injected panic"));
        });
        assert!(panicked.join().is_err());
        assert!(!alive(id));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_guardian_kills_it_when_the_owner_is_gone() {
        let mut process = sleeper();
        drop(process.guardian.stdin.take());
        let exit = process.wait(Duration::from_secs(10)).unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&exit), Some(9));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn one_that_does_not_end_in_time_is_killed() {
        use std::os::unix::process::ExitStatusExt;

        let grace = Duration::from_millis(50);
        let mut ignores_it = Command::new("sh");
        ignores_it.args(["-c", r#"trap "" TERM; echo; exec sleep 600"#]).stdout(Stdio::piped());
        let mut process = ChildProcess::spawn(&mut ignores_it).unwrap();
        // From its first byte on, it ignores the signal.
        process.take_pipes().1.unwrap().read_exact(&mut [0]).unwrap();
        let start = Instant::now();
        assert_eq!(process.terminate_within(grace).unwrap().signal(), Some(9));
        assert!(start.elapsed() > grace);
        assert_eq!(sleeper().terminate_within(SIGNAL_BOUND).unwrap().signal(), Some(15));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_wait_that_is_in_vain_says_what_the_process_does() {
        let error = sleeper().wait(Duration::from_millis(100)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("thread sleep: S in "), "{error}");
    }

    #[test]
    fn a_paused_process_does_nothing_until_it_is_resumed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let written = || file.as_file().metadata().unwrap().len();
        let grows = |than: u64| {
            let until = Instant::now() + SIGNAL_BOUND;
            while written() <= than && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            written() > than
        };
        let mut process = ChildProcess::spawn(
            Command::new("sh").args(["-c", "while :; do echo x; done"]).stdout(file.reopen().unwrap()),
        )
        .unwrap();
        assert!(grows(0));
        process.pause().unwrap();
        let before = written();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(written(), before);
        process.resume().unwrap();
        assert!(grows(before));
        process.kill().unwrap();
        assert!(process.pause().is_err(), "it has ended");
        assert!(process.resume().is_err(), "it has ended");
    }
}
