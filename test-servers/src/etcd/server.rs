//! A real etcd for one test.

use std::ffi::OsStr;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold_conformance::Data;
use leasehold_conformance::harness::Port;

use super::EtcdSide;
use crate::program::Program;
use crate::server_process::{ServerProcess, start_on_free_ports};

const PROGRAM: Program = Program { name: "etcd", package: "etcd-server", variable: "LEASEHOLD_ETCD_SERVER" };

/// A server that elects itself in a tenth of a second. Its shortest lease is one second.
const OPTIONS: &[&str] = &[
    "--heartbeat-interval=10",
    "--election-timeout=100",
    // The default takes 50 ms of a core for each password.
    "--bcrypt-cost=4",
    "--logger=zap",
    "--log-outputs=stderr",
    "--log-level=warn",
];

/// More than a server writes to its log in the microseconds in which [`free_memory`] looks at it.
const WRITTEN_MEANWHILE: u64 = 1 << 20;

/// How an etcd uses TLS for its clients.
#[derive(Clone, Debug)]
pub struct EtcdTls {
    /// The folder of [`certificates`](crate::certificates).
    pub folder: PathBuf,
    /// Whether clients must have a certificate of the authority.
    pub clients_need_certificates: bool,
}

/// How an [`EtcdServer`] is set up.
///
/// No setting makes its clock steppable: a program in Go does not read the clock by functions of the C library, which a preloaded
/// library could replace. Its leases count by the monotonic clock, which no operator can step.
#[derive(Clone, Debug, Default)]
pub struct EtcdSettings {
    tls: Option<EtcdTls>,
    options: Vec<String>,
}

impl EtcdSettings {
    /// A server that keeps acknowledged data when its process dies. Clients need no user.
    pub fn new() -> Self {
        Self::default()
    }

    /// Clients must use TLS.
    #[must_use]
    pub fn tls(mut self, tls: EtcdTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// An option of the server: `quota-backend-bytes=4000000`. It replaces that of the starter.
    #[must_use]
    pub fn option(mut self, option: impl Into<String>) -> Self {
        self.options.push(option.into());
        self
    }

    /// Starts it.
    ///
    /// # Errors
    /// If there is no etcd (the text says how to get it), or it does not start (the text has the end of its log).
    pub fn start(self) -> io::Result<EtcdServer> {
        EtcdServer::start(self)
    }
}

/// An etcd on loopback ports of its own, in a temporary folder. It is killed when this is dropped, and when the test's process dies.
#[derive(Debug)]
pub struct EtcdServer {
    settings: EtcdSettings,
    program: PathBuf,
    process: ServerProcess,
    side_port: Port,
    peer_port: Port,
    /// Also the name of its cluster, which no other server has.
    name: String,
    side: EtcdSide,
}

// Also stops, kills, pauses and resumes it.
impl Deref for EtcdServer {
    type Target = ServerProcess;

    fn deref(&self) -> &ServerProcess {
        &self.process
    }
}

impl DerefMut for EtcdServer {
    fn deref_mut(&mut self) -> &mut ServerProcess {
        &mut self.process
    }
}

impl EtcdServer {
    fn start(settings: EtcdSettings) -> io::Result<Self> {
        let side_port = Port::free()?;
        let mut server = Self {
            program: PROGRAM.find()?,
            process: ServerProcess::new(PROGRAM.name, false)?,
            side: EtcdSide::new(side_port.addr()),
            side_port,
            peer_port: Port::free()?,
            name: format!("member-{:016x}", RandomState::new().hash_one(0)),
            settings,
        };
        start_on_free_ports(&mut server, Self::run, Self::change_ports)?;
        Ok(server)
    }

    /// Its URL for clients.
    pub fn url(&self) -> String {
        // The certificate is for this name.
        match self.settings.tls {
            Some(_) => format!("https://localhost:{}", self.port()),
            None => format!("http://{}", self.addr()),
        }
    }

