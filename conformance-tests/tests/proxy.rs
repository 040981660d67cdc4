//! The fault proxy: each fault has its documented effect, and no other.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold_conformance::harness::{Fault, FaultProxy, LagMonitor, Reach};

/// The time limit of an expected event.
const SOON: Duration = Duration::from_secs(10);

/// How long a test waits for an event that must not happen.
const QUIET: Duration = Duration::from_millis(60);

/// A server that replies to every byte with the same byte in upper case, and records what it received.
#[derive(Clone)]
struct Echo {
    addr: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    bytes: String,
    connections: usize,
    ends: usize,
    streams: Vec<TcpStream>,
}

impl Echo {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let echo = Self { addr: listener.local_addr().unwrap(), seen: Arc::default() };
        let server = echo.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, server) = (stream.unwrap(), server.clone());
                stream.set_nodelay(true).unwrap();
                server.seen.lock().unwrap().connections += 1;
                server.seen.lock().unwrap().streams.push(stream.try_clone().unwrap());
                std::thread::spawn(move || server.serve(stream));
            }
        });
        echo
    }

    fn serve(&self, mut stream: TcpStream) {
        let mut buffer = [0; 1024];
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            let text = std::str::from_utf8(&buffer[..read]).unwrap();
            self.seen.lock().unwrap().bytes.push_str(text);
            let _ = stream.write_all(text.to_uppercase().as_bytes());
        }
        self.seen.lock().unwrap().ends += 1;
        let _ = stream.shutdown(Shutdown::Both);
    }

    fn bytes(&self) -> String {
        self.seen.lock().unwrap().bytes.clone()
    }

    fn ends(&self) -> usize {
        self.seen.lock().unwrap().ends
    }
}

struct Client(TcpStream);

impl Client {
    fn open(proxy: &FaultProxy) -> Self {
        let stream = TcpStream::connect(proxy.addr()).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).unwrap();
    }

    /// Receives bytes within a time; "" is the end of the stream.
    fn receive(&mut self, within: Duration) -> Result<String, ErrorKind> {
        self.0.set_read_timeout(Some(within)).unwrap();
        let mut buffer = [0; 1024];
        let read = self.0.read(&mut buffer).map_err(|error| error.kind())?;
        Ok(String::from_utf8(buffer[..read].to_vec()).unwrap())
    }

    /// Asserts that the connection works: the server echoes a word.
    fn chat(&mut self, word: &str) {
        self.send(word);
        assert_eq!(self.receive(SOON), Ok(word.to_uppercase()));
    }

    fn receives_nothing(&mut self) {
        assert_eq!(self.receive(QUIET), Err(ErrorKind::WouldBlock));
    }
}

fn start() -> (Echo, FaultProxy) {
    let echo = Echo::start();
    let proxy = FaultProxy::start(echo.addr).unwrap();
    (echo, proxy)
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let until = Instant::now() + SOON;
    while !condition() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn without_a_fault_it_passes_bytes_and_ends_and_counts_them() {
    let (echo, proxy) = start();
    assert!(proxy.addr().port() < 32_768);
    let mut client = Client::open(&proxy);
    client.chat("word");
    eventually("counted, just after it was passed on", || proxy.stats().held == 0);
    let stats = proxy.stats();
    assert_eq!((stats.accepted, stats.open, stats.requests, stats.replies, stats.lost), (1, 1, 4, 4, 0));
    client.0.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.receive(SOON), Ok(String::new()));
    assert_eq!(echo.ends(), 1);
    eventually("closed", || proxy.stats().open == 0);
}

#[test]
fn it_serves_new_connections_by_another_server() {
    let ((first, proxy), second) = (start(), Echo::start());
    let mut open = Client::open(&proxy);
    open.chat("one");
    proxy.redirect(second.addr);
    open.chat("two");
    Client::open(&proxy).chat("three");
    assert_eq!((&*first.bytes(), &*second.bytes()), ("onetwo", "three"));
}

#[test]
fn a_server_that_resets_or_does_not_run_is_seen_as_a_reset() {
    // A socket that is closed with unread bytes is reset by the system.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let proxy = FaultProxy::start(listener.local_addr().unwrap()).unwrap();
    let mut client = Client::open(&proxy);
    client.send("unread");
    let (server, _) = listener.accept().unwrap();
    server.peek(&mut [0]).unwrap();
    drop(server);
    assert_eq!(client.receive(SOON), Err(ErrorKind::ConnectionReset));

    drop(listener);
    assert_eq!(Client::open(&proxy).receive(SOON), Err(ErrorKind::ConnectionReset));
}

