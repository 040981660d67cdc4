//! Calls of the test, over etcd's JSON gateway.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leasehold_conformance::Data;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

/// How long the server may take to reply to the test, in seconds.
const REPLY_BOUND: u64 = 5;

/// How long a call repeats its log-in.
const USERS_BOUND: Duration = Duration::from_secs(2);

/// Calls of the test beside the library under test, over the JSON gateway of one member. Each blocks for at most five
/// seconds.
///
/// They go to a listener of their own, in plain text. So they do not need the client crate of the library, and clients
/// can be counted without them. An error with [`io::ErrorKind::Other`] is the server's.
pub struct EtcdSide {
    addr: SocketAddr,
    password: RootPassword,
    token: Mutex<Option<String>>,
    /// The number of calls by method of gRPC, which the server counts too.
    own_calls: Mutex<BTreeMap<&'static str, u64>>,
}

// Without the password and the token.
impl fmt::Debug for EtcdSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdSide").field("addr", &self.addr).finish_non_exhaustive()
    }
}

/// The password of root, once users have to log in. All members of a cluster share it.
#[derive(Clone, Default)]
pub(super) struct RootPassword(Arc<Mutex<Option<String>>>);

impl RootPassword {
    fn get(&self) -> Option<String> {
        lock(&self.0).clone()
    }

    fn set(&self, password: Option<String>) {
        *lock(&self.0) = password;
    }
}

impl fmt::Debug for RootPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RootPassword")
    }
}

/// An error reply.
#[derive(Deserialize)]
struct ErrorReply {
    error: String,
}

impl ErrorReply {
    /// Whether the call must log in again: a token expires after some minutes without use, and a change of users ends
    /// the requests in flight.
    fn is_about_users(&self) -> bool {
        ["invalid auth token", "revision of auth store is old"].iter().any(|text| self.error.contains(text))
    }
}

impl EtcdSide {
    pub(super) fn new(addr: SocketAddr, password: RootPassword) -> Self {
        Self { addr, password, token: Mutex::default(), own_calls: Mutex::default() }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// The server is started again: it has forgotten its statistics, its tokens, and maybe its users.
    pub(super) fn restarted(&mut self, addr: SocketAddr, data: Data) {
        if data == Data::Lost {
            self.password.set(None);
        }
        *self = Self::new(addr, self.password.clone());
    }

    /// Calls a method of etcd by its path in the gateway, and by its name in gRPC.
    pub(super) fn call<R: DeserializeOwned>(&self, path: &str, method: &'static str, body: &Value) -> io::Result<R> {
        let until = Instant::now() + USERS_BOUND;
        loop {
            let reply = match self.log_in()? {
                Ok(()) => self.call_once(path, method, body)?,
                Err(error) => Err(error),
            };
            match reply {
                Ok(value) => return serde_json::from_value(value).map_err(io::Error::from),
                Err(error) if error.is_about_users() && Instant::now() < until => *lock(&self.token) = None,
                Err(error) => return Err(io::Error::other(error.error)),
            }
        }
    }

    fn call_once(&self, path: &str, method: &'static str, body: &Value) -> io::Result<Result<Value, ErrorReply>> {
        let mut request = minreq::post(format!("http://{}/v3/{path}", self.addr)).with_timeout(REPLY_BOUND);
        if let Some(token) = &*lock(&self.token) {
            request = request.with_header("Authorization", token);
        }
        *lock(&self.own_calls).entry(method).or_default() += 1;
        let reply = request.with_body(body.to_string()).send().map_err(io_error)?;
        match reply.status_code {
            200 => Ok(Ok(serde_json::from_slice(reply.as_bytes())?)),
            _ => Ok(Err(serde_json::from_slice(reply.as_bytes())?)),
        }
    }

    /// Gets a page of the server beside gRPC.
    pub(super) fn page(&self, path: &str) -> io::Result<String> {
        let reply = minreq::get(format!("http://{}/{path}", self.addr)).with_timeout(REPLY_BOUND).send();
        let reply = reply.map_err(io_error)?;
        Ok(String::from_utf8_lossy(reply.as_bytes()).into_owned())
    }

    /// Whether the server reports that it is healthy: there is a leader, and no alarm is active.
    ///
    /// # Errors
    /// If it does not reply.
    pub fn is_healthy(&self) -> io::Result<bool> {
        let health: Value = serde_json::from_str(&self.page("health")?)?;
        Ok(health["health"] == "true")
    }

    /// Whether the member of this name replies.
    pub(super) fn replies_as(&self, name: &str) -> io::Result<bool> {
        // Sent without a user, because no user can log in at a member without a leader.
        let list = self.call_once("cluster/member/list", "MemberList", &json!({}))?;
        let list = list.map_err(|error| io::Error::other(error.error))?;
        let own = &list["header"]["member_id"];
        let mut members = list["members"].as_array().into_iter().flatten();
        Ok(members.any(|member| member["ID"] == *own && member["name"] == name))
    }

    /// Whether it serves clients: there is a leader, and it serves reads.
    pub(super) fn serves(&self) -> io::Result<bool> {
        let status = self.call_once("maintenance/status", "Status", &json!({}))?;
        // Without a leader, a read takes seconds.
        if !status.is_ok_and(|status| status["leader"].is_string()) {
            return Ok(false);
        }
        let read = self.call_once("kv/range", "Range", &json!({ "key": encoded([0]), "count_only": true }))?;
        // This reply shows it even if the test has not logged in.
        Ok(read.map_or_else(|error| error.error.contains("user name is empty"), |_| true))
    }

    /// Logs in as root, if users must log in and the test has not done so.
    fn log_in(&self) -> io::Result<Result<(), ErrorReply>> {
        let Some(password) = self.password.get().filter(|_| lock(&self.token).is_none()) else { return Ok(Ok(())) };
        let body = json!({ "name": "root", "password": password });
        let reply = self.call_once("auth/authenticate", "Authenticate", &body)?;
        Ok(reply.map(|reply| *lock(&self.token) = reply["token"].as_str().map(str::to_owned)))
    }

    /// From now on, users must log in.
    pub(super) fn log_in_as_root(&self, password: String) {
        self.password.set(Some(password));
    }

    /// The calls so far, by method of gRPC.
    pub(super) fn own_calls(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.own_calls).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn io_error(error: minreq::Error) -> io::Error {
    match error {
        minreq::Error::IoError(error) if error.kind() != io::ErrorKind::Other => error,
        error => io::Error::new(io::ErrorKind::ConnectionAborted, error),
    }
}

/// Encodes bytes for the gateway.
pub(super) fn encoded(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

/// Reads bytes of the gateway.
pub(super) fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    STANDARD.decode(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

/// Reads a list of bytes of the gateway.
pub(super) fn list_of_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<u8>>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| STANDARD.decode(text).map_err(serde::de::Error::custom)).collect()
}

/// Reads a number of the gateway, which is a text because JSON's numbers have 53 bits.
pub(super) fn number<'de, D: Deserializer<'de>, N>(deserializer: D) -> Result<N, D::Error>
where
    N: std::str::FromStr<Err: fmt::Display>,
{
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_password_nor_token_is_shown() {
        let password = RootPassword::default();
        password.set(Some("secret".into()));
        let side = EtcdSide::new(([127, 0, 0, 1], 1).into(), password.clone());
        *lock(&side.token) = Some("secret".into());
        assert_eq!(password.get().as_deref(), Some("secret"));
        let text = format!("{side:?} {password:?}");
        assert!(text.contains("127.0.0.1:1") && !text.contains("secret"), "{text}");
    }
}
