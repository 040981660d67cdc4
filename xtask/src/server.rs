//! Stores for the examples: they take a URL, and the README says so.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::needs;

/// How long it may take until it answers. It mostly takes 10 ms.
const START_BOUND: Duration = Duration::from_secs(20);

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
            "sqlite" => {
                let url = format!("sqlite://{}", folder.join("locks.db").display());
                Ok(Self { process: None, folder, url })
            }
            _ => bail!("there is no starter for {store}"),
        }
    }

    fn redis(folder: PathBuf) -> Result<Self> {
        let mut command = Command::new(needs::REDIS.find()?.context("redis-server is not installed")?);
        command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(folder.join("redis.sock"));
        command.current_dir(&folder).stdin(Stdio::null()).stdout(Stdio::null());
        let process = Some(command.spawn().context("cannot start redis-server")?);
        let url = format!("redis+unix://{}", folder.join("redis.sock").display());
        let mut server = Self { process, folder, url };
        let until = Instant::now() + START_BOUND;
        while !server.answers() {
            if let Some(exit) = server.process.as_mut().map(Child::try_wait).transpose()?.flatten() {
                bail!("redis-server ended: {exit}");
            }
            if Instant::now() > until {
                bail!("redis-server does not answer after {} s", START_BOUND.as_secs());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    fn answers(&self) -> bool {
        std::os::unix::net::UnixStream::connect(self.folder.join("redis.sock")).is_ok()
    }
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
