//! A real redis-server for one test.

use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use leasehold_conformance::Data;
use leasehold_conformance::harness::Port;

use super::{Monitor, Reply, SideConnection};
use crate::program::Program;
use crate::server_process::{ServerProcess, start_on_free_ports};

const PROGRAM: Program = Program { name: "redis-server", package: "redis-server", variable: "LEASEHOLD_REDIS_SERVER" };

/// The smallest step of the clock that can be distinguished from the time of a request, in microseconds.
const SHOWN_STEP: u64 = 1_000_000;

/// How long a new cluster may take to serve its slots.
const CLUSTER_BOUND: Duration = Duration::from_secs(20);

/// The user of the harness. It keeps all permissions, whatever a case does to other users.
const HARNESS_USER: &str = "harness";

/// How a [`RedisServer`] is set up.
#[derive(Clone, Debug, Default)]
pub struct RedisSettings {
    persistent: bool,
    unix_socket: bool,
    steppable_clock: bool,
    sentinel: bool,
    cluster_node: bool,
    lines: Vec<String>,
}

impl RedisSettings {
    /// A server that keeps nothing when it ends, with no password.
    pub fn new() -> Self {
        Self::default()
    }

    /// It keeps acknowledged data when it ends (`appendonly yes`, `appendfsync always`).
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

    /// It is a Sentinel. It monitors nothing until `SENTINEL MONITOR` says so. It cannot be
    /// [started again](RedisServer::start_again) with what it has learned.
    #[must_use]
    pub fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self
    }

    /// It is a node of a cluster, and serves no slots until it is told to.
    #[must_use]
    pub fn cluster_node(mut self) -> Self {
        self.cluster_node = true;
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
    process: ServerProcess,
    password: String,
    /// On which the nodes of its cluster reach it.
    bus: Option<Port>,
    side: Mutex<Option<SideConnection>>,
}

// `ServerProcess` also stops, kills, pauses and resumes it.
impl Deref for RedisServer {
    type Target = ServerProcess;

    fn deref(&self) -> &ServerProcess {
        &self.process
    }
}

impl DerefMut for RedisServer {
    fn deref_mut(&mut self) -> &mut ServerProcess {
        &mut self.process
    }
}

impl RedisServer {
    fn start(settings: RedisSettings) -> io::Result<Self> {
        let random = RandomState::new();
        let mut server = Self {
            program: PROGRAM.find()?,
            process: ServerProcess::new(PROGRAM.name, settings.steppable_clock)?,
            password: format!("{:016x}{:016x}", random.hash_one(0), random.hash_one(1)),
            bus: settings.cluster_node.then(Port::free).transpose()?,
            settings,
            side: Mutex::new(None),
        };
        start_on_free_ports(&mut server, Self::run, |server| {
            server.bus = server.settings.cluster_node.then(Port::free).transpose()?;
            server.process.change_port()
        })?;
        Ok(server)
    }

