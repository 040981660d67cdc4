//! A real ZooKeeper server for one test.

use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leasehold_conformance::Data;
use sha1::{Digest as _, Sha1};

use super::session::word;
use super::side::OwnSessions;
use super::snapshot::Snapshot;
use super::{ZooKeeperEnsemble, ZooKeeperSide, classes};
use crate::program::Program;
use crate::server_process::{ServerProcess, start_on_free_ports};

const JAVA: Program = Program { name: "java", package: "default-jre-headless", variable: "LEASEHOLD_JAVA" };

/// Its manifest names the libraries that it needs.
const SERVER: Program = Program {
    name: "/usr/share/java/zookeeper.jar",
    package: "libzookeeper-java",
    variable: "LEASEHOLD_ZOOKEEPER_JAR",
};

/// Writes the log to standard error. It is in a package that the server needs.
const LOGGER: &str = "slf4j-simple.jar";

/// A library that a server with TLS needs, and Debian's manifest leaves out.
const CODEC: &str = "netty-codec.jar";

const MAIN: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

/// What `zkCli.sh` runs. Debian's package of the server has the class, and not the script.
const CLI: &str = "org.apache.zookeeper.ZooKeeperMain";

/// A small virtual machine that starts fast.
const MACHINE: &[&str] = &[
    "-Xms16m",
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    // Servers repeat their votes after pauses that double, up to a minute. A fault proxy accepts connections for a
    // server that is down, so the others assume that their votes were delivered, and a server that returns waits for
    // the next ones.
    "-Dzookeeper.fastleader.maxNotificationInterval=400",
];

/// Short ticks, and limits of an ensemble that a busy machine does not reach: a follower joins within ten seconds, and
/// may be silent for two.
const LINES: &str = "tickTime=100
initLimit=100
syncLimit=20
maxSessionTimeout=600000
maxClientCnxns=0
clientPortAddress=127.0.0.1
admin.enableServer=false
4lw.commands.whitelist=*
extendedTypesEnabled=true
forceSync=no
preAllocSize=1024
";

/// How long one attempt to get a reply from a starting server may take. A connection that is opened too early never
/// gets a reply.
const ATTEMPT: Duration = Duration::from_millis(250);

/// How long a server may take to reply with its mode.
const MODE_BOUND: Duration = Duration::from_secs(2);

/// How a [`ZooKeeperServer`] is set up.
///
/// No setting makes its clock steppable: a server counts the ttls of sessions by the monotonic clock.
#[derive(Clone, Debug, Default)]
pub struct ZooKeeperSettings {
    lines: Vec<String>,
    properties: Vec<String>,
}

impl ZooKeeperSettings {
    /// A server that keeps acknowledged data when its process dies. Its ticks take 100 ms, and a session at least two
    /// ticks. It has container nodes and nodes with a ttl.
    pub fn new() -> Self {
        Self::default()
    }

    /// A line of its configuration file: `tickTime=200`. It replaces that of the starter.
    #[must_use]
    pub fn line(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// A property of its virtual machine: `znode.container.checkIntervalMs=500`.
    #[must_use]
    pub fn property(mut self, property: impl Into<String>) -> Self {
        self.properties.push(property.into());
        self
    }

    /// Starts it.
    ///
    /// # Errors
    /// If there is no Java or no ZooKeeper (the text says how to get it), or it does not start (the text has the end of
    /// its log).
    pub fn start(self) -> io::Result<ZooKeeperServer> {
        ZooKeeperServer::start(self)
    }

    /// Starts an ensemble of three servers.
    ///
    /// # Errors
    /// The same.
    pub fn start_ensemble(self) -> io::Result<ZooKeeperEnsemble> {
        ZooKeeperEnsemble::start(&self)
    }
}

/// A ZooKeeper server on a loopback port of its own, in a temporary folder. It is killed when this is dropped, and when
/// the test's process dies.
#[derive(Debug)]
pub struct ZooKeeperServer {
    settings: ZooKeeperSettings,
    java: PathBuf,
    library: PathBuf,
    process: ServerProcess,
    side: ZooKeeperSide,
    /// The line of the user `super`.
    user: String,
    /// The lines about an ensemble, and the number of this server in it.
    membership: Option<(String, usize)>,
}

// `ServerProcess` also stops, kills, pauses and resumes it.
impl Deref for ZooKeeperServer {
    type Target = ServerProcess;

