//! Ports that no other process uses.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpSocket;

/// Below 32768, where Linux begins to give out ports to outgoing connections: a client cannot take the port of a server
/// that is stopped for a moment.
const RANGE: Range<u16> = 10_240..32_768;

/// The number of ports in a block.
const BLOCK: u16 = 256;

/// How long a closed socket of this process may still listen: a child that is being started has a copy of it until it
/// runs its program.
const COPIES: Duration = Duration::from_secs(5);

/// The blocks of ports of this process.
static BLOCKS: Mutex<Vec<Block>> = Mutex::new(Vec::new());

/// A block of ports that no other process of the suite uses. The UDP socket of its first port reserves the block.
#[derive(Debug)]
struct Block {
    _sign: UdpSocket,
    left: Range<u16>,
}

impl Block {
    /// Reserves a free block.
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

/// A free loopback port that no other [`Port`] of this process or of a concurrent one has or had. So a server can be
/// started on it again, and a client that one case left behind cannot reach the server of another.
#[derive(Debug)]
pub struct Port(u16);

impl Port {
    /// Finds a free port.
    ///
    /// # Errors
    /// If none is left.
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

    /// Listens on it, even if it was in use a moment ago. Blocks for some seconds at most.
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

/// Binds without listening, so that a copy of the socket in a child (see [`COPIES`]) does not block the port.
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
            // Children inherit open sockets while they start.
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
        // The view of another process.
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
