//! Selects the store from the options and the environment, and connects to it.

use leasehold::LockClient;
use leasehold::backend::kit::{StoreUrl, without_password};
use url::Url;

use crate::args::Common;
use crate::exit::Failure;
use crate::output::Output;

/// The environment variable with the URL of the store.
pub(crate) const VARIABLE: &str = "LEASEHOLD_STORE";

/// The default store.
const DEFAULT: &str = "sqlite://";

const MEMORY: &str = "memory";

/// The schemes of this command, each with its feature and whether that is enabled: all but `memory`, whose store is
/// inside one process.
fn schemes() -> impl Iterator<Item = &'static (&'static str, &'static str, bool)> {
    leasehold::SCHEMES.iter().filter(|(scheme, ..)| *scheme != MEMORY)
}

/// A store that this command can use.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Store {
    /// The URL as given. The folder is created only for `sqlite://`.
    given: String,
    /// The URL with the path of the file.
    resolved: String,
}

impl Store {
    /// The store from the options, or else from the environment, or else the user's own file. Prints its URL with
    /// `--verbose`.
    ///
    /// # Errors
    /// The URL is malformed, or this command does not support its scheme. Nothing was sent.
    pub(crate) fn from_args(common: &Common, output: Output) -> Result<Self, Failure> {
        let store = Self::choose(common.store.as_deref(), std::env::var_os(VARIABLE))?;
        if common.verbose {
            output.info("store", &format!("the store is {}", store.display_url()));
        }
        Ok(store)
    }

    fn choose(option: Option<&str>, variable: Option<std::ffi::OsString>) -> Result<Self, Failure> {
        let variable = variable.filter(|url| !url.is_empty()).map(std::ffi::OsString::into_string).transpose();
        let variable = variable.map_err(|_| Failure::input(format!("{VARIABLE} is not valid UTF-8")))?;
        let url = option.or(variable.as_deref()).unwrap_or(DEFAULT);
        check_scheme(url)?;
        #[cfg(feature = "sqlite")]
        if url.starts_with("sqlite:") {
            return Ok(Self { given: url.to_owned(), resolved: leasehold::sqlite::resolve(url)? });
        }
        Ok(Self { given: url.to_owned(), resolved: url.to_owned() })
    }

    /// The URL with the path of the file, and with the password if it has one.
    pub(crate) fn url(&self) -> &str {
        &self.resolved
    }

    /// The URL without a password, for messages.
    pub(crate) fn display_url(&self) -> String {
        without_password(&self.resolved)
    }

    /// Connects, and returns when the store has replied.
    pub(crate) async fn connect(&self, label: &str) -> Result<LockClient, Failure> {
        Ok(until_exit(leasehold::connect_builder(&self.given).await?.label(label).build()?))
    }

    /// Returns a client that connects with its first call, so the store may be unavailable now.
    pub(crate) fn connect_lazily(&self, label: &str) -> Result<LockClient, Failure> {
        Ok(until_exit(leasehold::connect_builder_lazy(&self.given)?.label(label).build()?))
    }
}

/// Keeps a client open until the process exits. A client that is dropped closes its connections in the background:
/// SQLite deletes the `-shm` and then the `-wal`, and a process that exits in between leaves a `-wal` that no user
/// without write permission can read.
fn until_exit(client: LockClient) -> LockClient {
    std::mem::forget(client.clone());
    client
}