    fn deref(&self) -> &ServerProcess {
        &self.process
    }
}

impl DerefMut for ZooKeeperServer {
    fn deref_mut(&mut self) -> &mut ServerProcess {
        &mut self.process
    }
}

impl ZooKeeperServer {
    fn start(settings: ZooKeeperSettings) -> io::Result<Self> {
        let mut server = Self::new(settings, OwnSessions::default())?;
        start_on_free_ports(&mut server, Self::run, Self::change_port)?;
        Ok(server)
    }

    /// Starts it for the first time, with an option of its virtual machine instead of the one that uses the archive of
    /// its classes.
    pub(super) fn start_with(&mut self, classes: String) -> io::Result<()> {
        let run = |server: &mut Self| {
            server.spawn_with(&classes)?;
            server.await_clients()
        };
        start_on_free_ports(self, run, Self::change_port)
    }

    /// A server that is not started yet.
    pub(super) fn new(settings: ZooKeeperSettings, own_sessions: OwnSessions) -> io::Result<Self> {
        let random = RandomState::new();
        let password = format!("{:016x}{:016x}", random.hash_one(0), random.hash_one(1));
        let digest = STANDARD.encode(Sha1::digest(format!("super:{password}")));
        let process = ServerProcess::new("zookeeper", false)?;
        Ok(Self {
            settings,
            java: JAVA.find()?,
            library: SERVER.find()?,
            side: ZooKeeperSide::new(process.addr(), password, own_sessions),
            process,
            user: format!("DigestAuthenticationProvider.superDigest=super:{digest}"),
            membership: None,
        })
    }

    /// Calls beside the library under test.
    pub fn side(&self) -> &ZooKeeperSide {
        &self.side
    }

    /// Has `zkCli.sh` run these lines. The output tells of failures; the exit code does not.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn run_cli(&self, lines: &str) -> io::Result<Output> {
        let input = self.folder().join("cli");
        std::fs::write(&input, lines)?;
        let mut command = Command::new(&self.java);
        command.args(MACHINE).arg("-cp").arg(self.libraries()).args([CLI, "-server", &self.addr().to_string()]);
        command.current_dir(self.folder()).stdin(std::fs::File::open(input)?).output()
    }

    /// Starts it again on its port, after [`stop`](ServerProcess::stop) or [`kill`](ServerProcess::kill).
    ///
    /// # Errors
    /// If it still runs or does not start.
    pub fn start_again(&mut self, data: Data) -> io::Result<()> {
        self.forget(data)?;
        self.run()
    }

    /// Sets the counter of a node's children, from which the server takes the numbers of sequential nodes, while the
    /// server does not run. It starts and stops the server once, because a server writes its data when it starts.
    ///
    /// # Errors
    /// If it still runs or does not start, or has no such node.
    pub fn set_counter(&mut self, path: &str, counter: i32) -> io::Result<()> {
        self.start_again(Data::Kept)?;
        self.stop()?;
        Snapshot::newest(&self.data().join("version-2"))?.set_counter(path, counter)
    }

    /// Prepares another start.
    pub(super) fn forget(&mut self, data: Data) -> io::Result<()> {
        self.process.stopped()?;
        if data == Data::Lost {
            std::fs::remove_dir_all(self.data())?;
        }
        self.side.restarted(self.addr());
        Ok(())
    }

    /// Makes it a server of an ensemble.
    pub(super) fn join(&mut self, lines: String, number: usize) {
        self.membership = Some((lines, number));
    }

    pub(super) fn change_port(&mut self) -> io::Result<()> {
        self.process.change_port()?;
        self.side.restarted(self.addr());
        Ok(())
    }

    fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    /// Starts the process and waits until it serves clients.
    fn run(&mut self) -> io::Result<()> {
        self.spawn()?;
        self.await_clients()
    }

    pub(super) fn spawn(&mut self) -> io::Result<()> {
        self.spawn_with(&classes::option(&self.java, &self.library)?)
    }

