//! Settings, and the URL that contains them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_core::backend::kit::{CommonSettings, StoreUrl};
use leasehold_core::{Error, Result};
use percent_encoding::percent_decode_str;
use url::Url;

use crate::file_system::kind_of_folder_error;

/// The URL schemes of this crate, for error messages.
pub const SCHEMES: &[&str] = &["sqlite://"];

/// Settings of a [`SqliteBackend`](crate::SqliteBackend).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The upper bound of one call, including reopening the file. Default 1 s: a write of another process takes about
    /// 20 µs, and a short delay of the disk is not yet an error. Only connecting, which may create the file, allows a
    /// slow disk 10 s. 10 ms to 60 s.
    pub timeout: Duration,
    /// How long the row of a free lock is kept, with its last fencing token. Default 10 minutes. Tokens keep their
    /// order if the wall clock is set back by up to this much. A row takes about 200 bytes. 1 s to 365 days.
    pub retention: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        CommonSettings::default().into()
    }
}

impl Settings {
    /// Checks the bounds of all settings.
    pub(crate) fn check(self) -> Result<Self> {
        CommonSettings { timeout: self.timeout, retention: self.retention }.check()?;
        Ok(self)
    }
}

impl From<CommonSettings> for Settings {
    fn from(CommonSettings { timeout, retention }: CommonSettings) -> Self {
        Self { timeout, retention }
    }
}

/// The location of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// At this path. Its folder must exist.
    Path(PathBuf),
    /// In the user's state folder, which is created if it does not exist.
    StateFolder,
}

/// Parses a URL.
pub(crate) fn parse_url(text: &str) -> Result<(Location, Settings)> {
    let not_absolute =
        || Error::invalid("the SQLite URL needs an absolute path, and so three slashes: `sqlite:///path/locks.db`");
    if text.strip_prefix("sqlite:").is_some_and(|rest| !rest.starts_with("//")) {
        return Err(not_absolute());
    }
    let mut url = StoreUrl::parse(text, "SQLite", SCHEMES)?;
    if url.url().host_str().is_some_and(|host| !host.is_empty()) {
        return Err(not_absolute());
    }
    let settings = Settings::from(CommonSettings::take(&mut url)?).check()?;
    Ok((location(&url.finish()?)?, settings))
}

fn location(url: &Url) -> Result<Location> {
    if url.path().is_empty() {
        return Ok(Location::StateFolder);
    }
    let path = path_of(percent_decode_str(url.path()).collect())?;
    if path.file_name().is_none() || url.path().ends_with('/') {
        return Err(Error::invalid(format!("`{}` is the path of a folder: name a file in it", path.display())));
    }
    Ok(Location::Path(path))
}

