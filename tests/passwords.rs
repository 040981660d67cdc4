//! No text contains the password of a URL, whatever mistake the URL has.

use std::error::Error as _;
use std::fmt::Debug;

use leasehold::{Error, Result};
use proptest::prelude::*;

/// A password has this text on both sides of a character that is special in a URL.
const SECRET: &str = "hunter2";

/// URLs with a password that is not encoded, at every place where people write one. Their host is an address with a
/// closed port, so that nothing is resolved or connected.
fn urls() -> impl Strategy<Value = String> {
    let schemes: Vec<_> = leasehold::SCHEMES.iter().map(|(scheme, ..)| *scheme).chain(["consul", "MYSQL"]).collect();
    let password = proptest::sample::select(vec![
        "", "/", "?", "#", "@", ":", ",", "&", "%", "=", ";", "\\", "[", " ", "\n", "1/",
    ])
    .prop_map(|special| format!("{SECRET}{special}{SECRET}"));
    let password =
        prop_oneof![password, Just(format!("1/{SECRET}")), Just(format!("1?{SECRET}")), Just(format!("1#{SECRET}"))];
    let user = proptest::sample::select(vec!["", "u", "u@x", "u,v", "u%3A"]);
    let slashes = proptest::sample::select(vec!["//", "", "/", "///"]);
    let tail = proptest::sample::select(vec![
        "",
        "/app",
        "/1",
        "/app?timeout=10ms",
        "/app?tiemout=1s",
        "/%ff",
        "?x",
        "#x",
        "/a/b",
    ]);
    (proptest::sample::select(schemes), slashes, user, password, tail, 0..8_u8).prop_map(
        |(scheme, slashes, user, password, tail, shape)| match shape {
            0 => format!("{user}:{password}@127.0.0.1:1{tail}"),
            1 => format!("{scheme}:{slashes}127.0.0.1:1,{user}:{password}@127.0.0.1:2{tail}"),
            2 => format!("{scheme}:{slashes}127.0.0.1:1/app?user={user}&pass={password}"),
            3 => format!("{scheme}:{slashes}127.0.0.1:1/app?password={password}"),
            _ => format!("{scheme}:{slashes}{user}:{password}@127.0.0.1:1{tail}"),
        },
    )
}

/// A file has no password, only a path.
fn is_file(url: &str) -> bool {
    url.starts_with("sqlite:///") || url.starts_with("redis+unix:///")
}

#[track_caller]
fn check<T: Debug>(url: &str, opened: Result<T>) -> std::result::Result<(), TestCaseError> {
    let text = match opened {
        Ok(opened) => format!("{opened:?}"),
        Err(error) => whole_text(&error),
    };
    prop_assert!(!text.contains(SECRET), "{url}: {text}");
    Ok(())
}

fn whole_text(error: &Error) -> String {
    let mut text = format!("{error} {error:?} {error:#?}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(" {error} {error:?}"));
        cause = error.source();
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_store_shows_the_password_of_a_wrong_url(url in urls().prop_filter("a path", |url| !is_file(url))) {
        check(&url, leasehold::connect_lazy(&url))?;
        #[cfg(feature = "etcd")]
        check(&url, leasehold::etcd::EtcdBackend::connect_lazy(&url))?;
        #[cfg(feature = "mysql")]
        check(&url, leasehold::mysql::MySqlBackend::connect_lazy(&url))?;
        #[cfg(feature = "redis")]
        check(&url, leasehold::redis::RedisBackend::connect_lazy(&url))?;
        #[cfg(feature = "sqlite")]
        {
            check(&url, leasehold::sqlite::SqliteBackend::connect_lazy(&url))?;
            check(&url, leasehold::sqlite::resolve(&url))?;
        }
        #[cfg(feature = "zk")]
        check(&url, leasehold::zk::ZkBackend::connect_lazy(&url))?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn connecting_shows_no_password_of_a_wrong_url(url in urls().prop_filter("a path", |url| !is_file(url))) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        check(&url, runtime.block_on(leasehold::connect(&url)))?;
    }
}