    /// Calls beside the library under test.
    pub fn side(&self) -> &EtcdSide {
        &self.side
    }

    /// Starts it again on its ports, after [`stop`](ServerProcess::stop) or [`kill`](ServerProcess::kill).
    ///
    /// # Errors
    /// If it still runs or does not start.
    pub fn start_again(&mut self, data: Data) -> io::Result<()> {
        self.process.stopped()?;
        if data == Data::Lost {
            std::fs::remove_dir_all(self.data())?;
        }
        self.side.restarted(self.side_port.addr(), data);
        self.run()
    }

    fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    fn change_ports(&mut self) -> io::Result<()> {
        // It remembers the port for other members.
        let _ = std::fs::remove_dir_all(self.data());
        self.side_port = Port::free()?;
        self.peer_port = Port::free()?;
        self.side.restarted(self.side_port.addr(), Data::Lost);
        self.process.change_port()
    }

    /// Starts the process and waits until it serves clients.
    fn run(&mut self) -> io::Result<()> {
        let mut command = Command::new(&self.program);
        for (variable, _) in std::env::vars_os().filter(|(name, _)| is_setting(name)) {
            command.env_remove(variable);
        }
        if cfg!(target_arch = "aarch64") {
            command.env("ETCD_UNSUPPORTED_ARCH", "arm64");
        }
        let scheme = if self.settings.tls.is_some() { "https" } else { "http" };
        let client_url = format!("{scheme}://{}", self.addr());
        let peer_url = format!("http://{}", self.peer_port.addr());
        command.args(OPTIONS).args([
            format!("--name={}", self.name),
            format!("--data-dir={}", self.data().display()),
            format!("--listen-client-urls={client_url},{}", self.side.url()),
            format!("--advertise-client-urls={client_url}"),
            format!("--listen-peer-urls={peer_url}"),
            format!("--initial-advertise-peer-urls={peer_url}"),
            format!("--initial-cluster={}={peer_url}", self.name),
            format!("--initial-cluster-token={}", self.name),
        ]);
        if let Some(tls) = &self.settings.tls {
            let file = |option: &str, name: &str| format!("--{option}={}", tls.folder.join(name).display());
            command.args([file("cert-file", "own.pem"), file("key-file", "own.key")]);
            if tls.clients_need_certificates {
                command.arg("--client-cert-auth").arg(file("trusted-ca-file", "ca.pem"));
            }
        }
        command.args(self.settings.options.iter().map(|option| format!("--{option}")));
        self.process.spawn(&mut command)?;
        // A process that listens does not serve yet. Another server could reply on this port.
        while !(self.side.replies_as(&self.name).unwrap_or(false) && self.side.is_healthy().unwrap_or(false)) {
            self.process.await_start()?;
        }
        free_memory(&self.data().join("member/wal"))
    }
}

/// Whether an environment variable is a setting of the server.
fn is_setting(variable: &OsStr) -> bool {
    variable.to_string_lossy().starts_with("ETCD_")
}

/// Frees the memory of the log of writes of a server that has just been started. The server allocates 128 MB of zeros for it, which
/// are in memory with the temporary folder. The size and the content of the files stay.
#[cfg(target_os = "linux")]
fn free_memory(log: &Path) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};

    for entry in std::fs::read_dir(log)? {
        let path = entry?.path();
        // The server may rename it in this moment.
        let Ok(file) = std::fs::File::options().read(true).write(true).open(&path) else { continue };
        let length = file.metadata()?.len();
        // The server has not written to the file that it uses next.
        let is_unused = path.extension().is_some_and(|extension| extension == "tmp");
        let written = if is_unused { 0 } else { seek(&file, SeekFrom::Hole(0))? + WRITTEN_MEANWHILE };
        if length > written {
            fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, written, length - written)?;
        }
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn free_memory(_log: &Path) -> io::Result<()> {
    Ok(())
}
