//! A real mariadbd for one test.

use std::io;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use leasehold_conformance::Data;
use leasehold_conformance::harness::folder;
use sqlx::ConnectOptions;
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};
use tempfile::TempDir;

use super::side::Reconnecting;
use super::{Sql, SqlConnection, TextRow, small_disk};
use crate::program::Program;
use crate::server_process::{ServerProcess, start_on_free_ports};

const PROGRAM: Program = Program { name: "mariadbd", package: "mariadb-server", variable: "LEASEHOLD_MARIADB_SERVER" };

/// Creates the data folder of a new server.
const INSTALL: Program =
    Program { name: "mariadb-install-db", package: "mariadb-server", variable: "LEASEHOLD_MARIADB_INSTALL_DB" };

/// A small server that starts fast. It syncs with every commit, so that it keeps acknowledged data.
const OPTIONS: &[&str] = &[
    "--bind-address=127.0.0.1",
    "--skip-log-bin",
    "--skip-name-resolve",
    "--innodb-flush-log-at-trx-commit=1",
    "--innodb-buffer-pool-size=16M",
    "--innodb-log-file-size=8M",
    "--innodb-fast-shutdown=2",
    "--key-buffer-size=64K",
    "--aria-pagecache-buffer-size=128K",
    "--performance-schema=off",
    "--max-connections=300",
];

/// How a [`MySqlServer`] is set up.
#[derive(Clone, Debug, Default)]
pub struct MySqlSettings {
    steppable_clock: bool,
    small_disk: Option<u32>,
    options: Vec<String>,
}

impl MySqlSettings {
    /// A server that keeps acknowledged data when its process dies. Only root can log in, over the Unix socket.
    pub fn new() -> Self {
        Self::default()
    }

    /// Its wall clock can be stepped, by [`MySqlServer::step_clock`]. Linux only.
    #[must_use]
    pub fn steppable_clock(mut self) -> Self {
        self.steppable_clock = true;
        self
    }

    /// Its data folder is on a disk of this many mebibytes, which [`MySqlServer::fill_disk`] fills. Linux only. When it
    /// is started again, it has no data. [`can_have_small_disks`](super::can_have_small_disks) says whether the system
    /// permits it.
    #[must_use]
    pub fn small_disk(mut self, mebibytes: u32) -> Self {
        self.small_disk = Some(mebibytes);
        self
    }

    /// An option of the server: `max-connections=10`.
    #[must_use]
    pub fn option(mut self, option: impl Into<String>) -> Self {
        self.options.push(option.into());
        self
    }

    /// Starts it.
    ///
    /// # Errors
    /// If there is no mariadbd (the text says how to get it), or it does not start (the text has the end of its log).
    pub fn start(self) -> io::Result<MySqlServer> {
        MySqlServer::start(self)
    }
}

/// A mariadbd on a loopback port of its own, in a temporary folder. It is killed when this is dropped, and when the
/// test's process dies.
#[derive(Debug)]
pub struct MySqlServer {
    settings: MySqlSettings,
    program: PathBuf,
    process: ServerProcess,
    side: Reconnecting,
    /// The database of [`create`](Self::create), in which statements run.
    database: Mutex<Option<String>>,
    template: Arc<TempDir>,
}

// `ServerProcess` also stops, kills, pauses and resumes it.
impl Deref for MySqlServer {
    type Target = ServerProcess;

    fn deref(&self) -> &ServerProcess {
        &self.process
    }
}

impl DerefMut for MySqlServer {
    fn deref_mut(&mut self) -> &mut ServerProcess {
        &mut self.process
    }
}

impl Sql for MySqlServer {
    fn query(&self, statements: &str) -> io::Result<Vec<TextRow>> {
        Self::query(self, statements)
    }

    fn status(&self, name: &str) -> io::Result<u64> {
        let rows = self.query(&format!("SHOW GLOBAL STATUS LIKE '{name}'"))?;
        super::number(rows.first().and_then(|row| row.get(1)))
    }
}

impl MySqlServer {
    fn start(settings: MySqlSettings) -> io::Result<Self> {
        let mut server = Self {
            program: PROGRAM.find()?,
            process: ServerProcess::new(PROGRAM.name, settings.steppable_clock)?,
            settings,
            side: Reconnecting::default(),
            database: Mutex::default(),
            template: template()?,
        };
        match server.settings.small_disk {
            None => copy_folder(server.template.path(), &server.data())?,
            Some(_) => std::fs::create_dir(server.data())?,
        }
        start_on_free_ports(&mut server, Self::run, |server| server.process.change_port())?;
        Ok(server)
    }

    /// Starts it again on its port, after [`stop`](ServerProcess::stop) or [`kill`](ServerProcess::kill).
    ///
    /// # Errors
    /// If it still runs or does not start.
    pub fn start_again(&mut self, data: Data) -> io::Result<()> {
        self.process.stopped()?;
        if data == Data::Lost && self.settings.small_disk.is_none() {
            std::fs::remove_dir_all(self.data())?;
            copy_folder(self.template.path(), &self.data())?;
        }
        self.run()
    }

    /// Uses up what is left on the disk of its data folder.
    ///
    /// # Errors
    /// If it does not run, or was not started with [`MySqlSettings::small_disk`].
    pub fn fill_disk(&self) -> io::Result<()> {
        small_disk::fill(self.on_small_disk()?, &self.data())
    }

    /// Makes room again on the disk of its data folder.
    ///
    /// # Errors
    /// If it does not run, or the disk was not filled.
    pub fn empty_disk(&self) -> io::Result<()> {
        small_disk::empty(self.on_small_disk()?, &self.data())
    }

