//! A real redis-server for one test.

use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{Monitor, Reply, SideConnection};
use crate::Data;
use crate::harness::clock_step::ClockStep;
use crate::harness::{ChildProcess, Port, folder};

/// The program, when it is not on the search path.
const PROGRAM_VARIABLE: &str = "LEASEHOLD_REDIS_SERVER";

/// How long a server may take until its first reply. It usually takes 10 ms.
const START_BOUND: Duration = Duration::from_secs(20);

/// The smallest step of the clock that can be distinguished from the time of a request, in microseconds.
const SHOWN_STEP: u64 = 1_000_000;

/// The user of the harness. It keeps all permissions, whatever a case does to other users.
const HARNESS_USER: &str = "harness";

/// How a [`RedisServer`] is set up.
#[derive(Clone, Debug, Default)]
pub struct RedisSettings {
    persistent: bool,
    unix_socket: bool,
    steppable_clock: bool,
    lines: Vec<String>,
}

impl RedisSettings {
    /// A server that keeps nothing when it ends, with no password.
    pub fn new() -> Self {
        Self::default()
    }

    /// Acknowledged data survive its end (`appendonly yes`, `appendfsync always`).
    #[must_use]
    pub fn persistent(mut self) -> Self {
        self.persistent = true;
        self
    }

    /// It also listens on a Unix socket.
    #[must_use]
    pub fn unix_socket(mut self) -> Self {
        self.unix_socket = true;
        self
    }

    /// Its wall clock can be stepped, by [`RedisServer::step_clock`]. Linux only.
    #[must_use]
    pub fn steppable_clock(mut self) -> Self {
        self.steppable_clock = true;
        self
    }

    /// A line of its configuration file: `requirepass secret`, `maxmemory 10mb`, `user leasehold on >secret …`.
    #[must_use]
    pub fn line(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// Starts it.
    ///
    /// # Errors
    /// If there is no redis-server (the text says how to get it), or it does not start (the text has the
    /// end of its log).
    pub fn start(self) -> io::Result<RedisServer> {
        RedisServer::start(self)
    }
}

/// A redis-server on a loopback port of its own, in a temporary folder. It is killed when this is dropped, and when
/// the test's process dies.
#[derive(Debug)]
pub struct RedisServer {
    settings: RedisSettings,
    program: PathBuf,
    port: Port,
    folder: TempDir,
    clock: Option<ClockStep>,
    password: String,
    process: Option<ChildProcess>,
    side: Mutex<Option<SideConnection>>,
}

impl RedisServer {
    fn start(settings: RedisSettings) -> io::Result<Self> {
        let random = RandomState::new();
        let folder = folder("leasehold-redis-")?;
        let clock = settings.steppable_clock.then(|| ClockStep::new(folder.path())).transpose()?;
        let mut server = Self {
            settings,
            program: find_program()?,
            port: Port::free()?,
            folder,
            clock,
            password: format!("{:016x}{:016x}", random.hash_one(0), random.hash_one(1)),
            process: None,
            side: Mutex::new(None),
        };
        // Another process may take the port between our check and the server's bind.
        for _ in 0..10 {
            match server.run() {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => server.port = Port::free()?,
                other => return other.map(|()| server),
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "ten free ports were taken before redis-server got one"))
    }

    /// Its address.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Its URL, without a user.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    /// Its Unix socket, if it has one.
    pub fn unix_socket(&self) -> Option<PathBuf> {
        self.settings.unix_socket.then(|| self.folder.path().join("redis.sock"))
    }

