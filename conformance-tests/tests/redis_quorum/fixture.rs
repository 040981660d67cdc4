//! The fixture of a quorum: three redis-servers. Each fault of the path or of the server affects all of them.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::redis::{QuorumBackend, ScriptCalls, acl};
use leasehold_conformance::{Data, Record, ResourceCounts, Room, ServerFault, Tamper, Unsupported};
use leasehold_core::LockName;
use leasehold_core::backend::LockBackend;
use leasehold_test_servers::{Monitor, RedisServer, RedisSettings};

use super::group::{first_use, reach_all};
use super::servers::{Servers, ServersFixture, Store};
use super::stored::{State, Stored};

pub(super) type ThreeServers = ServersFixture<Quorum>;

const USER: &str = "locker";

/// With a character that is a wildcard in patterns of Redis.
pub(super) const PREFIX: &str = "team*a:locks:";

/// The servers, in the order of the URL.
pub(super) struct Three(Vec<RedisServer>);

impl Three {
    pub(super) fn servers(&self) -> &[RedisServer] {
        &self.0
    }

    pub(super) fn server_mut(&mut self, number: usize) -> &mut RedisServer {
        &mut self.0[number]
    }
}

impl Servers for Three {
    type Server = RedisServer;
    type Side = RedisServer;

    fn start() -> io::Result<Self> {
        let start = |_| {
            let user = format!("user {USER} {}", user_rules());
            RedisSettings::new().persistent().steppable_clock().line(user).start()
        };
        (0..3).map(start).collect::<io::Result<_>>().map(Self)
    }

    fn all(&self) -> &[RedisServer] {
        &self.0
    }

    fn all_mut(&mut self) -> &mut [RedisServer] {
        &mut self.0
    }

    fn side(&self) -> &RedisServer {
        &self.0[0]
    }

    fn start_again(&mut self) -> io::Result<()> {
        self.0.iter_mut().try_for_each(|server| server.start_again(Data::Kept))
    }
}

/// The rules of the user with the least permissions, in the syntax of the configuration and of `ACL SETUSER`.
fn user_rules() -> String {
    format!("on >{} {}", Quorum::PASSWORD, acl(PREFIX, ScriptCalls::Eval).expect("a prefix"))
}

/// What a quorum is for its clients.
pub(super) struct Quorum {
    monitors: Mutex<Vec<Monitor>>,
}

/// Whether a command is about locks: a script with the record of a lock, not one about the server itself.
fn is_about_a_lock(command: &str) -> bool {
    command.starts_with("\"EVAL") && command.contains('{')
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).expect("no step of a clock is that long")
}

/// Runs commands at each server, one after the other.
fn execute(servers: &Three, commands: &[&[&str]]) -> io::Result<()> {
    servers.0.iter().try_for_each(|server| commands.iter().try_for_each(|command| server.command(command).map(drop)))
}

impl Store for Quorum {
    type Servers = Three;
    type Taken = Box<Three>;

    const PASSWORD: &'static str = "pass-word";
    const NO_RETENTION: &'static str = "the fixture of several servers has one retention";
    /// A client withdraws the vote of an attempt that failed in the same call, and so behind it.
    const LATE_REQUESTS_ARRIVE: bool = false;
    /// No server votes for the longest ttl after all of them were restarted.
    const BACK_WITHIN: Duration = Duration::from_secs(33);

    fn take() -> io::Result<Box<Three>> {
        Three::start().map(Box::new)
    }

    fn new(servers: &Three) -> Self {
        let monitors = servers.0.iter().map(|server| server.monitor(is_about_a_lock)).collect::<io::Result<_>>();
        Self { monitors: Mutex::new(monitors.unwrap_or_else(|error| panic!("no monitor: {error}"))) }
    }

    fn url(hosts: &str, more: &str) -> String {
        let password = Self::PASSWORD;
        format!("redis+quorum://{USER}:{password}@{hosts}/?prefix={PREFIX}&timeout=1s&longest_ttl=30s{more}")
    }

