//! A database for one test.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::{fmt, io};

use super::named::NamedServer;
use super::{MySqlServer, MySqlSettings, Sql, SqlConnection, TextRow};

/// What is in the database, and who may use it.
#[derive(Clone, Copy, Debug)]
pub struct Contents {
    /// The statements that create the tables.
    pub tables: &'static str,
    /// The `GRANT` statements for a user, from the names of the database and the account.
    pub grants: fn(&str, &str) -> String,
}

/// A database for one test, with a user: on a mariadbd of its own, or on the server that
/// [`URL_VARIABLE`](super::URL_VARIABLE) names.
pub struct MySqlDatabase {
    server: Server,
    contents: Contents,
    /// Different from that of an earlier test with the same user, so that its clients cannot log in.
    password: String,
}

#[derive(Debug)]
enum Server {
    Own(Box<MySqlServer>),
    Named(Box<NamedServer>),
}

/// The database and the user on a server of its own.
const DATABASE: &str = "locks";
const USER: &str = "locker";

impl fmt::Debug for MySqlDatabase {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlDatabase").field("server", &self.server).finish_non_exhaustive()
    }
}

/// A password that differs for each test, and is not too simple for a server that checks passwords.
fn password() -> String {
    format!("Pass-{:016x}", RandomState::new().hash_one(std::process::id()))
}

impl Sql for MySqlDatabase {
    fn query(&self, statements: &str) -> io::Result<Vec<TextRow>> {
        Self::query(self, statements)
    }

    fn status(&self, name: &str) -> io::Result<u64> {
        match &self.server {
            Server::Own(server) => server.status(name),
            Server::Named(server) => server.status(name),
        }
    }
}

impl MySqlDatabase {
    /// Creates it. Starts a server with these settings unless the variable names one.
    ///
    /// # Errors
    /// If there is no server, or it cannot be used. The text says what to do.
    pub fn create(settings: MySqlSettings, contents: Contents) -> io::Result<Self> {
        let password = password();
        let server = match NamedServer::create(&contents, &password)? {
            Some(server) => Server::Named(Box::new(server)),
            None => Server::Own(Box::new(settings.start()?)),
        };
        let database = Self { server, contents, password };
        database.create_again()?;
        Ok(database)
    }

    /// Creates the database and the user again on a server of its own that has lost its data.
    ///
    /// # Errors
    /// As [`query`](Self::query).
    pub fn create_again(&self) -> io::Result<()> {
        let (Contents { tables, grants }, account) = (self.contents, self.account());
        let grants = grants(DATABASE, &account);
        match &self.server {
            Server::Own(server) => server.create(DATABASE, tables, &account, &self.password, &grants),
            Server::Named(_) => Ok(()),
        }
    }

    /// The server, if it belongs to this database: it can be stopped, paused and changed.
    pub fn own(&mut self) -> Option<&mut MySqlServer> {
        match &mut self.server {
            Server::Own(server) => Some(server),
            Server::Named(_) => None,
        }
    }

    /// Whether other programs use the server too.
    pub fn is_shared(&self) -> bool {
        matches!(self.server, Server::Named(_))
    }

    /// The address of the server.
    pub fn addr(&self) -> SocketAddr {
        match &self.server {
            Server::Own(server) => server.addr(),
            Server::Named(server) => server.addr(),
        }
    }

    /// The name of the database.
    pub fn name(&self) -> &str {
        match &self.server {
            Server::Own(_) => DATABASE,
            Server::Named(server) => &server.database,
        }
    }

    /// The name of the user. A test may create a second one, whose name has `_r` at its end.
    pub fn user(&self) -> &str {
        match &self.server {
            Server::Own(_) => USER,
            Server::Named(server) => &server.user,
        }
    }

    /// The password of the user.
    pub fn password(&self) -> &str {
        &self.password
    }

    /// The user in the syntax of SQL, from any host.
    pub fn account(&self) -> String {
        format!("'{}'@'%'", self.user())
    }

    /// A connection of the user. `caching_sha2_password` of MySQL accepts the user without TLS after the first one.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn client(&self) -> io::Result<SqlConnection> {
        match &self.server {
            Server::Own(server) => server.client(USER, &self.password, DATABASE),
            Server::Named(server) => server.client(),
        }
    }

    /// Runs statements as an administrator, in this database, and returns the rows of all results. Blocks for at most
    /// twenty seconds.
    ///
    /// # Errors
    /// The server's error, or that of the connection. The next call then opens a new connection.
    pub fn query(&self, statements: &str) -> io::Result<Vec<TextRow>> {
        match &self.server {
            Server::Own(server) => server.query(statements),
            Server::Named(server) => server.query(statements),
        }
    }

    /// A further connection like that of [`query`](Self::query).
    ///
    /// # Errors
    /// Those of the connection.
    pub fn side(&self) -> io::Result<SqlConnection> {
        match &self.server {
            Server::Own(server) => server.side(),
            Server::Named(server) => server.side(),
        }
    }
}
