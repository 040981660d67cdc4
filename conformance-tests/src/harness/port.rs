//! Ports that nobody else takes.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Mutex, PoisonError};

/// Below 32768, where Linux begins to give out ports to outgoing connections: a port that a server leaves
/// for a moment is not taken by somebody's client.
const RANGE: std::ops::Range<u16> = 10_240..32_768;

static TAKEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// A loopback port that is free, and that no other [`Port`] of this process has while this one lives, so that a
/// server can be stopped and started again on it.
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
            let port = match taken(|taken| taken.insert(port)) {
                true => Self(port),
                false => continue,
            };
            if TcpListener::bind(port.addr()).is_ok() {
                return Ok(port);
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "no free loopback port between 10240 and 32767"))
    }

    /// The number.
    pub fn number(&self) -> u16 {
        self.0
    }

    /// The port on the loopback address.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.0).into()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        taken(|taken| taken.remove(&self.0));
    }
}

fn taken<T>(f: impl FnOnce(&mut HashSet<u16>) -> T) -> T {
    f(TAKEN.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_and_can_be_bound() {
        let ports: Vec<Port> = (0..50).map(|_| Port::free().unwrap()).collect();
        let numbers: HashSet<u16> = ports.iter().map(Port::number).collect();
        assert_eq!(numbers.len(), ports.len());
        for port in &ports {
            assert!(RANGE.contains(&port.number()));
            TcpListener::bind(port.addr()).unwrap();
        }
    }
}
