//! A real etcd server for one test.

use std::ffi::OsStr;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use leasehold_conformance::Data;
use leasehold_conformance::harness::Port;

use super::side::RootPassword;
use super::{EtcdCluster, EtcdSide};
use crate::program::Program;
use crate::server_process::{ServerProcess, start_on_free_ports};
use crate::sockets::sockets_of;

const PROGRAM: Program = Program { name: "etcd", package: "etcd-server", variable: "LEASEHOLD_ETCD_SERVER" };

/// The intervals of a single member, in milliseconds: it elects itself at once.
const ALONE: [&str; 2] = ["--heartbeat-interval=10", "--election-timeout=100"];

/// The intervals of one of several members. With shorter ones, a busy machine of two cores makes a leader lose its
/// place every minute. A lease is still granted for one second.
const IN_A_CLUSTER: [&str; 2] = ["--heartbeat-interval=50", "--election-timeout=500"];

/// A small server that starts fast.
const OPTIONS: &[&str] = &[
    // The default takes 50 ms of a core for each password.
    "--bcrypt-cost=4",
    "--logger=zap",
    "--log-outputs=stderr",
    "--log-level=warn",
];

/// How long a server may take to create the next file of its log. It usually takes some milliseconds.
const NEXT_FILE_BOUND: Duration = Duration::from_secs(2);

/// More than a server writes to its log while [`free_memory`] reads where it ends.
const WRITTEN_MEANWHILE: u64 = 1 << 20;

/// How an etcd server uses TLS for its clients.
#[derive(Clone, Debug)]
pub struct EtcdTls {
    /// The folder of [`certificates`](crate::certificates).
    pub folder: PathBuf,
    /// Whether clients must have a certificate of the authority.
    pub clients_need_certificates: bool,
}

/// How an [`EtcdServer`] is set up.
///
/// No setting makes its clock steppable: a program in Go does not read the clock through the C library, whose functions
/// a preloaded library could replace. Its leases count by the monotonic clock, which no operator can step.
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

    /// An option of the server: `quota-backend-bytes=4000000`. It replaces that of the starter, such as
    /// `heartbeat-interval=10` and `election-timeout=100` for a cluster that must replace its leader fast.
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

    /// Starts a cluster of three members.
    ///
    /// # Errors
    /// The same.
    pub fn start_cluster(self) -> io::Result<EtcdCluster> {
        EtcdCluster::start(&self)
    }
}

/// An etcd server on loopback ports of its own, in a temporary folder. It is killed when this is dropped, and when the
/// test's process dies.
#[derive(Debug)]
pub struct EtcdServer {
    settings: EtcdSettings,
    program: PathBuf,
    process: ServerProcess,
    side_port: Port,
    peer_port: Port,
    membership: Membership,
    side: EtcdSide,
}

/// How the members of a cluster know a server.
#[derive(Clone, Debug)]
pub(super) struct Membership {
    /// The name of the cluster, which no other cluster has.
    pub(super) cluster: String,
    /// The number of members.
    pub(super) members: usize,
    /// The place of this server among them.
    pub(super) index: usize,
    pub(super) password: RootPassword,
}

impl Membership {
    /// The only member of a new cluster.
    pub(super) fn alone() -> Self {
        let cluster = format!("cluster-{:016x}", RandomState::new().hash_one(0));
        Self { cluster, members: 1, index: 0, password: RootPassword::default() }
    }

    fn name(&self, index: usize) -> String {
        format!("{}-{index}", self.cluster)
    }

    fn all(&self) -> String {
        let member = |index| format!("{}=unix://{}", self.name(index), socket_of(index));
        (0..self.members).map(member).collect::<Vec<_>>().join(",")
    }
}

/// The socket by which a member is reached, in the folder of another member.
pub(super) fn socket_of(index: usize) -> String {
    // The server wants a port.
    format!("member{index}:1")
}

