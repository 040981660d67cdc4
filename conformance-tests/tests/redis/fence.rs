//! Fenced scripts that fail.

use std::sync::Arc;
use std::time::Duration;

use leasehold::redis::{FencedScript, RedisBackend};
use leasehold_conformance::Route;
use leasehold_core::{ErrorKind, LockClient};

use super::support::{SOON, case, hold};

const TTL: Duration = Duration::from_secs(10);

/// Like what a server says that has not run a script. The last one only contains such a text.
const TEXTS: [&str; 11] = [
    "BUSY x",
    "NOSCRIPT x",
    "LOADING x",
    "MASTERDOWN x",
    "TRYAGAIN x",
    "OTHERRUN x",
    "NOAUTH x",
    "WRONGTYPE x",
    "CLUSTERDOWN x",
    "MOVED 1 127.0.0.1:1",
    "the ROOM is full",
];

/// A script fails after it has written. Whatever the text of its error is, the caller learns that the script may have
/// written, and it is not sent again.
#[test]
fn a_script_that_fails_after_a_write_is_in_doubt_whatever_it_says() {
    case(async |fixture| {
        let backend = RedisBackend::connect(&fixture.url(Route::Clear, "")).await;
        let backend = Arc::new(backend.unwrap_or_else(|error| panic!("not connected: {error:?}")));
        let client = LockClient::builder(backend.clone()).wait(SOON).ttl(TTL).build().expect("a client");
        let guard = hold(&client, "account").await;
        let fence = backend.fence(&guard);
        let group = "redis.call('XGROUP', 'CREATE', KEYS[2], 'group', '$', 'MKSTREAM')";
        let scripts = [
            // `BUSYGROUP Consumer Group name already exists`.
            format!("redis.call('INCR', KEYS[1]) {group} {group}"),
            "redis.call('INCR', KEYS[1]) error(ARGV[1])".to_owned(),
            "redis.call('INCR', KEYS[1]) error({err = ARGV[1]})".to_owned(),
        ];
        for (number, source) in scripts.iter().enumerate() {
            let script = FencedScript::new(source);
            for text in TEXTS {
                let keys = ["count", "stream"].map(|key| fence.key(&format!("{key} {number} {text}")));
                let error = fence.run(&script, &keys, &[text]).await.expect_err("it fails");
                assert_eq!(error.kind(), ErrorKind::Indeterminate, "{source}, {text}: {error:?}");
                let count = fixture.server().command(&["GET", &keys[0]]).expect("a number").text();
                assert_eq!(count, "1", "{source}, {text}: how often it ran");
            }
        }
        guard.release().await.expect("a release");
    });
}