    fn spawn_with(&mut self, classes: &str) -> io::Result<()> {
        std::fs::create_dir_all(self.data())?;
        if let Some((_, number)) = &self.membership {
            std::fs::write(self.data().join("myid"), number.to_string())?;
        }
        let config = self.folder().join("zoo.cfg");
        std::fs::write(&config, self.config())?;
        let mut command = Command::new(&self.java);
        let properties = self.settings.properties.iter().map(|property| format!("-D{property}"));
        command.args(MACHINE).arg(classes).args(properties);
        command.arg("-cp").arg(self.libraries()).arg(MAIN).arg(config);
        self.process.spawn(&mut command)
    }

    fn config(&self) -> String {
        let (data, port) = (self.data(), self.port());
        let mut text = format!("{LINES}dataDir={}\nclientPort={port}\n{}\n", data.display(), self.user);
        let (lines, _) = self.membership.as_ref().map_or(("", 0), |(lines, number)| (lines, *number));
        text.push_str(lines);
        for line in &self.settings.lines {
            let _ = writeln!(text, "{line}");
        }
        text
    }

    /// The search path of the virtual machine. The folder of a server that is not Debian's has exactly the libraries
    /// that it needs.
    fn libraries(&self) -> String {
        let folder = self.library.parent().unwrap_or(Path::new("/"));
        match self.library == Path::new(SERVER.name) {
            true => {
                let (logger, codec) = (folder.join(LOGGER), folder.join(CODEC));
                format!("{}:{}:{}", self.library.display(), logger.display(), codec.display())
            }
            false => folder.join("*").display().to_string(),
        }
    }

    /// Waits until its process replies, which needs no other server.
    pub(super) fn await_reply(&mut self) -> io::Result<()> {
        while !word(self.addr(), "ruok", ATTEMPT).is_ok_and(|reply| reply == "imok") {
            self.process.await_start()?;
        }
        Ok(())
    }

    /// Waits until it serves clients, for which an ensemble needs a leader. The reply to `ruok` proves nothing.
    pub(super) fn await_clients(&mut self) -> io::Result<()> {
        let begin = Instant::now();
        while !self.serves() {
            self.process.await_since(begin)?;
        }
        Ok(())
    }

    /// Whether it serves clients. Another server could reply on this port.
    fn serves(&self) -> bool {
        let says =
            |text: &str, expected: &str| word(self.addr(), text, ATTEMPT).is_ok_and(|reply| reply.contains(expected));
        says("srvr", "Mode:") && says("conf", &format!("dataDir={}/", self.data().display()))
    }

    /// Whether it leads an ensemble, and in which epoch; `None` if it serves no clients.
    pub(super) fn mode(&self) -> Option<(Mode, u64)> {
        mode(&word(self.addr(), "srvr", MODE_BOUND).ok()?)
    }
}

/// The part of a server in an ensemble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Leads,
    Follows,
    Alone,
}

/// Reads `Zxid: 0x100000002` and `Mode: leader`. The upper half of the first number is the epoch.
fn mode(text: &str) -> Option<(Mode, u64)> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let mode = match field("Mode: ")? {
        "leader" => Mode::Leads,
        "follower" => Mode::Follows,
        _ => Mode::Alone,
    };
    let zxid = u64::from_str_radix(field("Zxid: 0x")?, 16).ok()?;
    Some((mode, zxid >> 32))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_mode_is_read_with_its_epoch() {
        assert_eq!(mode("Zxid: 0x30000000a\nMode: leader\nNode count: 5\n"), Some((Mode::Leads, 3)));
        assert_eq!(mode("Zxid: 0x0\nMode: standalone\n"), Some((Mode::Alone, 0)));
        assert_eq!(mode("This ZooKeeper instance is not currently serving requests\n"), None);
    }

    #[test]
    fn starts_on_another_port_if_its_own_is_taken() {
        let mut server = ZooKeeperServer::new(ZooKeeperSettings::new(), OwnSessions::default()).unwrap();
        let taken = TcpListener::bind(server.addr()).unwrap();
        start_on_free_ports(&mut server, ZooKeeperServer::run, ZooKeeperServer::change_port).unwrap();
        assert_ne!(server.addr(), taken.local_addr().unwrap());
        assert!(server.side().get("/").unwrap().is_some());
    }

    #[test]
    fn a_server_that_does_not_start_shows_its_log() {
        let error = ZooKeeperSettings::new().line("tickTime=never").start().unwrap_err();
        assert!(error.to_string().contains("never"), "{error}");
    }
}
