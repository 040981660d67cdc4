//! The common part of all servers: a process on a port of its own, in a temporary folder.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use leasehold_conformance::harness::{ChildProcess, ClockStep, Port, folder};
use tempfile::TempDir;

/// How long a server may take until its first reply. Most take less than a second.
const START_BOUND: Duration = Duration::from_secs(60);

/// How long it may take until replies show a step of the clock. The next reply usually does.
const STEP_BOUND: Duration = Duration::from_secs(20);

/// The process of a server. It is killed when this is dropped, and when the test's process dies.
#[derive(Debug)]
pub struct ServerProcess {
    name: &'static str,
    port: Port,
    folder: TempDir,
    clock: Option<ClockStep>,
    process: Option<ChildProcess>,
    is_paused: bool,
    started: Instant,
}

impl ServerProcess {
    /// A process that is not started yet. `name` is that of its program.
    pub(crate) fn new(name: &'static str, has_steppable_clock: bool) -> io::Result<Self> {
        let folder = folder(&format!("leasehold-{name}-"))?;
        let clock = has_steppable_clock.then(|| ClockStep::new(folder.path())).transpose()?;
        let port = Port::free()?;
        Ok(Self { name, port, folder, clock, process: None, is_paused: false, started: Instant::now() })
    }

    /// Its address.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Its process id; none while it does not run.
    pub fn id(&self) -> Option<u32> {
        self.process.as_ref().map(ChildProcess::id)
    }

    /// Whether it runs and is not paused.
    pub fn is_running(&self) -> bool {
        self.process.is_some() && !self.is_paused
    }

    /// Stops it in an orderly way.
    ///
    /// # Errors
    /// If it does not run, or does not end within ten seconds.
    pub fn stop(&mut self) -> io::Result<()> {
        self.running()?.terminate()?;
        self.process = None;
        Ok(())
    }

    /// Stops it in an orderly way, and ends it with SIGKILL if that takes longer than `grace`.
    ///
    /// # Errors
    /// If it does not run.
    pub fn stop_within(&mut self, grace: Duration) -> io::Result<()> {
        self.running()?.terminate_within(grace)?;
        self.process = None;
        Ok(())
    }

    /// Ends it with SIGKILL.
    ///
    /// # Errors
    /// If it does not run.
    pub fn kill(&mut self) -> io::Result<()> {
        self.running()?.kill()?;
        self.process = None;
        Ok(())
    }

    /// SIGSTOP: it is paused with its connections open.
    ///
    /// # Errors
    /// If it does not run.
    pub fn pause(&mut self) -> io::Result<()> {
        self.running()?.pause()?;
        self.is_paused = true;
        Ok(())
    }

    /// SIGCONT.
    ///
    /// # Errors
    /// If it does not run.
    pub fn resume(&mut self) -> io::Result<()> {
        self.running()?.resume()?;
        self.is_paused = false;
        Ok(())
    }

    /// Steps its wall clock by `micros`, at once: forward, or back if negative.
    ///
    /// # Errors
    /// If it was started without a clock that can be stepped.
    pub(crate) fn step(&self, micros: i64) -> io::Result<()> {
        let clock = self.clock.as_ref();
        clock.ok_or_else(|| io::Error::other(format!("start this {} with steppable_clock()", self.name)))?.step(micros)
    }

    /// The same, and returns when the server's own clock shows the step.
    ///
    /// # Errors
    /// The same, those of `read`, and if the step does not show within seconds.
    pub(crate) fn step_until_shown(&self, micros: i64, read: impl Fn() -> io::Result<i64>) -> io::Result<()> {
        let before = read()?;
        self.step(micros)?;
        let until = Instant::now() + STEP_BOUND;
        while read()?.abs_diff(before.saturating_add(micros)) > micros.unsigned_abs() / 2 {
            if Instant::now() > until {
                return Err(io::Error::other(format!("the step of the clock by {micros} µs does not show")));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The file of its log.
    pub(crate) fn log(&self) -> PathBuf {
        self.folder().join("log")
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.number()
    }

    /// Chooses another port.
    pub(crate) fn change_port(&mut self) -> io::Result<()> {
        self.port = Port::free()?;
        Ok(())
    }

    /// Starts the process. The server writes its log itself or to its standard error.
    pub(crate) fn spawn(&mut self, command: &mut Command) -> io::Result<()> {
        self.stopped()?;
        let _ = std::fs::remove_file(self.log());
        let log = std::fs::File::options().append(true).create(true).open(self.log())?;
        command.current_dir(self.folder()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        if let Some(clock) = &self.clock {
            command.envs(clock.variables());
        }
        self.process = Some(ChildProcess::spawn(command)?);
        self.is_paused = false;
        self.started = Instant::now();
        Ok(())
    }

    /// Waits a moment for the first reply.
    ///
    /// # Errors
    /// If the process has ended, or takes too long. The text has the end of its log.
    pub(crate) fn await_start(&mut self) -> io::Result<()> {
        self.await_since(self.started)
    }

    /// The same for another event, which is awaited since `begin`.
    pub(crate) fn await_since(&mut self, begin: Instant) -> io::Result<()> {
        let ended = self.running()?.try_wait()?.map(|exit| exit.to_string());
        let failed =
            ended.or_else(|| (begin.elapsed() > START_BOUND).then(|| format!("no reply within {START_BOUND:?}")));
        let Some(how) = failed else {
            std::thread::sleep(Duration::from_millis(1));
            return Ok(());
        };
        self.process = None;
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        // Without the traces of Java.
        let lines: Vec<&str> = log.lines().filter(|line| !line.starts_with("\tat ")).collect();
        let end = lines[lines.len().saturating_sub(10)..].join("\n");
        // Go's libraries write this in lower case.
        let is_taken = end.to_lowercase().contains("address already in use");
        let kind = if is_taken { io::ErrorKind::AddrInUse } else { io::ErrorKind::Other };
        Err(io::Error::new(kind, format!("{} does not start ({how}); the end of its log:\n{end}", self.name)))
    }

    /// Makes it older by this time.
    #[cfg(test)]
    pub(crate) fn age(&mut self, by: Duration) {
        self.started = self.started.checked_sub(by).expect("the machine runs for longer");
    }

    /// # Errors
    /// If it runs.
    pub(crate) fn stopped(&self) -> io::Result<()> {
        match self.process {
            Some(_) => Err(io::Error::other(format!("this {} still runs", self.name))),
            None => Ok(()),
        }
    }

    fn running(&mut self) -> io::Result<&mut ChildProcess> {
        let name = self.name;
        self.process.as_mut().ok_or_else(|| io::Error::other(format!("this {name} does not run")))
    }
}

/// Starts a server. If another process takes one of its ports before the server binds it, starts it on other ones.
pub(crate) fn start_on_free_ports<S>(
    server: &mut S,
    mut run: impl FnMut(&mut S) -> io::Result<()>,
    mut change_ports: impl FnMut(&mut S) -> io::Result<()>,
) -> io::Result<()> {
    for _ in 0..10 {
        match run(server) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => change_ports(server)?,
            other => return other,
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "ten free ports were taken before the server got one"))
}
