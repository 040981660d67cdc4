//! Ports that nobody else takes.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpSocket;

/// Below 32768, where Linux begins to give out ports to outgoing connections: a port that a server leaves
/// for a moment is not taken by somebody's client.
const RANGE: Range<u16> = 10_240..32_768;

/// So many ports belong together.
const BLOCK: u16 = 256;

/// How long a socket of this process that was closed may go on listening: a child that is just being started has a
/// copy of it until it runs its program.
const COPIES: Duration = Duration::from_secs(5);

/// The ports that are this process's to give out.
static BLOCKS: Mutex<Vec<Block>> = Mutex::new(Vec::new());

/// Ports that no other process's suite takes, and the sign of that: the UDP socket of the first of them, which one process has.
#[derive(Debug)]
struct Block {
    _sign: UdpSocket,
    left: Range<u16>,
}

impl Block {
    /// Takes one that nobody has.
    fn take() -> io::Result<Self> {
        let count = (RANGE.end - RANGE.start) / BLOCK;
        let random = RandomState::new().hash_one(0) % u64::from(count);
        let begin = u16::try_from(random).unwrap_or_default();
        for index in (begin..count).chain(0..begin) {
            let first = RANGE.start + index * BLOCK;
            if let Ok(sign) = UdpSocket::bind((Ipv4Addr::LOCALHOST, first)) {
                return Ok(Self { _sign: sign, left: first..first + BLOCK });
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "all loopback ports between 10240 and 32767 are taken"))
    }
}

/// A loopback port that is free, and that no other [`Port`] of this process, or of another that runs beside it, is or was: a
/// server can be stopped and started again on it, and a client that is left of one case cannot come to the server of another.
#[derive(Debug)]
pub struct Port(u16);

impl Port {
    /// Finds a free port.
    ///
    /// # Errors
    /// When none is left.
    pub fn free() -> io::Result<Self> {
        let mut blocks = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(block) = blocks.last_mut() {
                let free = block.left.by_ref().map(Self).find(|port| reserve(port.addr()).is_ok());
                if let Some(port) = free {
                    return Ok(port);
                }
            }
            blocks.push(Block::take()?);
        }
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
    use std::collections::HashSet;
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
    fn two_processes_have_no_port_in_common() {
        // What another process would see.
        let (mine, other) = (Block::take().unwrap(), Block::take().unwrap());
        assert!(mine.left.end <= other.left.start || other.left.end <= mine.left.start, "{mine:?} {other:?}");
    }

    #[test]
    fn one_that_somebody_listens_on_is_not_free() {
        let port = Port::free().unwrap();
        let listens = port.listen().unwrap();
        assert_eq!(reserve(port.addr()).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(listens);
    }
}