    fn on_small_disk(&self) -> io::Result<u32> {
        let id = self.id().filter(|_| self.settings.small_disk.is_some());
        id.ok_or_else(|| io::Error::other("it has no small disk, or does not run"))
    }

    /// Steps its wall clock by `micros`: forward, or back if negative. Returns when its replies show the step.
    ///
    /// # Errors
    /// If it was not started with [`MySqlSettings::steppable_clock`], or the step does not show within seconds.
    pub fn step_clock(&self, micros: i64) -> io::Result<()> {
        if self.id().is_none() {
            return self.step(micros);
        }
        self.step_until_shown(micros, || self.wall_clock())
    }

    /// Its wall clock, in microseconds.
    ///
    /// # Errors
    /// As [`query`](Self::query).
    pub fn wall_clock(&self) -> io::Result<i64> {
        let rows = self.query("SELECT CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS CHAR)")?;
        super::number(rows.first().and_then(|row| row.first()))
    }

    /// Creates a database with tables, and a user who may use it from any host. Later statements run in this database.
    ///
    /// # Errors
    /// As [`query`](Self::query).
    pub fn create(&self, database: &str, tables: &str, user: &str, password: &str, grants: &str) -> io::Result<()> {
        let user = format!("CREATE USER {user} IDENTIFIED BY '{password}'");
        self.query(&format!("CREATE DATABASE {database}; USE {database}; {tables} {user}; {grants}"))?;
        *self.database.lock().unwrap_or_else(PoisonError::into_inner) = Some(database.to_owned());
        Ok(())
    }

    /// Runs statements as root, beside the library under test, and returns the rows of all results. Blocks for at most
    /// twenty seconds.
    ///
    /// # Errors
    /// The server's error, or that of the connection. The next call then opens a new connection.
    pub fn query(&self, statements: &str) -> io::Result<Vec<TextRow>> {
        self.side.query(statements, || self.side())
    }

    /// A further connection like that of [`query`](Self::query).
    ///
    /// # Errors
    /// Those of the connection.
    pub fn side(&self) -> io::Result<SqlConnection> {
        // A case may record the log, and looks for passwords in it.
        let options = MySqlConnectOptions::new().disable_statement_logging();
        let options = options.socket(self.socket()).username("root").ssl_mode(MySqlSslMode::Disabled);
        let connection = SqlConnection::open(options)?;
        if let Some(database) = &*self.database.lock().unwrap_or_else(PoisonError::into_inner) {
            // A server that has lost its data has no database until the next `create`.
            let _ = connection.query(&format!("USE {database}"));
        }
        Ok(connection)
    }

    /// A connection of a user, over TCP.
    pub(super) fn client(&self, user: &str, password: &str, database: &str) -> io::Result<SqlConnection> {
        let options = MySqlConnectOptions::new().disable_statement_logging();
        let options = options.host(&self.addr().ip().to_string()).port(self.port()).ssl_mode(MySqlSslMode::Disabled);
        SqlConnection::open(options.username(user).password(password).database(database))
    }

    fn socket(&self) -> PathBuf {
        self.folder().join("socket")
    }

    fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    /// Starts the process and waits for its first reply.
    fn run(&mut self) -> io::Result<()> {
        self.side.close();
        let _ = std::fs::remove_file(self.socket());
        let option = |name: &str, value: &Path| format!("--{name}={}", value.display());
        let (mut command, as_root) = match self.settings.small_disk {
            None => (Command::new(&self.program), as_root()),
            // It may be root only in its namespace.
            Some(size) => {
                let template = self.template.path();
                (small_disk::command(&self.program, &self.data(), template, size)?, Some(AS_ROOT))
            }
        };
        command.arg("--no-defaults").args([
            option("datadir", &self.data()),
            option("tmpdir", self.folder()),
            option("socket", &self.socket()),
            option("pid-file", &self.folder().join("pid")),
            format!("--port={}", self.port()),
        ]);
        command.args(as_root).args(OPTIONS).args(self.settings.options.iter().map(|option| format!("--{option}")));
        self.process.spawn(&mut command)?;
        while !(self.socket().exists() && self.query("SELECT 1").is_ok()) {
            self.process.await_start()?;
        }
        Ok(())
    }
}

/// The data folder of a new server. Each server copies it, because creating one takes a second. It exists while a
/// server uses it: the folder of a static would never be removed.
fn template() -> io::Result<Arc<TempDir>> {
    static TEMPLATE: Mutex<Weak<TempDir>> = Mutex::new(Weak::new());
    let mut template = TEMPLATE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(template) = template.upgrade() {
        return Ok(template);
    }
    let made = Arc::new(install()?);
    *template = Arc::downgrade(&made);
    Ok(made)
}

fn install() -> io::Result<TempDir> {
    let folder = folder("leasehold-mariadb-template-")?;
    // A temporary folder of its own: installations that share one at the same time remove each other's temporary
    // tables.
    let temporary = TempDir::new()?;
    let mut command = Command::new(INSTALL.find()?);
    command.env("TMPDIR", temporary.path());
    command.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
    command.args(as_root()).arg(format!("--datadir={}", folder.path().display()));
    command.args(OPTIONS.iter().filter(|option| option.starts_with("--innodb")));
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(folder);
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    Err(io::Error::other(format!("mariadb-install-db fails: {text}")))
}

/// A server that root starts refuses to run unless this option says that it stays root.
const AS_ROOT: &str = "--user=root";

fn as_root() -> Option<&'static str> {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    is_root.then_some(AS_ROOT)
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