fn check_scheme(url: &str) -> Result<(), Failure> {
    let invalid = |why: &dyn std::fmt::Display| {
        let encode = match url.contains('@') {
            true => ", and write `/` `?` `#` `@` in a password as `%2F` `%3F` `%23` `%40`",
            false => "",
        };
        Failure::input(format!(
            "the store is not a valid URL ({why}): use a URL such as `redis://host:6379` or \
             `sqlite:///path/locks.db`{encode}"
        ))
    };
    // A URL parser refuses several hosts.
    let (first, _) = StoreUrl::split_hosts(url, "store").map_err(|why| invalid(&why))?;
    let scheme = Url::parse(&first).map_err(|why| invalid(&why))?;
    let scheme = scheme.scheme();
    if scheme == MEMORY {
        return Err(Failure::input(
            "`memory://` is a store inside one process, so no other command sees its locks: use a file, such as \
             `sqlite:///path/locks.db`, or a server",
        ));
    }
    match schemes().find(|(known, ..)| *known == scheme) {
        Some((.., true)) => Ok(()),
        Some((_, feature, false)) => Err(Failure::input(format!(
            "this `leasehold` was built without `{scheme}://`: build it with `cargo install --path cli \
             --features {feature}`"
        ))),
        None => {
            let known = schemes().filter(|(.., is_on)| *is_on).map(|(scheme, ..)| format!("`{scheme}://`"));
            let known = known.collect::<Vec<_>>().join(", ");
            Err(Failure::input(format!("unknown scheme `{scheme}://`: use {known}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    fn refused(url: &str) -> String {
        let Err(failure) = Store::choose(Some(url), None) else { panic!("{url} is accepted") };
        assert_eq!(failure.exit, Exit::BadInput);
        failure.text
    }

    #[test]
    fn an_unknown_scheme_names_the_available_ones() {
        let text = refused("consul://u:hunter2@host");
        assert!(text.contains("`consul://`") && !text.contains("memory") && !text.contains("hunter2"), "{text}");
        for (scheme, _, is_on) in schemes() {
            assert_eq!(text.contains(&format!("`{scheme}://`")), *is_on, "{text}");
        }
        assert!(refused("memory://").contains("inside one process"));
        assert!(refused("").contains("sqlite:///path"));
    }

    #[test]
    fn a_scheme_without_its_feature_names_the_command_that_builds_it() {
        for (scheme, feature, _) in schemes().filter(|(.., is_on)| !is_on) {
            let text = refused(&format!("{scheme}://:hunter2@host"));
            let line = format!("cargo install --path cli --features {feature}");
            assert!(text.contains(&line) && !text.contains("hunter2"), "{text}");
        }
    }

    #[cfg(all(feature = "redis", feature = "sqlite"))]
    #[test]
    fn an_option_wins_over_the_environment_and_an_empty_variable_is_unset() {
        let choose = |option, variable: &str| Store::choose(option, Some(variable.into())).ok().unwrap();
        assert_eq!(choose(Some("redis://a"), "redis://b").url(), "redis://a");
        assert_eq!(choose(None, "redis://b").url(), "redis://b");
        assert!(choose(None, "").url().ends_with("/leasehold/locks.db"));
    }

    #[cfg(feature = "zk")]
    #[test]
    fn a_url_may_have_several_hosts() {
        let url = "zk://u:hunter2@one:2181,two:2182,three/locks?tick=100ms";
        let shown = "zk://u:***@one:2181,two:2182,three/locks?tick=100ms";
        assert_eq!(Store::choose(Some(url), None).ok().unwrap().display_url(), shown);
        let text = refused("zk://u:hunter2@one:2181,,three");
        assert!(text.contains("empty host") && !text.contains("hunter2"), "{text}");
    }

    const SECRET: &str = "hunter2";

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn no_text_has_the_password_of_a_wrong_url(
            scheme in proptest::sample::select(
                leasehold::SCHEMES.iter().map(|(scheme, ..)| *scheme).collect::<Vec<_>>()
            ),
            special in proptest::sample::select(vec!["", "1/", "1?", "1#", "/", "@", ":", ",", "&", "\n"]),
            form in proptest::sample::select(vec![
                "S://u:PP@127.0.0.1:1/app", "S:u:PP@127.0.0.1:1/app", "S:///u:PP@127.0.0.1:1/app",
                "S:/u:PP@127.0.0.1:1/app", "S://u:XP@127.0.0.1:1", "S:u:XP@127.0.0.1", "S://P@127.0.0.1:1",
                "S://127.0.0.1:1,u:PP@127.0.0.1:2/app", "u:PP@h",
                "S://127.0.0.1:1/app?pass=PP&x=1", "S://127.0.0.1:1?a_passwd=PP", "S://u:PP@127.0.0.1:1,,127.0.0.1:2",
            ]),
        ) {
            let url = form.replace('S', scheme).replace('X', special).replace("PP", "PXP");
            let url = url.replace('X', special).replace('P', SECRET);
            // After three slashes, the rest is the path of a file.
            if !url.starts_with("sqlite:///") && !url.starts_with("redis+unix:///") {
                let text = match Store::choose(Some(&url), None) {
                    Err(failure) => failure.text,
                    Ok(store) => {
                        let failure = store.connect_lazily("").err().map(|failure| failure.text);
                        format!("{} {}", store.display_url(), failure.unwrap_or_default())
                    }
                };
                proptest::prop_assert!(!text.contains(SECRET), "{url}: {text}");
            }
        }
    }
}
