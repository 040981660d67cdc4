//! A Sentinel that always names the same server, whatever happens.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

pub(super) struct Liar(SocketAddr);

impl Liar {
    /// It serves clients until the process of the tests ends.
    pub(super) fn start(names: SocketAddr, name: &'static str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap_or_else(|error| panic!("no listener: {error}"));
        let addr = listener.local_addr().unwrap_or_else(|error| panic!("no address: {error}"));
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || serve(&client, names, addr, name));
            }
        });
        Self(addr)
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.0
    }
}

fn serve(client: &TcpStream, names: SocketAddr, own: SocketAddr, name: &str) -> io::Result<()> {
    let mut requests = BufReader::new(client);
    let mut replies = client;
    loop {
        let words = request(&mut requests)?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let reply = match words[..] {
            ["HELLO", ..] => "%1\r\n+proto\r\n:3\r\n".to_owned(),
            ["SENTINEL", "MYID"] => format!("+{:040}\r\n", own.port()),
            ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", asked] if asked == name => {
                format!("*2\r\n+{}\r\n+{}\r\n", names.ip(), names.port())
            }
            ["SUBSCRIBE", channel] => format!(">3\r\n+subscribe\r\n+{channel}\r\n:1\r\n"),
            _ => "-ERR unknown command\r\n".to_owned(),
        };
        replies.write_all(reply.as_bytes())?;
    }
}

/// Reads the words of a request.
fn request(from: &mut impl BufRead) -> io::Result<Vec<String>> {
    let number = |from: &mut dyn BufRead| {
        let mut line = String::new();
        from.read_line(&mut line)?;
        line.trim_end()[line.len().min(1)..].parse::<usize>().map_err(io::Error::other)
    };
    let count = number(from)?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let mut word = vec![0; number(from)? + 2];
        from.read_exact(&mut word)?;
        word.truncate(word.len() - 2);
        words.push(String::from_utf8_lossy(&word).into_owned());
    }
    Ok(words)
}
