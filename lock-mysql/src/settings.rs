//! Settings, and the URL that contains them.

use std::net::IpAddr;
use std::time::Duration;

use leasehold_core::backend::kit::{CommonSettings, Connecting, OnRestart, StoreUrl, TlsFiles, decoded};
use leasehold_core::{Error, Result};
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};

/// The URL schemes, for error messages.
pub const SCHEMES: &[&str] = &["mysql://"];

/// In errors.
const STORE: &str = "MySQL";

/// The port of MySQL and MariaDB.
const PORT: u16 = 3306;

/// Whether connections are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Tls {
    /// `Verify` for a host that is not loopback. On loopback, encrypted if the server can. The default.
    #[default]
    Auto,
    /// Encrypted, with a certificate for this host from a known authority, or from that in `ca=`. URL: `tls=verify`.
    Verify,
    /// Encrypted, with any certificate: an attacker on the path could pretend to be the server. URL: `tls=unverified`.
    Unverified,
    /// Not encrypted: an attacker on the path can read the password. URL: `tls=off`.
    Off,
}

/// How a lease is kept at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Strategy {
    /// A row with the time at which the lease ends. The default. URL: `strategy=row`.
    #[default]
    Row,
    /// A transaction that has locked a row (`SELECT … FOR UPDATE`), on a connection of its own. The lease ends with the
    /// connection. A database is used with one strategy, and clients of the other are refused. URL:
    /// `strategy=for-update`.
    ForUpdate,
}

/// Settings of a [`MySqlBackend`](crate::MySqlBackend).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The upper bound of one call, including connecting. Default 1 s, 10 ms to 60 s.
    pub timeout: Duration,
    /// The upper bound of an attempt to connect, which goes on when the call that began it has ended. Default 10 s.
    /// 10 ms to 5 minutes.
    pub connect_timeout: Duration,
    /// How old the token of a free lock is before its row is removed. Default 10 minutes. Tokens keep their order if
    /// the server's clock is set back by up to this much. 1 s to 365 days.
    pub retention: Duration,
    /// The most connections for acquires and releases on one tokio runtime. Renewals have one more. Default 4, 1 to 64.
    pub connections: usize,
    /// Whether connections are encrypted.
    pub tls: Tls,
    /// How a lease is kept at the server.
    pub strategy: Strategy,
    /// The most locks that this client holds or waits for at once. Each takes a connection. Default 64, 1 to 10,000.
    /// Only for [`Strategy::ForUpdate`].
    pub locks: usize,
    /// The longest time for which the connection of a lease is not used: the lease ends when something on the path
    /// closes a connection that seems to be idle. Default 3 s, 1 s to 1 h. Only for [`Strategy::ForUpdate`].
    pub keepalive: Duration,
    /// What to do after another server has taken the place of this one, or a restart that may have lost data.
    pub on_restart: OnRestart,
}

impl Default for Settings {
    fn default() -> Self {
        let CommonSettings { timeout, retention } = CommonSettings::default();
        Self {
            timeout,
            connect_timeout: Connecting::CONNECT_TIMEOUT,
            retention,
            connections: 4,
            tls: Tls::default(),
            strategy: Strategy::default(),
            locks: 64,
            keepalive: Duration::from_secs(3),
            on_restart: OnRestart::default(),
        }
    }
}

impl Settings {
    /// Checks the bounds of all settings.
    pub(crate) fn check(self) -> Result<Self> {
        CommonSettings { timeout: self.timeout, retention: self.retention }.check()?;
        Connecting::check_timeout(self.connect_timeout)?;
        if !(1..=64).contains(&self.connections) {
            return Err(Error::invalid(format!("`connections` must be between 1 and 64 (got {})", self.connections)));
        }
        if !(1..=10_000).contains(&self.locks) {
            return Err(Error::invalid(format!("`locks` must be between 1 and 10000 (got {})", self.locks)));
        }
        if !(Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&self.keepalive) {
            return Err(Error::invalid(format!("`keepalive` must be between 1s and 1h (got {:?})", self.keepalive)));
        }
        if self.strategy == Strategy::ForUpdate && self.on_restart != OnRestart::default() {
            let text = "`restart` is for `strategy=row`: `strategy=for-update` waits after a restart for the ttl of \
                        the last lease";
            return Err(Error::invalid(text));
        }
        Ok(self)
    }
}

