//! The URL of a store, parsed in the same way for every backend.

use std::ops::RangeInclusive;
use std::time::Duration;

use url::Url;

use crate::error::{Error, Result};

/// Parses a duration as the command line does: a number and a unit, `250ms`, `5s`, `10m`, `2h`, `1d` or `1h 30m`, and
/// never zero. The grammar is that of [`humantime`](https://docs.rs/humantime). The error names it `name`.
///
/// # Errors
/// [`InvalidInput`](crate::ErrorKind::InvalidInput) for anything else.
pub fn parse_duration(name: &str, text: &str) -> Result<Duration> {
    match humantime::parse_duration(text) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(Error::invalid(format!(
            "`{name}` must be a duration longer than zero, such as `250ms`, `5s`, `10m` or `1h 30m` (got `{text}`)"
        ))),
    }
}

/// Decodes the percent-encoding of a part of the URL of a `store`.
///
/// # Errors
/// [`InvalidInput`](crate::ErrorKind::InvalidInput) if it is not UTF-8.
pub fn decoded(part: &str, store: &str) -> Result<String> {
    let decoded = percent_encoding::percent_decode_str(part).decode_utf8();
    decoded.map(Into::into).map_err(|_| Error::invalid(format!("the {store} URL has a part that is not UTF-8")))
}

/// A URL whose parameters are taken one by one. No error shows a user, a password or a host.
#[derive(Clone)]
pub struct StoreUrl {
    url: Url,
    store: &'static str,
    parameters: Vec<(String, String)>,
    known: Vec<&'static str>,
}

impl StoreUrl {
    /// Reads a URL of a `store` (`Redis`, `SQLite`), with one of these schemes (`redis://`).
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for an invalid URL, another scheme, a parameter that is given
    /// twice, and an `@` after the host.
    pub fn parse(text: &str, store: &'static str, schemes: &[&str]) -> Result<Self> {
        let url = Url::parse(text).map_err(|why| {
            let hint = if text.contains('@') { format!("; {ENCODE}") } else { String::new() };
            Error::invalid(format!("the {store} URL cannot be read: {why}{hint}"))
        })?;
        let scheme = url.scheme();
        if !schemes.iter().any(|known| known.strip_suffix("://") == Some(scheme)) {
            let known = schemes.join(" or ");
            return Err(Error::invalid(format!("the {store} URL must begin with {known} (got {scheme}://)")));
        }
        // `mysql:user:password@host` is a URL with a path. Errors show paths.
        if !text.split_once(':').is_some_and(|(_, rest)| rest.starts_with("//")) {
            return Err(Error::invalid(format!("`//` is missing after `{scheme}:` in the {store} URL")));
        }
        // The `/` in `mysql://user:1/2@host/database` ends the host, and the rest of the password is a path. A file has
        // no password.
        let parts = [Some(url.path()), url.query(), url.fragment()];
        if url.host_str().is_some_and(|host| !host.is_empty())
            && parts.into_iter().flatten().any(|part| part.contains('@'))
        {
            return Err(Error::invalid(format!("the {store} URL has an `@` after its host; {ENCODE}")));
        }
        let mut parsed = Self { url, store, parameters: Vec::new(), known: Vec::new() };
        for (name, value) in parsed.url.query_pairs() {
            if parsed.parameters.iter().any(|(other, _)| *other == name) {
                return Err(Error::invalid(format!("the {store} URL has {} twice", parsed.shown(&name))));
            }
            parsed.parameters.push((name.into_owned(), value.into_owned()));
        }
        Ok(parsed)
    }

    /// Splits `scheme://user@host1:1,host2:2/path`, which a URL parser refuses because of its several hosts. Returns
    /// the URL with the first host alone, and the other hosts.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for an empty host.
    pub fn split_hosts(text: &str, store: &str) -> Result<(String, Vec<String>)> {
        let Some((scheme, rest)) = text.split_once("://") else { return Ok((text.to_owned(), Vec::new())) };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at(end);
        let (user, hosts) = match authority.rfind('@') {
            Some(at) => authority.split_at(at + 1),
            None => ("", authority),
        };
        let mut hosts = hosts.split(',');
        let first = hosts.next().unwrap_or_default();
        let others: Vec<_> = hosts.map(str::to_owned).collect();
        if others.iter().any(String::is_empty) {
            return Err(Error::invalid(format!("the {store} URL has an empty host")));
        }
        Ok((format!("{scheme}://{user}{first}{tail}"), others))
    }