    /// Its process id; none while it does not run.
    pub fn id(&self) -> Option<u32> {
        self.process.as_ref().map(ChildProcess::id)
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

    /// Ends it with SIGKILL.
    ///
    /// # Errors
    /// If it does not run.
    pub fn kill(&mut self) -> io::Result<()> {
        self.running()?.kill()?;
        self.process = None;
        Ok(())
    }

    /// Starts it again on its port, after [`stop`](Self::stop) or [`kill`](Self::kill).
    ///
    /// # Errors
    /// If it still runs or does not start, or if data must be kept and the server is not persistent.
    pub fn start_again(&mut self, data: Data) -> io::Result<()> {
        if self.process.is_some() {
            return Err(io::Error::other("this redis-server still runs"));
        }
        match data {
            Data::Kept if !self.settings.persistent => {
                return Err(io::Error::other("this redis-server keeps nothing: start it with persistent()"));
            }
            Data::Kept => {}
            Data::Lost => {
                // A folder (Redis 7) or a single file (older versions, and the snapshot).
                for old in ["appendonlydir", "appendonly.aof", "dump.rdb"].map(|name| self.folder.path().join(name)) {
                    let removed = if old.is_dir() { std::fs::remove_dir_all(&old) } else { std::fs::remove_file(&old) };
                    removed.or_else(|error| match error.kind() {
                        io::ErrorKind::NotFound => Ok(()),
                        _ => Err(error),
                    })?;
                }
            }
        }
        self.run()
    }

    /// SIGSTOP: it is paused with its connections open.
    ///
    /// # Errors
    /// If it does not run.
    pub fn pause(&mut self) -> io::Result<()> {
        self.running()?.pause()
    }

    /// SIGCONT.
    ///
    /// # Errors
    /// If it does not run.
    pub fn resume(&mut self) -> io::Result<()> {
        self.running()?.resume()
    }

    /// Steps its wall clock by `micros`: forward, or back if negative. Returns when its replies show the step. Valkey 9 reads the
    /// clock in a timer, so its replies show the step 0.7 ms later. A step of less than a second is not waited for.
    ///
    /// # Errors
    /// If it was not started with [`RedisSettings::steppable_clock`], or the step does not show within seconds.
    pub fn step_clock(&self, micros: i64) -> io::Result<()> {
        let clock = self.clock.as_ref();
        let clock = clock.ok_or_else(|| io::Error::other("start this redis-server with steppable_clock()"))?;
        if self.process.is_none() || micros.unsigned_abs() < SHOWN_STEP {
            return clock.step(micros);
        }
        let before = self.wall_clock()?;
        clock.step(micros)?;
        let until = Instant::now() + START_BOUND;
        while self.wall_clock()?.abs_diff(before.saturating_add(micros)) > micros.unsigned_abs() / 2 {
            if Instant::now() > until {
                return Err(io::Error::other(format!("the step of the clock by {micros} µs does not show")));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// Its wall clock, in microseconds.
    fn wall_clock(&self) -> io::Result<i64> {
        match &self.command(&["TIME"])?.items()[..] {
            [seconds, micros] => {
                let number = |reply: &Reply| reply.text().parse::<i64>().map_err(io::Error::other);
                Ok(number(seconds)? * 1_000_000 + number(micros)?)
            }
            _ => Err(io::Error::other("TIME gives no time")),
        }
    }

    /// Sends a command as a user with all permissions, beside the library under test. Blocks for at most five seconds.
    ///
    /// # Errors
    /// The server's error, or that of the connection. The next call then opens a new connection.
    pub fn command<P: AsRef<[u8]>>(&self, parts: &[P]) -> io::Result<Reply> {
        let mut side = self.side.lock().unwrap_or_else(PoisonError::into_inner);
        let mut connection = match side.take() {
            Some(connection) => connection,
            None => self.side()?,
        };
        let result = connection.command(parts);
        // After an error of the connection a reply may still be in flight. A later call must not take it for its own.
        if !matches!(&result, Err(error) if error.kind() != io::ErrorKind::Other) {
            *side = Some(connection);
        }
        result
    }

    /// A further connection like that of [`command`](Self::command).
    ///
    /// # Errors
    /// Those of the connection.
    pub fn side(&self) -> io::Result<SideConnection> {
        let mut connection = SideConnection::open(self.addr())?;
        connection.command(&["AUTH", HARNESS_USER, &self.password])?;
        Ok(connection)
    }

    /// One field of `INFO`, such as `run_id`.
    ///
    /// # Errors
    /// Those of [`command`](Self::command), and when there is no such field.
    pub fn info(&self, section: &str, field: &str) -> io::Result<String> {
        let text = self.command(&["INFO", section])?.text();
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        let found = lines.find(|(name, _)| *name == field).map(|(_, value)| value.to_owned());
        found.ok_or_else(|| io::Error::other(format!("INFO {section} has no field {field}")))
    }

    /// How often clients sent these commands since the server started or its statistics were reset. Calls from scripts count under
    /// their own names, so pass `evalsha` to count what clients sent.
    ///
    /// # Errors
    /// Those of [`command`](Self::command).
    pub fn calls(&self, commands: &[&str]) -> io::Result<u64> {
        let text = self.command(&["INFO", "commandstats"])?.text();
        let calls = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            if !commands.contains(&name) {
                return None;
            }
            rest.strip_prefix("calls=")?.split(',').next()?.parse::<u64>().ok()
        };
        Ok(text.lines().filter_map(calls).sum())
    }

    /// Counts the commands that clients send from now on and for which `filter` is true of the text: `"EVALSHA" "…" …`.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn monitor(&self, filter: fn(&str) -> bool) -> io::Result<Monitor> {
        Monitor::start(self, filter)
    }

    /// The connections except those of the harness, as `CLIENT LIST` shows them.
    ///
    /// # Errors
    /// Those of [`command`](Self::command).
    pub fn clients(&self) -> io::Result<Vec<String>> {
        let own = format!("user={HARNESS_USER}");
        let text = self.command(&["CLIENT", "LIST"])?.text();
        Ok(text.lines().filter(|line| !line.split(' ').any(|part| part == own)).map(str::to_owned).collect())
    }

    /// Starts the process and waits for its first reply.
    fn run(&mut self) -> io::Result<()> {
        *self.side.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        let config = self.folder.path().join("redis.conf");
        std::fs::write(&config, self.config())?;
        let _ = std::fs::remove_file(self.log());
        let mut command = Command::new(&self.program);
        command.arg(&config).current_dir(self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some(clock) = &self.clock {
            clock.apply(&mut command);
        }
        let process = self.process.insert(ChildProcess::spawn(&mut command)?);
        let id = process.id().to_string();
        let until = Instant::now() + START_BOUND;
        loop {
            if let Some(exit) = self.running()?.try_wait()? {
                self.process = None;
                return Err(self.failed(&exit.to_string()));
            }
            // Another server could reply on this port.
            let is_ours = self.info("server", "process_id").is_ok_and(|found| found == id);
            if is_ours && self.info("persistence", "loading").is_ok_and(|loading| loading == "0") {
                return Ok(());
            }
            if Instant::now() > until {
                self.process = None;
                return Err(self.failed(&format!("no reply within {START_BOUND:?}")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn config(&self) -> String {
        let mut text = format!("bind 127.0.0.1\nport {}\ndir {}\n", self.port.number(), quoted(self.folder.path()));
        let _ = writeln!(text, "logfile {}\ndaemonize no\nsave \"\"", quoted(&self.log()));
        let _ = writeln!(text, "user {HARNESS_USER} on >{} ~* &* +@all", self.password);
        if self.settings.persistent {
            text.push_str("appendonly yes\nappendfsync always\n");
        }
        if let Some(socket) = self.unix_socket() {
            let _ = writeln!(text, "unixsocket {}\nunixsocketperm 700", quoted(&socket));
        }
        for line in &self.settings.lines {
            let _ = writeln!(text, "{line}");
        }
        text
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("redis.log")
    }

    fn failed(&self, how: &str) -> io::Error {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let end = lines[lines.len().saturating_sub(10)..].join("\n");
        let kind = if end.contains("Address already in use") { io::ErrorKind::AddrInUse } else { io::ErrorKind::Other };
        io::Error::new(kind, format!("redis-server does not start ({how}); the end of its log:\n{end}"))
    }

    fn running(&mut self) -> io::Result<&mut ChildProcess> {
        self.process.as_mut().ok_or_else(|| io::Error::other("this redis-server does not run"))
    }
}

/// A path in the syntax of the configuration file.
fn quoted(path: &Path) -> String {
    format!("\"{}\"", path.display().to_string().replace('\\', "\\\\").replace('"', "\\\""))
}

fn find_program() -> io::Result<PathBuf> {
    find_program_in(std::env::var_os(PROGRAM_VARIABLE), std::env::var_os("PATH").unwrap_or_default())
}

fn find_program_in(named: Option<std::ffi::OsString>, path: std::ffi::OsString) -> io::Result<PathBuf> {
    let found = match &named {
        Some(program) => Some(PathBuf::from(program)),
        None => {
            // The last two folders are not in every user's search path.
            let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from));
            folders.map(|folder| folder.join("redis-server")).find(|program| program.is_file())
        }
    };
    found.filter(|program| program.is_file()).ok_or_else(|| {
        let text = format!(
            "redis-server was not found: install it (`apt-get install redis-server`, or `cargo xtask test --install`), or \
             name one in {PROGRAM_VARIABLE}"
        );
        io::Error::new(io::ErrorKind::NotFound, text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_server_is_an_error_that_says_how_to_get_it() {
        let empty = tempfile::tempdir().unwrap();
        let absent = empty.path().join("redis-server");
        let error = find_program_in(Some(absent.into()), "".into()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("apt-get install redis-server"), "{error}");
        assert!(error.to_string().contains("cargo xtask test --install"), "{error}");
    }
}
