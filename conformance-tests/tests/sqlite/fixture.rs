//! The fixture of SQLite: Leasehold on a file.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold::sqlite::SqliteBackend;
use leasehold_conformance::harness::folder;
use leasehold_conformance::{
    Data, Faults, Fixture, PathFault, Record, ResourceCounts, Room, Route, ServerFault, Tamper, Unsupported,
};
use leasehold_core::LockName;
use leasehold_core::backend::LockBackend;

use super::stored::Stored;

/// A folder with a file of locks. A stopped "server" is a folder that cannot be reached. A paused one is another
/// program with an open write transaction.
pub(super) struct SqliteFixture {
    root: tempfile::TempDir,
    faults: Faults,
    is_broken: AtomicBool,
    blocker: Mutex<Option<Blocker>>,
}

/// How long ending clients may still write into the folder.
const GONE_BY: Duration = Duration::from_secs(5);

/// A program that holds a write transaction open.
struct Blocker {
    end: Sender<()>,
    thread: JoinHandle<()>,
}

impl Blocker {
    fn start(stored: Stored) -> Self {
        let ((begun, has_begun), (end, over)) = (channel(), channel());
        let thread = std::thread::spawn(move || {
            let connection = stored.connection();
            connection.execute_batch("BEGIN IMMEDIATE").expect("a transaction begins");
            let _ = begun.send(());
            let _ = over.recv();
            connection.execute_batch("ROLLBACK").expect("a transaction ends");
        });
        has_begun.recv().expect("the file can be blocked");
        Self { end, thread }
    }

    fn end(self) {
        let _ = self.end.send(());
        self.thread.join().expect("the thread only waits");
    }
}

impl SqliteFixture {
    fn folder(&self) -> PathBuf {
        self.root.path().join("locks")
    }

    fn away(&self) -> PathBuf {
        self.root.path().join("away")
    }

    fn remove_link(&self) {
        std::fs::remove_file(self.folder()).unwrap_or_else(|error| panic!("the link cannot be removed: {error}"));
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder().join("locks.db")
    }

    pub(super) fn stored(&self) -> Stored {
        Stored::new(&self.path())
    }

    /// The URL of clients, with these settings on top.
    pub(super) fn url(&self, more: &str) -> String {
        format!("sqlite://{}?timeout=600ms{more}", self.path().display())
    }

    /// The connections of this process to the file. Each has the `-wal` open once; of the file itself SQLite keeps some
    /// more open, for its next connections, while there is any.
    fn connections(&self) -> u64 {
        open_files(&self.folder().join("locks.db-wal"))
    }
}

/// How many times this process has a file open for reading or writing. Descriptors with `O_PATH` do not count.
pub(super) fn open_files(path: &Path) -> u64 {
    let open = std::fs::read_dir("/proc/self/fd").unwrap_or_else(|error| panic!("/proc is not mounted: {error}"));
    let leads_there = |entry: &std::fs::DirEntry| {
        let is_open = || {
            let info = std::fs::read_to_string(Path::new("/proc/self/fdinfo").join(entry.file_name())).ok()?;
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?.trim().to_owned();
            Some(u32::from_str_radix(&flags, 8).ok()? & rustix::fs::OFlags::PATH.bits() == 0)
        };
        std::fs::read_link(entry.path()).is_ok_and(|link| link == path) && is_open().unwrap_or(false)
    };
    open.filter_map(Result::ok).filter(leads_there).count() as u64
}

fn rename(from: &Path, to: &Path) {
    std::fs::rename(from, to).unwrap_or_else(|error| panic!("{} cannot be moved: {error}", from.display()));
}