    /// The whole URL, with its parameters.
    pub const fn url(&self) -> &Url {
        &self.url
    }

    /// Takes a parameter.
    pub fn take(&mut self, name: &'static str) -> Option<String> {
        self.known.push(name);
        let index = self.parameters.iter().position(|(other, _)| other == name)?;
        Some(self.parameters.remove(index).1)
    }

    /// Takes a duration.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) when it cannot be read, see [`parse_duration`].
    pub fn take_duration(&mut self, name: &'static str) -> Result<Option<Duration>> {
        self.take(name).map(|text| parse_duration(name, &text)).transpose()
    }

    /// Takes one of several words.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for another word. The error lists the known words.
    pub fn take_choice<T: Copy>(&mut self, name: &'static str, choices: &[(&str, T)]) -> Result<Option<T>> {
        let Some(text) = self.take(name) else { return Ok(None) };
        if let Some(&(_, choice)) = choices.iter().find(|(word, _)| *word == text) {
            return Ok(Some(choice));
        }
        let words: Vec<_> = choices.iter().map(|(word, _)| format!("`{word}`")).collect();
        Err(Error::invalid(format!("`{name}` must be one of {} (got `{text}`)", words.join(", "))))
    }

    /// A parameter as an error shows it: without its name, if that may be a part of a password, as in `pass=a&b` and
    /// `server:///user:1?b@host`.
    fn shown(&self, name: &str) -> String {
        let has_at = self.url.query().is_some_and(|query| query.contains('@'));
        match has_at || self.url.query_pairs().any(|(name, _)| is_secret(&name)) {
            true => "parameter".to_owned(),
            false => format!("parameter `{name}`"),
        }
    }

    /// The URL without its parameters, after the store has taken all parameters that it knows.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for a parameter that was not taken, and for a fragment. The
    /// error lists the known parameters.
    pub fn finish(mut self) -> Result<Url> {
        let store = self.store;
        if let Some((unknown, _)) = self.parameters.first() {
            let known: Vec<_> = self.known.iter().map(|name| format!("`{name}`")).collect();
            let (unknown, known) = (self.shown(unknown), known.join(", "));
            return Err(Error::invalid(format!("unknown {unknown} in the {store} URL: use one of {known}")));
        }
        if self.url.fragment().is_some() {
            return Err(Error::invalid(format!("the {store} URL must not contain `#`: write it as `%23`")));
        }
        self.url.set_query(None);
        Ok(self.url)
    }
}

/// How to write a password in a URL.
const ENCODE: &str = "in a password, write `/` as `%2F`, `?` as `%3F`, `#` as `%23` and `@` as `%40`; after the host, \
     write `@` as `%40`";

/// Whether a parameter of this name may have a password as its value.
fn is_secret(name: &str) -> bool {
    name.to_ascii_lowercase().contains("pass")
}

/// A URL of any store, for people: without a password, and without what may be a part of one if the URL is malformed. A
/// URL of several hosts keeps them.
pub fn without_password(text: &str) -> String {
    const HIDDEN: &str = "***";
    let shown = || {
        let (first, others) = StoreUrl::split_hosts(text, "store").ok()?;
        let mut url = StoreUrl::parse(&first, "store", &[&format!("{}://", first.split_once(':')?.0)]).ok()?.url;
        // Without a host, the rest is the path of a file, or a mistake like `server:///user:password@host`.
        if url.host_str().is_none_or(str::is_empty) && !matches!(url.scheme(), "sqlite" | "redis+unix") {
            return None;
        }
        match (url.username(), url.password()) {
            ("", None) => {}
            (user, password) => {
                // `redis://password@host` is a common mistake.
                let hides_user = password.is_none() || user.contains('%');
                // These setters fail only for a URL without a host, which has neither user nor password.
                let _ = url.set_password(password.is_some().then_some(HIDDEN));
                let _ = if hides_user { url.set_username(HIDDEN) } else { Ok(()) };
            }
        }
        url.set_fragment(None);
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        if let Some(at) = pairs.iter().position(|(name, _)| is_secret(name)) {
            url.query_pairs_mut().clear().extend_pairs(&pairs[..at]).append_pair(&pairs[at].0, HIDDEN);
        }
        let mut shown = String::from(url);
        let begin = shown.find("://")? + 3;
        let end = shown[begin..].find(['/', '?']).map_or(shown.len(), |at| begin + at);
        shown.insert_str(end, &others.iter().map(|host| format!(",{host}")).collect::<String>());
        Some(shown)
    };
    shown().unwrap_or_else(|| HIDDEN.to_owned())
}