#[test]
fn cut_resets_what_is_open_and_serves_what_comes() {
    let (echo, proxy) = start();
    let (mut one, mut other) = (Client::open(&proxy), Client::open(&proxy));
    one.chat("one");
    other.chat("two");
    proxy.apply(Fault::HoldRequests);
    one.send("lost");
    eventually("held", || proxy.stats().held == 4);
    proxy.apply(Fault::Disconnect);
    assert_eq!((proxy.stats().open, proxy.stats().held), (0, 0));
    assert_eq!(one.receive(SOON), Err(ErrorKind::ConnectionReset));
    assert_eq!(other.receive(SOON), Err(ErrorKind::ConnectionReset));
    eventually("the server sees it", || echo.ends() == 2);
    proxy.heal();
    proxy.apply(Fault::Disconnect);
    Client::open(&proxy).chat("three");
    assert_eq!(echo.bytes(), "onetwothree");
}

#[test]
fn refuse_closes_the_listener_and_leaves_what_is_open() {
    let (_echo, proxy) = start();
    let mut client = Client::open(&proxy);
    client.chat("one");
    proxy.apply(Fault::Refuse);
    assert_eq!(TcpStream::connect(proxy.addr()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    client.chat("two");
    proxy.heal();
    client.chat("three");
    Client::open(&proxy).chat("four");
}

#[test]
fn drop_traffic_accepts_and_reads_and_nothing_arrives_in_either_direction() {
    let (echo, proxy) = start();
    let mut old = Client::open(&proxy);
    old.chat("one");
    proxy.apply(Fault::DropTraffic);
    let mut new = Client::open(&proxy);
    old.send("lost");
    new.send("lost");
    eventually("both were read", || proxy.stats().lost == 8);
    old.receives_nothing();
    new.receives_nothing();
    let unused = Client::open(&proxy);
    eventually("accepted", || proxy.stats().accepted == 3);
    assert_eq!((echo.bytes().as_str(), echo.seen.lock().unwrap().connections), ("one", 1));
    // A connection that lost bytes cannot continue: a later reply would be taken for that of the lost request.
    proxy.heal();
    assert_eq!(old.receive(SOON), Err(ErrorKind::ConnectionReset));
    assert_eq!(new.receive(SOON), Err(ErrorKind::ConnectionReset));
    drop(unused);
    Client::open(&proxy).chat("two");
    assert_eq!(echo.bytes(), "onetwo");
}

#[test]
fn delay_is_a_lower_bound_each_way_and_keeps_the_order() {
    let (_echo, proxy) = start();
    let lag_monitor = LagMonitor::start();
    let mut client = Client::open(&proxy);
    client.chat("one");
    let (requests, replies) = (Duration::from_millis(400), Duration::from_millis(250));
    proxy.apply(Fault::Delay { requests, replies });
    let begin = Instant::now();
    client.send("a");
    std::thread::sleep(Duration::from_millis(5));
    client.send("b");
    let mut received = String::new();
    while received.len() < 2 {
        received.push_str(&client.receive(SOON).unwrap());
        assert!(begin.elapsed() >= requests + replies, "{received} after {:?}", begin.elapsed());
    }
    assert_eq!(received, "AB");
    // Five wake-ups one after the other: proxy, server, proxy, each with its timer, and this thread.
    let bound = requests + replies + Duration::from_millis(5 + 200);
    assert!(begin.elapsed() <= bound + 5 * lag_monitor.lag(), "{:?}", begin.elapsed());
    proxy.heal();
    client.chat("three");
}

#[test]
fn healing_a_delay_keeps_the_connection_and_the_order() {
    let (echo, proxy) = start();
    let mut client = Client::open(&proxy);
    client.chat("one");
    proxy.apply(Fault::Delay { requests: SOON, replies: SOON });
    client.send("two");
    eventually("it is on its way", || proxy.stats().held == 3);
    proxy.heal();
    client.send("three");
    eventually("both arrive", || echo.bytes().len() == "onetwothree".len());
    assert_eq!(echo.bytes(), "onetwothree");
    let mut received = String::new();
    while received.len() < "TWOTHREE".len() {
        received.push_str(&client.receive(SOON).unwrap());
    }
    assert_eq!(received, "TWOTHREE");
}

#[test]
fn lose_replies_lets_requests_through() {
    let (echo, proxy) = start();
    let mut client = Client::open(&proxy);
    client.chat("one");
    proxy.apply(Fault::LoseReplies);
    client.send("two");
    eventually("the server has it", || echo.bytes() == "onetwo");
    eventually("its reply was lost", || proxy.stats().lost == 3);
    client.receives_nothing();
    proxy.heal();
    assert_eq!(client.receive(SOON), Err(ErrorKind::ConnectionReset));
}

#[test]
fn held_requests_arrive_late_though_their_client_has_gone() {
    let (echo, proxy) = start();
    let mut old = Client::open(&proxy);
    old.chat("one");
    proxy.apply_to(Fault::HoldRequests, Reach::Open);
    old.send("late");
    eventually("held", || proxy.stats().held == 4);
    drop(old);
    // New connections are not affected: their bytes overtake the held ones.
    let mut new = Client::open(&proxy);
    new.chat("two");
    std::thread::sleep(QUIET);
    assert_eq!((echo.bytes().as_str(), echo.ends()), ("onetwo", 0));
    proxy.deliver();
    eventually("it arrives, and then the end", || echo.ends() == 1);
    assert_eq!(echo.bytes(), "onetwolate");
    new.chat("three");
}

#[test]
fn healing_keeps_what_is_held_and_ends_its_connection_for_the_client() {
    let (echo, proxy) = start();
    let (mut busy, mut idle) = (Client::open(&proxy), Client::open(&proxy));
    busy.chat("one");
    idle.chat("two");
    proxy.apply(Fault::HoldRequests);
    busy.send("late");
    eventually("held", || proxy.stats().held == 4);
    proxy.heal();
    assert_eq!(busy.receive(SOON), Ok(String::new()), "the end of the stream");
    idle.chat("three");
    std::thread::sleep(QUIET);
    assert_eq!(echo.bytes(), "onetwothree");
    proxy.deliver();
    eventually("it arrives", || echo.bytes() == "onetwothreelate");
    assert_eq!(proxy.stats().held, 0);
}

#[test]
fn deliver_ends_the_hold_of_open_connections() {
    let (_echo, proxy) = start();
    let mut old = Client::open(&proxy);
    old.chat("one");
    proxy.apply(Fault::HoldRequests);
    old.send("two");
    old.receives_nothing();
    proxy.deliver();
    assert_eq!(old.receive(SOON), Ok("TWO".into()));
    old.chat("three");
    let mut new = Client::open(&proxy);
    new.send("four");
    new.receives_nothing();
}

#[test]
fn half_open_hides_the_end_of_one_side_from_the_other() {
    let (echo, proxy) = start();
    let (mut leaver, mut stayer) = (Client::open(&proxy), Client::open(&proxy));
    leaver.chat("one");
    stayer.chat("two");
    proxy.apply(Fault::HalfOpen);
    leaver.send("last");
    drop(leaver);
    eventually("what was sent before arrives", || echo.bytes() == "onetwolast");
    let stream = echo.seen.lock().unwrap().streams.pop().unwrap();
    stream.shutdown(Shutdown::Both).unwrap();
    eventually("the second stream's thread sees its end", || echo.ends() == 1);
    stayer.receives_nothing();
    // The second stream's thread has seen its own shutdown; the first one, whose client has closed, has seen nothing.
    assert_eq!(echo.ends(), 1);
    proxy.heal();
    eventually("both ends are passed on", || echo.ends() == 2);
    assert_eq!(stayer.receive(SOON), Ok(String::new()));
}

#[test]
fn faults_add_up() {
    let (echo, proxy) = start();
    let mut client = Client::open(&proxy);
    client.chat("one");
    proxy.apply(Fault::Refuse);
    proxy.apply(Fault::DropTraffic);
    // A connection that lost bytes stays silent, whichever faults follow.
    client.send("lost");
    eventually("lost", || proxy.stats().lost == 4);
    proxy.apply(Fault::HoldRequests);
    client.send("too");
    proxy.deliver();
    std::thread::sleep(QUIET);
    assert_eq!(echo.bytes(), "one");
    assert!(TcpStream::connect(proxy.addr()).is_err());
}

#[test]
fn it_works_while_the_runtime_of_a_test_starves() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async move {
        // Nothing else can run on this runtime, because the rest of the test never yields.
        let (_echo, proxy) = start();
        let mut client = Client::open(&proxy);
        client.chat("one");
        proxy.apply(Fault::Disconnect);
        assert_eq!(client.receive(SOON), Err(ErrorKind::ConnectionReset));
    });
}