/// The server, user and database, and how to connect.
pub(crate) struct Target {
    pub(crate) options: MySqlConnectOptions,
    /// The address of the server, for errors and logs. Contains neither user nor password.
    pub(crate) address: String,
}

/// Parses a URL. No error contains any part of a password.
pub(crate) fn parse_url(text: &str) -> Result<(Target, Settings)> {
    let mut url = StoreUrl::parse(text, STORE, SCHEMES)?;
    let CommonSettings { timeout, retention } = CommonSettings::take(&mut url)?;
    let mut settings = Settings { timeout, retention, ..Settings::default() };
    settings.connect_timeout = Connecting::take_timeout(&mut url)?;
    if let Some(text) = url.take("connections") {
        settings.connections = text
            .parse()
            .map_err(|_| Error::invalid(format!("`connections` must be between 1 and 64 (got `{text}`)")))?;
    }
    let tls = [("verify", Tls::Verify), ("unverified", Tls::Unverified), ("off", Tls::Off)];
    settings.tls = url.take_choice("tls", &tls)?.unwrap_or_default();
    let strategy = [("row", Strategy::Row), ("for-update", Strategy::ForUpdate)];
    settings.strategy = url.take_choice("strategy", &strategy)?.unwrap_or_default();
    match (url.take("locks"), settings.strategy) {
        (None, _) => {}
        (Some(_), Strategy::Row) => return Err(Error::invalid("`locks` is for `strategy=for-update`")),
        (Some(text), Strategy::ForUpdate) => {
            settings.locks = text
                .parse()
                .map_err(|_| Error::invalid(format!("`locks` must be between 1 and 10000 (got `{text}`)")))?;
        }
    }
    match (url.take_duration("keepalive")?, settings.strategy) {
        (None, _) => {}
        (Some(_), Strategy::Row) => return Err(Error::invalid("`keepalive` is for `strategy=for-update`")),
        (Some(keepalive), Strategy::ForUpdate) => settings.keepalive = keepalive,
    }
    settings.on_restart = OnRestart::take(&mut url)?;
    let files = TlsFiles::take(&mut url)?;
    // The client reads them when it connects. A file that is missing now is an error of the URL.
    files.read()?;
    let url = url.finish()?;
    let settings = settings.check()?;

    let host = url.host_str().filter(|host| !host.is_empty());
    let host =
        host.ok_or_else(|| Error::invalid("the MySQL URL must name a host, as in mysql://user@host/database"))?;
    // Brackets belong to the URL, not to the address.
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let database = decoded(url.path().trim_start_matches('/'), STORE)?;
    if database.is_empty() || database.contains('/') {
        return Err(Error::invalid("the MySQL URL must name one database, as in mysql://user@host/database"));
    }
    let port = url.port().unwrap_or(PORT);
    // The client would log in as root. mysql(1) takes the user of the system, which differs between cron and a
    // terminal.
    if url.username().is_empty() {
        return Err(Error::invalid("the MySQL URL must name a user, as in mysql://user@host/database"));
    }
    let options = MySqlConnectOptions::new().host(host).port(port).database(&database);
    let mut options = options.username(&decoded(url.username(), STORE)?);
    if let Some(password) = url.password() {
        options = options.password(&decoded(password, STORE)?);
    }
    let options = encrypted(options, settings.tls, is_loopback(host), &files)?;
    Ok((Target { options, address: format!("{host}:{port}") }, settings))
}

