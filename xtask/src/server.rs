//! A redis-server for the examples: they take a URL, and the README says so.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long it may take until it answers. It mostly takes 10 ms.
const START_BOUND: Duration = Duration::from_secs(20);

/// Listens on a unix socket in a folder of its own, and is killed when this is dropped.
pub(crate) struct Server {
    process: Child,
    folder: PathBuf,
}

impl Server {
    /// Starts it.
    pub(crate) fn start() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("leasehold-examples-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(folder.join("redis.sock"));
        command.current_dir(&folder).stdin(Stdio::null()).stdout(Stdio::null());
        let process = command.spawn().context("cannot start redis-server")?;
        let mut server = Self { process, folder };
        let until = Instant::now() + START_BOUND;
        while !server.answers() {
            if let Some(exit) = server.process.try_wait()? {
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
        format!("redis+unix://{}", self.folder.join("redis.sock").display())
    }

    fn answers(&self) -> bool {
        std::os::unix::net::UnixStream::connect(self.folder.join("redis.sock")).is_ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // What fails here leaves a folder behind, or a process that is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