impl std::fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreUrl").field("scheme", &self.url.scheme()).finish_non_exhaustive()
    }
}

/// Settings of every store with a server or a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a backend has these two as fields of its own settings")]
pub struct CommonSettings {
    /// The longest time that one call takes, connecting included. Default 1 s, 10 ms to 60 s. URL: `timeout=`.
    pub timeout: Duration,
    /// How long the store keeps the record of a free lock, with its last fencing token. Default 10 minutes, 1 s to 365
    /// days. URL: `retention=`.
    pub retention: Duration,
}

impl CommonSettings {
    const TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);
    const RETENTION: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(365 * 24 * 3600);

    /// Takes the settings from a URL. A parameter that is missing has its default.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if a parameter is invalid.
    pub fn take(url: &mut StoreUrl) -> Result<Self> {
        let default = Self::default();
        Ok(Self {
            timeout: url.take_duration("timeout")?.unwrap_or(default.timeout),
            retention: url.take_duration("retention")?.unwrap_or(default.retention),
        })
    }

    /// Checks the bounds.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput), with the bounds.
    pub fn check(&self) -> Result<()> {
        within("timeout", self.timeout, &Self::TIMEOUT)?;
        within("retention", self.retention, &Self::RETENTION)
    }
}

impl Default for CommonSettings {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(1), retention: Duration::from_secs(600) }
    }
}