/// The path of the file for this user. Creates nothing.
pub(crate) fn resolve_path(location: Location) -> Result<PathBuf> {
    match location {
        Location::Path(path) => Ok(path),
        Location::StateFolder => state_file(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME")),
    }
}

/// Returns the same URL with the path of the file in it. What `sqlite://` refers to depends on the user and the
/// environment; the result does not. Creates nothing.
///
/// # Errors
/// `InvalidInput` for a bad URL, and for `sqlite://` if there is no home.
pub fn resolve(url: &str) -> Result<String> {
    match parse_url(url)?.0 {
        Location::Path(_) => Ok(url.to_owned()),
        location @ Location::StateFolder => {
            let file = resolve_path(location)?;
            let path = Url::from_file_path(&file)
                .map_err(|()| Error::invalid(format!("{} is not an absolute path", file.display())))?;
            let query = url.split_once('?').map(|(_, query)| format!("?{query}")).unwrap_or_default();
            Ok(format!("sqlite://{}{query}", path.path()))
        }
    }
}

#[cfg(unix)]
fn path_of(bytes: Vec<u8>) -> Result<PathBuf> {
    if bytes.contains(&0) {
        return Err(Error::invalid("the path of a SQLite file cannot contain NUL"));
    }
    Ok(<OsString as std::os::unix::ffi::OsStringExt>::from_vec(bytes).into())
}

#[cfg(not(unix))]
fn path_of(bytes: Vec<u8>) -> Result<PathBuf> {
    let text = String::from_utf8(bytes).map_err(|_| Error::invalid("the path of a SQLite file must be UTF-8"))?;
    Ok(OsString::from(text).into())
}

/// The file in the user's state folder: `$XDG_STATE_HOME/leasehold/locks.db`, or `~/.local/state/leasehold/locks.db`.
pub(crate) fn state_file(xdg_state_home: Option<OsString>, home: Option<OsString>) -> Result<PathBuf> {
    let absolute = |text: OsString| Some(PathBuf::from(text)).filter(|path| path.is_absolute());
    let state = xdg_state_home.and_then(absolute);
    let state = state.or_else(|| home.and_then(absolute).map(|home| home.join(".local").join("state")));
    let state = state.ok_or_else(|| {
        Error::invalid("`sqlite://` needs a home: set HOME or XDG_STATE_HOME, or use a path: `sqlite:///path/locks.db`")
    })?;
    Ok(state.join("leasehold").join("locks.db"))
}

/// Creates the folder in the user's state folder, accessible to that user only. A missing home is not created: its user
/// (`nobody`, a service) would not find the file there.
pub(crate) fn make_state_folder(file: &Path, home: Option<&Path>) -> Result<()> {
    let Some(folder) = file.parent() else { return Ok(()) };
    let missing =
        |home: &&Path| home.is_absolute() && folder.starts_with(home) && home.try_exists().is_ok_and(|exists| !exists);
    if let Some(home) = home.filter(missing) {
        let text = format!(
            "the home {} does not exist, so `sqlite://` has no folder: set XDG_STATE_HOME, or use a path: \
             `sqlite:///path/locks.db`",
            home.display()
        );
        return Err(Error::invalid(text));
    }
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map_err(|error| {
        let text = format!("the folder {} cannot be created", folder.display());
        Error::new(kind_of_folder_error(&error), text).with_source(error)
    })
}

#[cfg(test)]
mod tests {
    use leasehold_core::ErrorKind;

    use super::*;

    #[test]
    fn a_url_carries_every_setting() {
        let (location, settings) =
            parse_url("sqlite:///var/lib/my%20app/l%23%3F.db?timeout=250ms&retention=2h").unwrap();
        assert_eq!(location, Location::Path("/var/lib/my app/l#?.db".into()));
        assert_eq!((settings.timeout, settings.retention), (Duration::from_millis(250), Duration::from_secs(7200)));
        assert_eq!(parse_url("sqlite://").unwrap(), (Location::StateFolder, Settings::default()));
        assert_eq!(parse_url("sqlite://?timeout=2s").unwrap().0, Location::StateFolder);
    }

    #[test]
    fn bad_urls_are_refused_with_a_hint() {
        for (url, hint) in [
            ("http://localhost", "sqlite://"),
            ("sqlite:locks.db", "sqlite:///path"),
            ("sqlite:/tmp/locks.db", "sqlite:///path"),
            ("sqlite://locks.db", "sqlite:///path"),
            ("sqlite://locks.db/x", "sqlite:///path"),
            ("sqlite:///", "folder"),
            ("sqlite:///tmp/", "folder"),
            ("sqlite:///tmp/..", "folder"),
            ("sqlite:///tmp/a%00b", "NUL"),
            ("sqlite:///tmp/a#b", "%23"),
            ("sqlite:///tmp/a?timout=1s", "`timeout`, `retention`"),
            ("sqlite:///tmp/a?timeout=5", "`250ms`"),
            ("sqlite:///tmp/a?timeout=1ms", "10ms"),
            ("sqlite:///tmp/a?retention=1000d", "`retention`"),
            ("sqlite", "cannot be read"),
        ] {
            let error = parse_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{url}");
            assert!(error.to_string().contains(hint), "{url}: {error}");
        }
    }

    #[test]
    fn the_state_folder_is_the_users() {
        let file = |xdg: Option<&str>, home: Option<&str>| state_file(xdg.map(Into::into), home.map(Into::into));
        assert_eq!(file(Some("/s"), Some("/h")).unwrap(), Path::new("/s/leasehold/locks.db"));
        assert_eq!(file(None, Some("/h")).unwrap(), Path::new("/h/.local/state/leasehold/locks.db"));
        // The XDG specification says to ignore relative paths.
        assert_eq!(file(Some("s"), Some("/h")).unwrap(), Path::new("/h/.local/state/leasehold/locks.db"));
        assert_eq!(file(Some(""), None).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    #[cfg(unix)]
    fn only_the_user_can_access_a_new_state_folder() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        let file = state_file(None, Some(home.path().into())).unwrap();
        make_state_folder(&file, Some(home.path())).unwrap();
        make_state_folder(&file, Some(home.path())).unwrap();
        let mode = std::fs::metadata(file.parent().unwrap()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        std::fs::write(&file, "").unwrap();
        assert_eq!(make_state_folder(&file.join("below"), None).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn a_missing_home_is_not_created() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("nobody");
        let file = state_file(None, Some(home.clone().into())).unwrap();
        let error = make_state_folder(&file, Some(&home)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("sqlite:///path/locks.db"), "{error}");
        assert!(!home.exists());
    }

    #[test]
    fn a_resolved_url_refers_to_the_same_file_for_every_user() {
        for url in ["sqlite:///var/lib/my%20app/l.db?timeout=2s", "sqlite:///l.db"] {
            assert_eq!(resolve(url).unwrap(), url);
        }
        let (resolved, file) = (resolve("sqlite://?timeout=2s").unwrap(), resolve_path(Location::StateFolder).unwrap());
        let (location, settings) = parse_url(&resolved).unwrap();
        assert_eq!((location, settings.timeout), (Location::Path(file), Duration::from_secs(2)));
        assert_eq!(resolve("sqlite://locks.db").unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