    async fn first_use(url: String, servers: &Mutex<Box<Three>>) {
        let of = |server: &RedisServer| State::of(server).is_some_and(|state| state.is_settled);
        first_use(&url, || servers.lock().unwrap_or_else(PoisonError::into_inner).0.iter().all(of)).await;
    }

    async fn backend(url: String, is_reachable: bool) -> Arc<dyn LockBackend> {
        let connected = match is_reachable {
            true => QuorumBackend::connect(&url).await.ok(),
            false => None,
        };
        if let Some(backend) = &connected {
            reach_all(backend, 3).await;
        }
        let lazy = || QuorumBackend::connect_lazy(&url).unwrap_or_else(|error| panic!("no backend: {error:?}"));
        Arc::new(connected.unwrap_or_else(lazy))
    }

    fn connections(servers: &Three) -> io::Result<u64> {
        servers.0.iter().map(|server| server.clients().map(|lines| lines.len() as u64)).sum()
    }

    fn fault(servers: &mut Three, fault: &ServerFault) -> Result<io::Result<()>, Unsupported> {
        if let ServerFault::Start(Data::Lost) = fault {
            return Ok(servers.0.iter_mut().try_for_each(|server| server.start_again(Data::Lost)));
        }
        let servers = &*servers;
        let step = |by: i64| servers.0.iter().try_for_each(|server| server.step_clock(by));
        Ok(match fault {
            ServerFault::ClockForward(by) => step(micros(*by)),
            ServerFault::ClockBack(by) => step(-micros(*by)),
            ServerFault::RefuseUser => execute(servers, &[&["ACL", "SETUSER", USER, "off", "resetpass", "-@all"]]),
            ServerFault::ReadOnly => execute(servers, &[&["CONFIG", "SET", "min-replicas-to-write", "1"]]),
            ServerFault::Fill(Room::Data) => execute(servers, &[&["CONFIG", "SET", "maxmemory", "1"]]),
            ServerFault::Fill(Room::Connections) => execute(servers, &[&["CONFIG", "SET", "maxclients", "1"]]),
            ServerFault::FlushScripts => execute(servers, &[&["SCRIPT", "FLUSH", "SYNC"]]),
            ServerFault::Restore => {
                let rules = user_rules();
                let mut user = vec!["ACL", "SETUSER", USER, "reset"];
                user.extend(rules.split(' '));
                let settings: [&[&str]; 4] = [
                    &user,
                    &["CONFIG", "SET", "maxmemory", "0"],
                    &["CONFIG", "SET", "maxclients", "10000"],
                    &["CONFIG", "SET", "min-replicas-to-write", "0"],
                ];
                execute(servers, &settings)
            }
            fault => unreachable!("the fixture of servers makes {fault:?}"),
        })
    }

    fn tamper(servers: &Three, name: &LockName, tamper: Tamper) {
        let key = Stored::key(name);
        let done = match tamper {
            Tamper::Remove => execute(servers, &[&["DEL", &key]]),
            Tamper::Corrupt => execute(servers, &[&["DEL", &key], &["RPUSH", &key, "another program's list"]]),
            Tamper::OtherVersion => execute(servers, &[&["SETRANGE", &key, "0", "\x02"]]),
        };
        done.unwrap_or_else(|error| panic!("the record cannot be changed: {error}"));
    }

    fn record(servers: &Three, name: &LockName) -> Record {
        Stored { servers: &servers.0 }.record(name)
    }

    fn resource_counts(servers: &Three) -> ResourceCounts {
        Stored { servers: &servers.0 }.resource_counts()
    }

    fn served(&self, servers: &Three) -> u64 {
        let mut monitors = self.monitors.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = monitors.iter_mut().zip(&servers.0).map(|(monitor, server)| monitor.count(server));
        let counts: io::Result<Vec<_>> = counts.collect();
        counts.unwrap_or_else(|error| panic!("the commands cannot be counted: {error}")).into_iter().max().unwrap_or(0)
    }
}