/// Checks the bounds of a duration. The error names it `name`.
///
/// # Errors
/// [`InvalidInput`](crate::ErrorKind::InvalidInput), with the bounds.
pub fn within(name: &str, value: Duration, bounds: &RangeInclusive<Duration>) -> Result<()> {
    if bounds.contains(&value) {
        return Ok(());
    }
    let (least, most) = (bounds.start(), bounds.end());
    Err(Error::invalid(format!("`{name}` must be between {least:?} and {most:?} (got {value:?})")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const SCHEMES: &[&str] = &["store://", "stores://"];

    #[test]
    fn a_url_of_several_hosts_is_split() {
        let split = |text| StoreUrl::split_hosts(text, "store").unwrap();
        assert_eq!(
            split("store://u:a,b@one:1,two:2,[::1]/p,q?x=1,2"),
            ("store://u:a,b@one:1/p,q?x=1,2".to_owned(), vec!["two:2".to_owned(), "[::1]".to_owned()])
        );
        for text in ["store://one", "store://one/a,b", "store://", "nonsense"] {
            assert_eq!(split(text), (text.to_owned(), Vec::new()));
        }
        for text in ["store://u:hunter2@one,,two", "store://one,"] {
            let error = StoreUrl::split_hosts(text, "store").unwrap_err();
            assert!(error.to_string().contains("empty host") && !error.to_string().contains("hunter2"), "{error}");
        }
    }

    fn read(text: &str) -> Result<(CommonSettings, Option<u8>, Url)> {
        let mut url = StoreUrl::parse(text, "store", SCHEMES)?;
        let common = CommonSettings::take(&mut url)?;
        let mode = url.take_choice("mode", &[("one", 1), ("two", 2)])?;
        common.check()?;
        Ok((common, mode, url.finish()?))
    }

    #[test]
    fn a_shown_url_has_no_password() {
        for (url, shown) in [
            ("redis://u:hunter2@host:7000/1?prefix=a", "redis://u:***@host:7000/1?prefix=a"),
            ("redis://hunter2@host", "redis://***@host"),
            ("redis://hunter2@x:hunter2@host", "redis://***:***@host"),
            ("redis+unix:///run/r.sock?user=u&pass=hunter2&hunter2=1", "redis+unix:///run/r.sock?user=u&pass=***"),
            ("mysql://host/app?Password=hunter2", "mysql://host/app?Password=***"),
            ("sqlite:///var/a@b/locks.db?timeout=2s", "sqlite:///var/a@b/locks.db?timeout=2s"),
            ("zk://u:hunter2@one:1,two,three/locks?tick=1s", "zk://u:***@one:1,two,three/locks?tick=1s"),
            ("mysql://u:hunter2@host/app#hunter2", "mysql://u:***@host/app"),
        ] {
            assert_eq!(without_password(url), shown);
        }
        for url in [
            "mysql:u:hunter2@host/app",
            "mysql:///u:hunter2@host/app",
            "hunter2",
            "zk://u:hunter2@one,,two",
            "zk://u:1/hunter2@one",
        ] {
            assert_eq!(without_password(url), "***", "{url}");
        }
    }

    #[test]
    fn durations_have_a_unit_and_are_not_zero() {
        for (text, ms) in [("250ms", 250), ("5s", 5_000), ("10m", 600_000), ("2h", 7_200_000), ("1h 30m", 5_400_000)] {
            assert_eq!(parse_duration("ttl", text).unwrap(), Duration::from_millis(ms), "{text}");
        }
        for text in ["", "5", "s", "0s", "-1s", "5S", "5 parsecs", "99999999999999999999d", "9223372036854775807d"] {
            let error = parse_duration("ttl", text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}");
            assert!(error.to_string().contains("`ttl`"), "{error}");
        }
    }

    #[test]
    fn a_url_carries_settings() {
        let (common, mode, url) = read("stores://u:p@host:1/path?timeout=250ms&mode=two&retention=2h").unwrap();
        assert_eq!((common.timeout, common.retention), (Duration::from_millis(250), Duration::from_secs(7200)));
        assert_eq!((mode, url.as_str()), (Some(2), "stores://u:p@host:1/path"));
        assert_eq!(read("store://host").unwrap().0, CommonSettings::default());
    }

    #[test]
    fn bounds_include_their_ends() {
        for text in ["timeout=10ms&retention=1s", "timeout=60s&retention=365d"] {
            read(&format!("store://host?{text}")).unwrap();
        }
        for (text, bounds) in [
            ("timeout=9ms", "`timeout` must be between 10ms and 60s (got 9ms)"),
            ("timeout=61s", "`timeout` must be between 10ms and 60s (got 61s)"),
            ("retention=999ms", "`retention` must be between 1s and 31536000s (got 999ms)"),
            ("retention=366d", "`retention` must be between 1s and 31536000s (got 31622400s)"),
        ] {
            assert_eq!(read(&format!("store://host?{text}")).unwrap_err().to_string(), bounds);
        }
    }

    #[test]
    fn what_is_wrong_is_named_and_no_secret_is_shown() {
        for (url, hint) in [
            ("store", "cannot be read"),
            ("http://u:hunter2@host", "must begin with store:// or stores:// (got http://)"),
            (
                "store://u:hunter2@host?tiemout=1s",
                "`tiemout` in the store URL: use one of `timeout`, `retention`, `mode`",
            ),
            ("store://u:hunter2@host?mode=three", "`mode` must be one of `one`, `two` (got `three`)"),
            ("store://u:hunter2@host?timeout=1s&timeout=2s", "`timeout` twice"),
            ("store:u:hunter2@host", "`//` is missing after `store:` in the store URL"),
            ("store://u:1/hunter2@host", "an `@` after its host; in a password, write `/` as `%2F`"),
            ("store://u:1?hunter2@host", "an `@` after its host"),
            ("store://u:1#hunter2@host", "an `@` after its host"),
            ("store://u:x#hunter2@host", "invalid port number; in a password, write"),
            ("store://host?pass=a&hunter2", "unknown parameter in the store URL: use one of `timeout`"),
            ("store://host?pass=a&hunter2&hunter2", "has parameter twice"),
            ("store://u:hunter2@host?timeout=5", "`250ms`"),
            ("store://u:hunter2@host#part", "%23"),
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}");
            let text = format!("{error} {error:?}");
            assert!(text.contains(hint) && !text.contains("hunter2"), "{url}: {text}");
        }
        let url = StoreUrl::parse("store://u:hunter2@host?password=hunter2", "store", SCHEMES).unwrap();
        assert!(!format!("{url:?}").contains("hunter2"));
    }
}