// `ServerProcess` also stops, kills, pauses and resumes it. An orderly stop takes seconds while clients have streams
// open, because the server continues serving them.
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
        let mut server = Self::new(settings, Membership::alone())?;
        start_on_free_ports(&mut server, Self::run, Self::change_ports)?;
        Ok(server)
    }

    /// A server that is not started yet.
    pub(super) fn new(settings: EtcdSettings, membership: Membership) -> io::Result<Self> {
        let (side_port, peer_port) = (Port::free()?, Port::free()?);
        let side = EtcdSide::new(side_port.addr(), membership.password.clone());
        let (program, process) = (PROGRAM.find()?, ServerProcess::new(PROGRAM.name, false)?);
        Ok(Self { settings, program, process, side_port, peer_port, membership, side })
    }

    /// Its URL for clients.
    pub fn url(&self) -> String {
        self.url_at(self.addr())
    }

    /// Its URL for clients at another address.
    pub(super) fn url_at(&self, addr: SocketAddr) -> String {
        // The certificate is for this name.
        match self.settings.tls {
            Some(_) => format!("https://localhost:{}", addr.port()),
            None => format!("http://{addr}"),
        }
    }

    /// Calls beside the library under test.
    pub fn side(&self) -> &EtcdSide {
        &self.side
    }

    /// The number of connections of clients, without those of the test.
    ///
    /// # Errors
    /// If it does not run, and those of the system.
    pub fn connections(&self) -> io::Result<u64> {
        let id = self.id().ok_or_else(|| io::Error::other("this etcd does not run"))?;
        let sockets = sockets_of(id)?;
        let accepted = sockets.iter().filter(|socket| socket.local == self.port()).count();
        // The JSON gateway connects to the server's own listeners.
        let own = sockets.iter().filter(|socket| socket.remote == self.port()).count();
        Ok(accepted.saturating_sub(own) as u64)
    }

    /// Starts it again on its ports, after [`stop`](ServerProcess::stop) or [`kill`](ServerProcess::kill).
    ///
    /// # Errors
    /// If it still runs or does not start.
    pub fn start_again(&mut self, data: Data) -> io::Result<()> {
        self.forget(data)?;
        self.run()
    }

    /// Prepares another start.
    pub(super) fn forget(&mut self, data: Data) -> io::Result<()> {
        self.process.stopped()?;
        if data == Data::Lost {
            std::fs::remove_dir_all(self.data())?;
        }
        self.side.restarted(self.side_port.addr(), data);
        Ok(())
    }

    fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    /// The port for other members.
    pub(super) fn peer_addr(&self) -> SocketAddr {
        self.peer_port.addr()
    }

    pub(super) fn change_ports(&mut self) -> io::Result<()> {
        (self.side_port, self.peer_port) = (Port::free()?, Port::free()?);
        self.side.restarted(self.side_port.addr(), Data::Kept);
        self.process.change_port()
    }

    /// Starts the process and waits until it serves clients.
    fn run(&mut self) -> io::Result<()> {
        self.spawn()?;
        self.await_peers_port()?;
        self.await_clients_port()
    }

    pub(super) fn spawn(&mut self) -> io::Result<()> {
        let mut command = Command::new(&self.program);
        for (variable, _) in std::env::vars_os().filter(|(name, _)| is_setting(name)) {
            command.env_remove(variable);
        }
        if cfg!(target_arch = "aarch64") {
            command.env("ETCD_UNSUPPORTED_ARCH", "arm64");
        }
        let client_url =
            self.settings.tls.as_ref().map_or("http", |_| "https").to_owned() + "://" + &self.addr().to_string();
        let Membership { cluster, members, index, .. } = &self.membership;
        command.args(if *members == 1 { ALONE } else { IN_A_CLUSTER });
        command.args(OPTIONS).args([
            format!("--name={}", self.membership.name(*index)),
            format!("--data-dir={}", self.data().display()),
            format!("--listen-client-urls={client_url},{}", self.side.url()),
            format!("--advertise-client-urls={client_url}"),
            format!("--listen-peer-urls=http://{}", self.peer_addr()),
            format!("--initial-advertise-peer-urls=unix://{}", socket_of(*index)),
            format!("--initial-cluster={}", self.membership.all()),
            format!("--initial-cluster-token={cluster}"),
        ]);
        if let Some(tls) = &self.settings.tls {
            let file = |option: &str, name: &str| format!("--{option}={}", tls.folder.join(name).display());
            command.args([file("cert-file", "own.pem"), file("key-file", "own.key")]);
            if tls.clients_need_certificates {
                command.arg("--client-cert-auth").arg(file("trusted-ca-file", "ca.pem"));
            }
        }
        command.args(self.settings.options.iter().map(|option| format!("--{option}")));
        self.process.spawn(&mut command)
    }

    /// Waits until it serves other members, which needs no leader.
    pub(super) fn await_peers_port(&mut self) -> io::Result<()> {
        let url = format!("http://{}/version", self.peer_addr());
        while !minreq::get(&url).with_timeout(1).send().is_ok_and(|reply| reply.status_code == 200) {
            self.process.await_start()?;
        }
        free_memory(&self.data().join("member/wal"))
    }

    /// Waits until it serves clients, which needs a leader. A port that listens proves nothing.
    pub(super) fn await_clients_port(&mut self) -> io::Result<()> {
        let begin = Instant::now();
        // Another server could reply on this port.
        let name = self.membership.name(self.membership.index);
        while !(self.side.replies_as(&name).unwrap_or(false) && self.side.serves().unwrap_or(false)) {
            self.process.await_since(begin)?;
        }
        Ok(())
    }
}