impl Drop for SqliteFixture {
    /// An ending client may still write a file into the folder that is being removed.
    fn drop(&mut self) {
        let until = Instant::now() + GONE_BY;
        while std::fs::remove_dir_all(self.root.path()).is_err() && self.root.path().exists() && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[async_trait]
impl Fixture for SqliteFixture {
    async fn new() -> Self {
        let root = folder("leasehold-sqlite-").unwrap_or_else(|error| panic!("no folder for a file: {error}"));
        let fixture = Self {
            root,
            faults: Faults::new(tokio::runtime::Handle::current()),
            is_broken: AtomicBool::new(false),
            blocker: Mutex::default(),
        };
        std::fs::create_dir(fixture.folder()).unwrap_or_else(|error| panic!("no folder for a file: {error}"));
        fixture
    }

    /// Opens the file if possible, so that a following fault meets a request and not the opening.
    async fn backend(&self, route: Route) -> Arc<dyn LockBackend> {
        let url = self.url("");
        let opened = match self.is_broken.load(Ordering::Acquire) {
            true => None,
            false => SqliteBackend::connect(&url).await.ok(),
        };
        let backend = match opened {
            Some(backend) => backend,
            None => SqliteBackend::connect_lazy(&url).unwrap_or_else(|error| panic!("no backend: {error:?}")),
        };
        Arc::new(self.faults.wrap(Arc::new(backend), route))
    }

    async fn backend_with_retention(&self, retention: Duration) -> Result<Arc<dyn LockBackend>, Unsupported> {
        let url = self.url(&format!("&retention={}ms", retention.as_millis()));
        let backend = SqliteBackend::connect(&url).await.unwrap_or_else(|error| panic!("no backend: {error:?}"));
        Ok(Arc::new(self.faults.wrap(Arc::new(backend), Route::Clear)))
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(600)
    }

    async fn path(&self, fault: PathFault) {
        self.is_broken.store(true, Ordering::Release);
        self.faults.path(fault);
    }

    async fn heal(&self) {
        self.is_broken.store(false, Ordering::Release);
        self.faults.heal();
    }

    async fn deliver(&self) {
        self.faults.deliver().await;
    }

    async fn server(&self, fault: ServerFault) -> Result<(), Unsupported> {
        let mut blocker = self.blocker.lock().unwrap_or_else(PoisonError::into_inner);
        match fault {
            ServerFault::Stop | ServerFault::Kill => {
                rename(&self.folder(), &self.away());
                // A link to itself. A missing folder would count as wrong input, which waiting does not cure.
                symlink(self.folder(), self.folder()).unwrap_or_else(|error| panic!("no link: {error}"));
            }
            ServerFault::Start(Data::Kept) => {
                self.remove_link();
                rename(&self.away(), &self.folder());
            }
            ServerFault::Start(Data::Lost) => {
                self.remove_link();
                std::fs::create_dir(self.folder()).unwrap_or_else(|error| panic!("no new folder: {error}"));
            }
            ServerFault::Pause => *blocker = Some(Blocker::start(self.stored())),
            ServerFault::Resume => {
                if let Some(blocker) = blocker.take() {
                    blocker.end();
                }
            }
            ServerFault::FlushScripts => {
                // The schema of every prepared statement is then outdated.
                let change = "CREATE TABLE IF NOT EXISTS other (a); ALTER TABLE other ADD COLUMN b; DROP TABLE other";
                self.stored().connection().execute_batch(change).unwrap_or_else(|error| panic!("{change}: {error}"));
            }
            ServerFault::RefuseUser | ServerFault::ReadOnly => {
                return Err(Unsupported::because("a file has the permissions of the system, which pass by root"));
            }
            ServerFault::Fill(Room::Data) => {
                return Err(Unsupported::because(
                    "the disk is the machine's: lock-sqlite's own tests fill a file instead",
                ));
            }
            ServerFault::Fill(Room::Connections) | ServerFault::Restore => {
                return Err(Unsupported::because("a file has no limit of connections"));
            }
            ServerFault::ClockForward(_) | ServerFault::ClockBack(_) => {
                return Err(Unsupported::because("the wall clock ends no lease here; lock-sqlite's own tests step it"));
            }
        }
        Ok(())
    }

    async fn tamper(&self, name: &LockName, tamper: Tamper) -> Result<(), Unsupported> {
        let what = match tamper {
            Tamper::Remove => "DELETE FROM leasehold_locks",
            Tamper::Corrupt => "UPDATE leasehold_locks SET format = '?'",
            Tamper::OtherVersion => "UPDATE leasehold_locks SET format = '2x'",
        };
        self.stored().change(what, name);
        Ok(())
    }

    async fn record(&self, name: &LockName) -> Record {
        self.stored().record(name)
    }

    async fn resource_counts(&self) -> ResourceCounts {
        ResourceCounts { connections: self.connections(), ..self.stored().resource_counts() }
    }

    async fn served(&self) -> u64 {
        self.faults.served()
    }
}