    /// Its URL, without a user.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    /// Makes it a cluster of its own, and waits until it serves writes.
    ///
    /// # Errors
    /// If it is no [`RedisSettings::cluster_node`], or does not serve writes within seconds.
    pub fn serve_all_slots(&self) -> io::Result<()> {
        self.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])?;
        self.await_cluster()
    }

    /// Starts it again without its data, and as a node that belongs to no cluster.
    ///
    /// # Errors
    /// As [`start_again`](Self::start_again).
    pub fn start_blank(&mut self) -> io::Result<()> {
        self.process.stopped()?;
        std::fs::remove_file(self.folder().join("nodes.conf"))?;
        self.forget()?;
        self.run()
    }

    fn await_cluster(&self) -> io::Result<()> {
        let begin = Instant::now();
        while !self.command(&["CLUSTER", "INFO"])?.text().contains("cluster_state:ok") {
            if begin.elapsed() > CLUSTER_BOUND {
                return Err(io::Error::other("the cluster does not serve its slots"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Its address, its port and the port of the bus, for the other nodes of its cluster.
    pub(super) fn cluster_address(&self) -> (String, String, String) {
        let (addr, bus) = (self.addr(), self.bus.as_ref().map_or(0, Port::number));
        (addr.ip().to_string(), addr.port().to_string(), bus.to_string())
    }

    /// Its Unix socket, if it has one.
    pub fn unix_socket(&self) -> Option<PathBuf> {
        self.settings.unix_socket.then(|| self.folder().join("redis.sock"))
    }

    /// Starts it again on its port, after [`stop`](ServerProcess::stop) or [`kill`](ServerProcess::kill).
    ///
    /// # Errors
    /// If it still runs or does not start, or if data must be kept and the server is not persistent.
    pub fn start_again(&mut self, data: Data) -> io::Result<()> {
        self.process.stopped()?;
        match data {
            Data::Kept if !self.settings.persistent => {
                return Err(io::Error::other("this redis-server keeps nothing: start it with persistent()"));
            }
            Data::Kept => {}
            Data::Lost => self.forget()?,
        }
        self.run()?;
        // A node refuses writes for two seconds after its start.
        if self.bus.is_some() { self.await_cluster() } else { Ok(()) }
    }

    /// Deletes its data.
    fn forget(&self) -> io::Result<()> {
        // A folder (Redis 7) or a single file (older versions, and the snapshot).
        for old in ["appendonlydir", "appendonly.aof", "dump.rdb"].map(|name| self.folder().join(name)) {
            let removed = if old.is_dir() { std::fs::remove_dir_all(&old) } else { std::fs::remove_file(&old) };
            removed.or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })?;
        }
        Ok(())
    }

    /// Steps its wall clock by `micros`: forward, or back if negative. Returns when its replies show the step. Valkey 9
    /// reads the clock in a timer, so its replies show the step 0.7 ms later. It does not wait for a step of less than
    /// a second.
    ///
    /// # Errors
    /// If it was not started with [`RedisSettings::steppable_clock`], or the step does not show within seconds.
    pub fn step_clock(&self, micros: i64) -> io::Result<()> {
        if self.id().is_none() || micros.unsigned_abs() < SHOWN_STEP {
            return self.step(micros);
        }
        self.step_until_shown(micros, || self.wall_clock())
    }

    /// Its wall clock, in microseconds.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn wall_clock(&self) -> io::Result<i64> {
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
    pub(super) fn side(&self) -> io::Result<SideConnection> {
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

    /// Counts the commands that clients send from now on and for which `filter` is true of the text: `"EVALSHA" "…" …`.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn monitor(&self, filter: fn(&str) -> bool) -> io::Result<Monitor> {
        Monitor::start(self, filter)
    }

    /// The connections except those of the harness and of Sentinels, as `CLIENT LIST` shows them.
    ///
    /// # Errors
    /// Those of [`command`](Self::command).
    pub fn clients(&self) -> io::Result<Vec<String>> {
        let own = format!("user={HARNESS_USER}");
        let text = self.command(&["CLIENT", "LIST"])?.text();
        // A Sentinel's connection has its name from its first command on.
        let is_other = |part: &str| part == own || part == "cmd=NULL" || part.starts_with("name=sentinel-");
        Ok(text.lines().filter(|line| !line.split(' ').any(is_other)).map(str::to_owned).collect())
    }

    /// Starts the process and waits for its first reply.
    fn run(&mut self) -> io::Result<()> {
        *self.side.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        let config = self.folder().join("redis.conf");
        std::fs::write(&config, self.config())?;
        let mode = self.settings.sentinel.then_some("--sentinel");
        self.process.spawn(Command::new(&self.program).arg(&config).args(mode))?;
        while !self.replies() {
            self.process.await_start()?;
        }
        Ok(())
    }

    /// Whether it replies and has loaded its data. Another server could reply on this port.
    fn replies(&self) -> bool {
        let id = self.id().map(|id| id.to_string());
        self.info("server", "process_id").is_ok_and(|found| Some(found) == id)
            && (self.settings.sentinel || self.info("persistence", "loading").is_ok_and(|loading| loading == "0"))
    }

    fn config(&self) -> String {
        let mut text = format!("bind 127.0.0.1\nport {}\ndir {}\n", self.port(), quoted(self.folder()));
        let _ = writeln!(text, "logfile {}\ndaemonize no\nsave \"\"", quoted(&self.log()));
        let _ = writeln!(text, "user {HARNESS_USER} on >{} ~* &* +@all", self.password);
        if self.settings.persistent {
            text.push_str("appendonly yes\nappendfsync always\n");
        }
        if let Some(socket) = self.unix_socket() {
            let _ = writeln!(text, "unixsocket {}\nunixsocketperm 700", quoted(&socket));
        }
        if let Some(bus) = &self.bus {
            let _ = writeln!(text, "cluster-enabled yes\ncluster-port {}\ncluster-node-timeout 60000", bus.number());
        }
        for line in &self.settings.lines {
            let _ = writeln!(text, "{line}");
        }
        text
    }
}

/// A path in the syntax of the configuration file.
fn quoted(path: &Path) -> String {
    format!("\"{}\"", path.display().to_string().replace('\\', "\\\\").replace('"', "\\\""))
}
