//! Ports that nobody else takes.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpSocket;

/// Below 32768, where Linux begins to give out ports to outgoing connections: a port that a server leaves
/// for a moment is not taken by somebody's client.
const RANGE: std::ops::Range<u16> = 10_240..32_768;

/// How long a socket of this process that was closed may go on listening: a child that is just being started has a
/// copy of it until it runs its program.
const COPIES: Duration = Duration::from_secs(5);

/// Those that were given out.
static TAKEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// A loopback port that is free, and that no other [`Port`] of this process is or was: a server can be stopped and started
/// again on it, and a client that is left of one case cannot come to the server of another.
#[derive(Debug)]
pub struct Port(u16);

impl Port {
    /// Finds a free port.
    ///
    /// # Errors
    /// When none is found in 1,000 tries.
    pub fn free() -> io::Result<Self> {
        let random = RandomState::new();
        for attempt in 0..1_000_u32 {
            let offset = random.hash_one(attempt) % u64::from(RANGE.end - RANGE.start);
            let port = RANGE.start + u16::try_from(offset).unwrap_or_default();
            let is_new = TAKEN.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert(port);
            let port = Self(port);
            if is_new && reserve(port.addr()).is_ok() {
                return Ok(port);
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "no free loopback port between 10240 and 32767"))
    }

    /// The number.
    pub fn number(&self) -> u16 {
        self.0
    }

    /// Listens on it, also when it was listened on a moment ago. Blocks for that, at most for seconds.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn listen(&self) -> io::Result<TcpListener> {
        let until = Instant::now() + COPIES;
        loop {
            match TcpListener::bind(self.addr()) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                other => return other,
            }
        }
    }

    /// The port on the loopback address.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.0).into()
    }
}

/// Binds without listening, so that a copy of the socket in a child (see [`COPIES`]) keeps the port from nobody.
fn reserve(addr: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn ports_differ_and_can_be_bound() {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Children inherit what is open while they start.
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    Command::new("true").status().unwrap();
                }
            });
            let ports: Vec<Port> = (0..50).map(|_| Port::free().unwrap()).collect();
            let bound: Vec<_> = ports.iter().map(|port| TcpListener::bind(port.addr())).collect();
            done.store(true, Ordering::Relaxed);
            assert!(bound.iter().all(Result::is_ok), "{bound:?}");
            let numbers: HashSet<u16> = ports.iter().map(Port::number).collect();
            assert_eq!(numbers.len(), ports.len());
            assert!(numbers.iter().all(|number| RANGE.contains(number)));
        });
    }

    #[test]
    fn one_that_somebody_listens_on_is_not_free() {
        let port = Port::free().unwrap();
        let listens = port.listen().unwrap();
        assert_eq!(reserve(port.addr()).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(listens);
    }
}