/// Adds the settings that a lock needs to those of the user.
pub(crate) fn prepare(options: MySqlConnectOptions) -> MySqlConnectOptions {
    use sqlx::ConnectOptions;
    // The session sets these in one statement. Bytes are sent and read, so no character set matters.
    let options = options.pipes_as_concat(false).no_engine_substitution(false).timezone(None).set_names(false);
    // Statements are logged by their operation, not by sqlx, which would log arguments too.
    options.statement_cache_capacity(64).disable_statement_logging()
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn encrypted(
    options: MySqlConnectOptions,
    tls: Tls,
    is_loopback: bool,
    files: &TlsFiles,
) -> Result<MySqlConnectOptions> {
    let mode = match tls {
        Tls::Off => MySqlSslMode::Disabled,
        Tls::Auto if is_loopback && files.ca().is_none() => match cfg!(feature = "tls") {
            true => MySqlSslMode::Preferred,
            false => MySqlSslMode::Disabled,
        },
        Tls::Unverified => MySqlSslMode::Required,
        Tls::Auto | Tls::Verify => MySqlSslMode::VerifyIdentity,
    };
    if !cfg!(feature = "tls") && !matches!(mode, MySqlSslMode::Disabled) {
        return Err(Error::invalid(
            "TLS needs the feature `tls` of leasehold-mysql, which is `mysql-tls` of leasehold; `tls=off` in the URL \
             does without",
        ));
    }
    let mut options = options.ssl_mode(mode);
    if let Some(ca) = files.ca() {
        options = options.ssl_ca(ca);
    }
    if let Some((cert, key)) = files.identity() {
        options = options.ssl_client_cert(cert).ssl_client_key(key);
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use leasehold_core::ErrorKind;

    use super::*;

    #[test]
    fn a_url_carries_every_setting() {
        let (target, settings) = parse_url(
            "mysql://u:p%40ss@127.0.0.1:7000/locks%20here?timeout=250ms&connect_timeout=5s&retention=2h&\
                       connections=8&tls=off",
        )
        .unwrap();
        let options = &target.options;
        assert_eq!((options.get_host(), options.get_port(), options.get_username()), ("127.0.0.1", 7000, "u"));
        assert_eq!((options.get_database(), &*target.address), (Some("locks here"), "127.0.0.1:7000"));
        assert!(matches!(options.get_ssl_mode(), MySqlSslMode::Disabled));
        assert_eq!((settings.timeout, settings.connections), (Duration::from_millis(250), 8));
        assert_eq!(settings.connect_timeout, Duration::from_secs(5));
        assert_eq!((settings.retention, settings.tls), (Duration::from_secs(7200), Tls::Off));
    }

    #[cfg(feature = "tls")]
    #[test]
    fn other_hosts_are_verified_unless_that_is_switched_off() {
        let mode = |url: &str| format!("{:?}", parse_url(url).unwrap().0.options.get_ssl_mode());
        assert_eq!(mode("mysql://u@db.example/locks"), "VerifyIdentity");
        assert_eq!(mode("mysql://u@db.example/locks?tls=unverified"), "Required");
        assert_eq!(mode("mysql://u@db.example/locks?tls=off"), "Disabled");
        for host in ["localhost", "127.0.0.1", "[::1]"] {
            assert_eq!(mode(&format!("mysql://u@{host}/locks")), "Preferred");
            assert_eq!(mode(&format!("mysql://u@{host}/locks?tls=verify")), "VerifyIdentity");
        }
    }

    #[test]
    fn bad_urls_are_refused_with_a_hint_and_without_the_password() {
        for (url, hint) in [
            ("http://localhost", "mysql://"),
            ("mysql://u:hunter2@localhost", "name one database"),
            ("mysql://localhost/locks", "name a user"),
            ("mysql://:hunter2@localhost/locks", "name a user"),
            ("mysql://u:hunter2@localhost/a/b", "name one database"),
            ("mysql://u:hunter2@localhost/locks?tiemout=1s", "`timeout`"),
            ("mysql://u:hunter2@localhost/locks?timeout=2m", "60s"),
            ("mysql://u:hunter2@localhost/locks?connections=0", "between 1 and 64"),
            ("mysql://u:hunter2@localhost/locks?connections=many", "between 1 and 64"),
            ("mysql://u:hunter2@localhost/locks?strategy=rows", "`for-update`"),
            ("mysql://u:hunter2@localhost/locks?strategy=for-update&locks=0", "between 1 and 10000"),
            ("mysql://u:hunter2@localhost/locks?locks=7", "`strategy=for-update`"),
            ("mysql://u:hunter2@localhost/locks?keepalive=7s", "`strategy=for-update`"),
            ("mysql://u:hunter2@localhost/locks?strategy=for-update&keepalive=500ms", "between 1s and 1h"),
            ("mysql://u:hunter2@localhost/locks?strategy=for-update&restart=trust", "`strategy=row`"),
            ("mysql://u:hunter2@localhost/locks?tls=yes", "`verify`"),
            ("mysql://u:hunter2@localhost/locks?tls=off&cert=a.pem", "belong together"),
            ("mysql://u:hunter2@localhost/locks?restart=maybe", "`trust`"),
            ("mysql://u:hunter2@localhost/%ff", "UTF-8"),
        ] {
            let error = parse_url(url).map(|_| ()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}");
            let text = format!("{error} {error:?}");
            assert!(text.contains(hint), "{url}: {text}");
            assert!(!text.contains("hunter2"), "{url}: {text}");
        }
    }
}
