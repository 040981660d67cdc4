//! The connections of a process, as the system lists them.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;

/// The state of an established connection.
const ESTABLISHED: &str = "01";

/// An established TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Socket {
    pub(crate) local: u16,
    pub(crate) remote: u16,
}

/// The connections of a process. Connections that it has not accepted yet do not count. Linux only.
pub(crate) fn sockets_of(id: u32) -> io::Result<Vec<Socket>> {
    let mut own = HashSet::new();
    for entry in std::fs::read_dir(format!("/proc/{id}/fd"))? {
        // `socket:[number]`. The process may have closed it since.
        if let Ok(target) = std::fs::read_link(entry?.path()) {
            own.extend(number_of(&target.to_string_lossy()).map(str::to_owned));
        }
    }
    // A program may use IPv6 sockets for IPv4 addresses.
    let tables = ["tcp", "tcp6"].map(|table| std::fs::read_to_string(format!("/proc/{id}/net/{table}")));
    let table = tables.into_iter().filter_map(Result::ok).collect::<String>();
    Ok(table.lines().filter_map(|line| established(line, &mut own)).collect())
}

/// The number of established TCP connections from a process to an address. Linux only.
///
/// # Errors
/// If the process has ended.
pub fn connections(id: u32, to: SocketAddr) -> io::Result<usize> {
    Ok(sockets_of(id)?.iter().filter(|socket| socket.remote == to.port()).count())
}

fn number_of(target: &str) -> Option<&str> {
    target.strip_prefix("socket:[")?.strip_suffix(']')
}

/// Reads `0: 0100007F:1F90 0100007F:C350 01 … … … uid timeout inode …`. Takes the number of the socket from `own`: while
/// other sockets come and go, the system may list one twice.
fn established(line: &str, own: &mut HashSet<String>) -> Option<Socket> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (&local, &remote, &state, &inode) = (fields.get(1)?, fields.get(2)?, fields.get(3)?, fields.get(9)?);
    let port = |address: &str| u16::from_str_radix(address.split_once(':')?.1, 16).ok();
    (state == ESTABLISHED && own.remove(inode)).then_some(Socket { local: port(local)?, remote: port(remote)? })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_connection_counts_while_it_is_accepted_and_open() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = || {
            let sockets = sockets_of(std::process::id()).unwrap();
            let [accepted, opened] = [|socket: &Socket| socket.local, |socket: &Socket| socket.remote]
                .map(|port_of| sockets.iter().filter(|socket| port_of(socket) == port).count());
            (accepted, opened)
        };
        assert_eq!(own(), (0, 0));
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        assert_eq!(own(), (0, 1), "it is not accepted yet");
        let accepted = listener.accept().unwrap();
        assert_eq!(own(), (1, 1));
        drop((client, accepted));
        assert_eq!(own(), (0, 0));
    }
}
