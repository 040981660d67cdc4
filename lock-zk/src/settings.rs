//! Settings, and how a URL carries them.

use std::time::Duration;

use leasehold_core::backend::kit::{Cluster, ClusterUrl, CommonSettings, Connecting, Servers, TlsFiles};
use leasehold_core::{Error, Result};

#[cfg(feature = "tls")]
use crate::errors::BACKEND;

/// The schemes of URLs.
pub const SCHEMES: &[&str] = &["zk://", "zks://"];

/// The port of clients.
const PORT: u16 = 2181;

const DEFAULT_ROOT: &str = "leasehold";

/// The longest root, in bytes.
const LONGEST_ROOT: usize = 256;

/// The default of a server for `tickTime`.
const DEFAULT_TICK: Duration = Duration::from_secs(2);

const LONGEST_TICK: Duration = Duration::from_secs(60);

/// Settings of the backend.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The longest that one call takes, connecting included. Default 1 s, 10 ms to 60 s. URL: `timeout=`.
    pub timeout: Duration,
    /// The longest that an attempt to connect takes: it goes on when the call that began it has ended. Default 10 s,
    /// 10 ms to 5 minutes. URL: `connect_timeout=`.
    pub connect_timeout: Duration,
    /// The `tickTime` of the servers, or more. A session lasts two of them longer than its leases, because the leader
    /// learns within a tick what a client did. Default 2 s, as that of a server. URL: `tick=`.
    pub tick: Duration,
    /// The path of the node that has all locks, without its first slash. Default `leasehold`. It is the path of a URL.
    pub root: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            timeout: CommonSettings::default().timeout,
            connect_timeout: Connecting::CONNECT_TIMEOUT,
            tick: DEFAULT_TICK,
            root: DEFAULT_ROOT.to_owned(),
        }
    }
}

/// The servers, and how to connect to them.
pub(crate) struct Target {
    /// `host:port`
    pub(crate) servers: Servers<String>,
    /// User and password.
    pub(crate) user: Option<(String, String)>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Tls>,
}

impl Target {
    pub(crate) fn is_tls(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        return false;
    }
}

/// The files that a URL names, and their contents from the start.
#[cfg(feature = "tls")]
#[derive(Clone)]
pub(crate) struct Tls {
    files: TlsFiles,
    options: zookeeper_client::TlsOptions,
}

#[cfg(feature = "tls")]
impl Tls {
    /// With the present contents of the files.
    pub(crate) async fn reload(&self) -> zookeeper_client::TlsOptions {
        self.files.reload(BACKEND, options).await.unwrap_or_else(|| self.options.clone())
    }

    /// The same for a handshake without the client crate. `None` if the files cannot be used now.
    pub(crate) fn config(&self) -> Option<rustls::ClientConfig> {
        use rustls::pki_types::pem::PemObject;
        use rustls::pki_types::{CertificateDer, PrivateKeyDer};
        let pem = self.files.read().ok()?;
        let certificates = |pem: &[u8]| CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().ok();
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(certificates(&pem.ca?)?);
        let config = rustls::ClientConfig::builder().with_root_certificates(roots);
        match &pem.identity {
            Some((cert, key)) => {
                config.with_client_auth_cert(certificates(cert)?, PrivateKeyDer::from_pem_slice(key).ok()?).ok()
            }
            None => Some(config.with_no_client_auth()),
        }
    }
}

/// Parses a URL. No error contains any part of a password.
pub(crate) fn parse_url(text: &str) -> Result<(Target, Settings)> {
    let mut url = ClusterUrl::parse(text, "ZooKeeper", SCHEMES)?;
    let parameters = url.parameters();
    let timeout = parameters.take_duration("timeout")?.unwrap_or(CommonSettings::default().timeout);
    let connect_timeout = Connecting::take_timeout(parameters)?;
    let tick = parameters.take_duration("tick")?.unwrap_or(DEFAULT_TICK);
    let files = TlsFiles::take(parameters)?;
    let Cluster { scheme, hosts, user, path, .. } = url.finish(PORT, "zk://host:2181/root")?;
    CommonSettings { timeout, ..CommonSettings::default() }.check()?;
    Connecting::check_timeout(connect_timeout)?;
    if tick > LONGEST_TICK {
        return Err(Error::invalid(format!("`tick` must be at most {LONGEST_TICK:?} (got {tick:?})")));
    }

    let servers = Servers::new(hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect());
    if user.as_ref().is_some_and(|(user, _)| user.contains(':')) {
        return Err(Error::invalid("a ZooKeeper user name must not contain a colon"));
    }
    let root = root(&path)?;
    let is_tls = scheme == "zks" || files.is_any();
    let target = target(servers, user, is_tls, files)?;
    Ok((target, Settings { timeout, connect_timeout, tick, root }))
}

