//! Stores for the examples: they take a URL, and the README says so.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{needs, process};

/// How long it may take until it answers. It mostly takes 10 ms.
const START_BOUND: Duration = Duration::from_secs(20);

/// The password of the user on MariaDB.
const PASSWORD: &str = "example";

/// A store in a folder of its own; a server listens on a unix socket there. It is gone when this is dropped.
pub(crate) struct Server {
    process: Option<Child>,
    folder: PathBuf,
    url: String,
}

impl Server {
    /// Starts the store of this name.
    pub(crate) fn start(store: &str) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("leasehold-examples-{store}-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        match store {
            "redis" => Self::redis(folder),
            "etcd" => Self::etcd(folder),
            "mysql" => Self::mysql(folder),
            "sqlite" => {
                let url = format!("sqlite://{}", folder.join("locks.db").display());
                Ok(Self { process: None, folder, url })
            }
            "zk" => Self::zk(folder),
            _ => bail!("there is no starter for {store}"),
        }
    }

    fn etcd(folder: PathBuf) -> Result<Self> {
        // Another process may take them until the server binds them, which then ends with an error.
        let port = || Ok::<_, anyhow::Error>(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port());
        let (client, peer) = (port()?, port()?);
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let mut command = Command::new(needs::ETCD.find()?.context("etcd is not installed")?);
        command.args(["--name=examples", "--heartbeat-interval=10", "--election-timeout=100"]);
        command.arg(format!("--data-dir={}", folder.join("data").display()));
        for option in ["listen-client-urls", "advertise-client-urls"] {
            command.arg(format!("--{option}={}", url(client)));
        }
        for option in ["listen-peer-urls", "initial-advertise-peer-urls"] {
            command.arg(format!("--{option}={}", url(peer)));
        }
        command.arg(format!("--initial-cluster=examples={}", url(peer)));
        command.current_dir(&folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Some(command.spawn().context("cannot start etcd")?);
        let mut server = Self { process, folder, url: format!("etcd://127.0.0.1:{client}") };
        // A port that listens proves nothing: the server needs a leader first.
        server.wait_until("etcd", |_| is_healthy(client).unwrap_or(false))?;
        Ok(server)
    }

    fn zk(folder: PathBuf) -> Result<Self> {
        // Another process may take it until the server binds it, which then ends with an error.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let library = needs::ZOOKEEPER.find()?.context("zookeeper.jar is not installed")?;
        let libraries = library.parent().context("zookeeper.jar is in a folder")?;
        let config = folder.join("zoo.cfg");
        let lines = format!(
            "tickTime=100\nclientPort={port}\nclientPortAddress=127.0.0.1\nmaxSessionTimeout=600000\nadmin.enableServer=false\n\
             extendedTypesEnabled=true\n4lw.commands.whitelist=*\ndataDir={}\n",
            folder.join("data").display()
        );
        std::fs::write(&config, lines)?;
        let mut command = Command::new(needs::JAVA.find()?.context("java is not installed")?);
        command.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true", "-cp"]);
        command.arg(format!("{}:{}/slf4j-simple.jar", library.display(), libraries.display()));
        command.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(config);
        command.current_dir(&folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Some(command.spawn().context("cannot start java")?);
        let mut server = Self { process, folder, url: format!("zk://127.0.0.1:{port}") };
        // A port that listens proves nothing: the server reads its data first.
        server.wait_until("zookeeper", |_| has_mode(port).unwrap_or(false))?;
        Ok(server)
    }

    fn mysql(folder: PathBuf) -> Result<Self> {
        let data = format!("--datadir={}", folder.join("data").display());
        let mut install =
            Command::new(needs::MARIADB_INSTALL_DB.find()?.context("mariadb-install-db is not installed")?);
        install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db", &data]);
        // Of its own: installations at the same time in one folder remove each other's temporary tables.
        install.env("TMPDIR", &folder);
        // Started by root, the server wants to be told that it stays root.
        let as_root = needs::is_root().then_some("--user=root");
        let installed = install.args(as_root).stdin(Stdio::null()).output().context("cannot run mariadb-install-db")?;
        if !installed.status.success() {
            bail!("mariadb-install-db fails: {}", String::from_utf8_lossy(&installed.stdout));
        }
        // The server runs these statements before it listens.
        let statements = format!(
            "CREATE DATABASE examples;\nCREATE USER example IDENTIFIED BY '{PASSWORD}';\nGRANT ALL ON examples.* TO example;\n\
             USE examples;\n{}",
            std::fs::read_to_string(process::root().join("lock-mysql/src/schema.sql"))?
        );
        std::fs::write(folder.join("init.sql"), statements)?;
        // Another process may take it until the server binds it, which then ends with an error.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut command = Command::new(needs::MARIADB.find()?.context("mariadbd is not installed")?);
        command.arg("--no-defaults").args(as_root).args([
            "--bind-address=127.0.0.1",
            "--skip-log-bin",
            "--skip-name-resolve",
            &data,
        ]);
        command.arg(format!("--socket={}", folder.join("socket").display())).arg(format!("--port={port}"));
        command.arg(format!("--init-file={}", folder.join("init.sql").display()));
        command.current_dir(&folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Some(command.spawn().context("cannot start mariadbd")?);
        let url = format!("mysql://example:{PASSWORD}@127.0.0.1:{port}/examples?tls=off");
        let mut server = Self { process, folder, url };
        server.wait_until("mariadbd", |_| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok())?;
        Ok(server)
    }

    fn redis(folder: PathBuf) -> Result<Self> {
        let mut command = Command::new(needs::REDIS.find()?.context("redis-server is not installed")?);
        command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(folder.join("redis.sock"));
        command.current_dir(&folder).stdin(Stdio::null()).stdout(Stdio::null());
        let process = Some(command.spawn().context("cannot start redis-server")?);
        let url = format!("redis+unix://{}", folder.join("redis.sock").display());
        let mut server = Self { process, folder, url };
        server.wait_until("redis-server", Self::answers)?;
        Ok(server)
    }

    fn wait_until(&mut self, program: &str, is_up: impl Fn(&Self) -> bool) -> Result<()> {
        let until = Instant::now() + START_BOUND;
        while !is_up(self) {
            if let Some(exit) = self.process.as_mut().map(Child::try_wait).transpose()?.flatten() {
                bail!("{program} ended: {exit}");
            }
            if Instant::now() > until {
                bail!("{program} does not answer after {} s", START_BOUND.as_secs());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    fn answers(&self) -> bool {
        std::os::unix::net::UnixStream::connect(self.folder.join("redis.sock")).is_ok()
    }
}

/// Whether an etcd serves requests.
fn is_healthy(port: u16) -> Result<bool> {
    use std::io::{Read, Write};
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    Ok(reply.contains("\"health\":\"true\""))
}

/// Whether a ZooKeeper serves requests.
fn has_mode(port: u16) -> Result<bool> {
    use std::io::{Read, Write};
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(b"srvr")?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    Ok(reply.contains("Mode:"))
}

impl Drop for Server {
    fn drop(&mut self) {
        // What fails here leaves a folder behind, or a process that is gone already.
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