/// Whether an environment variable is a setting of the server.
fn is_setting(variable: &OsStr) -> bool {
    variable.to_string_lossy().starts_with("ETCD_")
}

/// Frees the memory of the log of writes of a server that has just been started. The server allocates 128 MB of zeros
/// for it. These are in memory, because the temporary folder is. The size and the content of the files stay.
#[cfg(target_os = "linux")]
fn free_memory(log: &Path) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};

    // While it starts, the server creates the file that it will use next.
    let (until, mut is_complete) = (Instant::now() + NEXT_FILE_BOUND, false);
    while !is_complete && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
        for entry in std::fs::read_dir(log)? {
            let path = entry?.path();
            // The server may be renaming it.
            let Ok(file) = std::fs::File::options().read(true).write(true).open(&path) else { continue };
            let length = file.metadata()?.len();
            let is_next = path.extension().is_some_and(|extension| extension == "tmp");
            is_complete |= is_next && length > 0;
            let written = if is_next { 0 } else { seek(&file, SeekFrom::Hole(0))? + WRITTEN_MEANWHILE };
            if length > written {
                fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, written, length - written)?;
            }
        }
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn free_memory(_log: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn starts_on_other_ports_if_one_is_taken() {
        let ports: [fn(&EtcdServer) -> SocketAddr; 3] =
            [|server| server.addr(), |server| server.side_port.addr(), |server| server.peer_addr()];
        for port_of in ports {
            let mut server = EtcdServer::new(EtcdSettings::new(), Membership::alone()).unwrap();
            let taken = TcpListener::bind(port_of(&server)).unwrap();
            start_on_free_ports(&mut server, EtcdServer::run, EtcdServer::change_ports).unwrap();
            assert_ne!(port_of(&server), taken.local_addr().unwrap());
            server.side().put("a", "", 0).unwrap();
        }
    }

    #[test]
    fn a_server_that_does_not_start_shows_its_log() {
        let error = EtcdSettings::new().option("election-timeout=1").start().unwrap_err();
        assert!(error.to_string().contains("election"), "{error}");
    }

    #[test]
    fn a_full_server_starts_again() {
        let mut server = EtcdSettings::new().start().unwrap();
        server.side().enable_users().unwrap();
        server.side().raise_no_space().unwrap();
        assert!(!server.side().is_healthy().unwrap());
        server.kill().unwrap();
        server.start_again(Data::Kept).unwrap();
        assert!(!server.side().is_healthy().unwrap());
    }

    #[test]
    fn an_old_server_is_awaited_as_long_as_a_new_one() {
        let mut cluster = EtcdSettings::new().start_cluster().unwrap();
        let leader = cluster.leader().unwrap();
        cluster.member_mut(leader).kill().unwrap();
        let follower = cluster.member_mut((leader + 1) % EtcdCluster::MEMBERS);
        follower.process.age(Duration::from_secs(600));
        // Another leader is elected meanwhile.
        follower.await_clients_port().unwrap();
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_log_of_writes_takes_little_memory() {
        use std::os::unix::fs::MetadataExt;

        let mut server = EtcdSettings::new().start().unwrap();
        let log = server.data().join("member/wal");
        let taken = || {
            let files = std::fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
            files.fold((0, 0), |(length, taken), file| (length + file.len(), taken + file.blocks() * 512))
        };
        let is_little = |(length, taken): (u64, u64)| length > 100_000_000 && taken < 4_000_000;
        assert!(is_little(taken()), "{:?}", taken());
        server.side().put("a", vec![b'x'; 1_000_000], 0).unwrap();
        for _ in 0..2 {
            server.kill().unwrap();
            server.start_again(Data::Kept).unwrap();
            assert!(is_little(taken()), "{:?}", taken());
            assert_eq!(server.side().get("a").unwrap().unwrap().value.len(), 1_000_000);
        }
    }
}