/// The path of the root.
fn root(path: &str) -> Result<String> {
    let invalid = |text: String| Err(Error::invalid(format!("the root in the ZooKeeper URL {text}")));
    if path.is_empty() {
        return Ok(DEFAULT_ROOT.to_owned());
    }
    if path.len() > LONGEST_ROOT {
        return invalid(format!("must have at most {LONGEST_ROOT} bytes"));
    }
    if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return invalid("must not have a part that is empty, `.` or `..`".to_owned());
    }
    if path.split('/').next() == Some("zookeeper") {
        return invalid("must not be `zookeeper`, which belongs to the server".to_owned());
    }
    if path.chars().any(|c| c.is_control() || c > '\u{d7ff}') {
        return invalid("must not have characters that the server refuses".to_owned());
    }
    Ok(path.to_owned())
}

#[cfg(feature = "tls")]
fn target(servers: Servers<String>, user: Option<(String, String)>, is_tls: bool, files: TlsFiles) -> Result<Target> {
    if !is_tls {
        return Ok(Target { servers, user, tls: None });
    }
    // The client crate panics if several providers are compiled in and none is chosen.
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Another thread may have chosen one meanwhile.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }
    let options = options(&files)?;
    Ok(Target { servers, user, tls: Some(Tls { files, options }) })
}

/// Reads the files.
#[cfg(feature = "tls")]
fn options(files: &TlsFiles) -> Result<zookeeper_client::TlsOptions> {
    let pem = files.read()?;
    let Some(ca) = pem.ca else { return Err(Error::invalid("`zks://` needs `ca`: the file of the authority")) };
    // Beside the base64 of PEM, a file may have any text.
    let text = String::from_utf8_lossy;
    let unfit = |error| Error::invalid("a file of TLS in the URL has no certificate or no key").with_source(error);
    let options = zookeeper_client::TlsOptions::new().with_pem_ca(&text(&ca)).map_err(unfit)?;
    match &pem.identity {
        Some((cert, key)) => options.with_pem_identity(&text(cert), &text(key)).map_err(unfit),
        None => Ok(options),
    }
}

#[cfg(not(feature = "tls"))]
fn target(servers: Servers<String>, user: Option<(String, String)>, is_tls: bool, _files: TlsFiles) -> Result<Target> {
    match is_tls {
        true => Err(Error::invalid("TLS needs the feature `tls` of leasehold-zk, `zk-tls` of leasehold")),
        false => Ok(Target { servers, user }),
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::ErrorKind;

    use super::*;

    #[test]
    fn a_url_carries_every_setting() {
        let url = "zk://u:p%40,ss@one:1,two:2,[::1]/team%20a/locks?timeout=250ms&connect_timeout=5s&tick=100ms";
        let (target, settings) = parse_url(url).unwrap();
        assert_eq!(target.servers.all(), ["one:1", "two:2", "[::1]:2181"]);
        assert_eq!(target.user, Some(("u".to_owned(), "p@,ss".to_owned())));
        let expected = Settings {
            timeout: Duration::from_millis(250),
            connect_timeout: Duration::from_secs(5),
            tick: Duration::from_millis(100),
            root: "team a/locks".to_owned(),
        };
        assert_eq!(settings, expected);
        let (target, settings) = parse_url("zk://localhost/").unwrap();
        assert_eq!((target.servers.all(), target.user), (&["localhost:2181".to_owned()][..], None));
        assert_eq!(settings, Settings::default());
    }

    #[test]
    fn bad_urls_are_refused_with_a_hint_and_without_the_password() {
        let long = format!("zk://u:hunter2@localhost/{}", "x".repeat(LONGEST_ROOT + 1));
        for (url, hint) in [
            ("http://localhost", "zk://"),
            ("zk://", "must name a host"),
            ("zk://u:hunter2@one,,two", "empty host"),
            ("zk://u:hunter2@one,two:x", "host:port"),
            ("zk://u:hunter2@localhost?tiemout=1s", "`timeout`"),
            ("zk://u:hunter2@localhost?timeout=2m", "60s"),
            ("zk://u:hunter2@localhost?tick=2m", "60s"),
            ("zk://u%3ax:hunter2@localhost", "colon"),
            ("zk://u:hunter2@localhost/%ff", "UTF-8"),
            ("zk://u:hunter2@localhost/a//b", "empty"),
            ("zk://u:hunter2@localhost/zookeeper/locks", "belongs to the server"),
            ("zk://u:hunter2@localhost/a%00", "refuses"),
            (&*long, "256 bytes"),
        ] {
            let error = parse_url(url).map(|_| ()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}");
            let text = format!("{error} {error:?}");
            assert!(text.contains(hint), "{url}: {text}");
            assert!(!text.contains("hunter2"), "{url}: {text}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_names_the_feature_that_it_needs() {
        for url in ["zks://localhost", "zk://localhost?ca=ca.pem"] {
            let error = parse_url(url).map(|_| ()).unwrap_err();
            assert!(error.to_string().contains("feature `tls`"), "{error}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn files_of_tls_are_read_at_once() {
        for (url, hint) in [("zk://localhost?ca=/nowhere/ca.pem", "/nowhere/ca.pem"), ("zks://localhost", "`ca`")] {
            let error = parse_url(url).map(|_| ()).unwrap_err();
            assert!(error.to_string().contains(hint), "{error}");
        }
    }
}
