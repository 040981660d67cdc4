//! The scripts at the edges of their clocks: a server's clock behind the last token, a short retention, a server that
//! has just started.

mod support;

use leasehold_core::FencingToken;
use leasehold_core::backend::{LockBackend, RenewReply};
use redis::Value;
use support::{Redis, claim, ms};

const LONG: std::time::Duration = ms(30_000);

/// The server's clock, in µs.
async fn now(server: &Redis) -> u64 {
    let Value::Array(time) = server.command(&["TIME"]).await else { panic!("no time") };
    let [seconds, micros] = [0, 1].map(|part| redis::from_redis_value::<u64>(time[part].clone()).expect("a number"));
    seconds * 1_000_000 + micros
}

/// How long the server keeps a key, in ms.
async fn kept(server: &Redis, key: &str) -> u64 {
    let Value::Int(left) = server.command(&["PTTL", key]).await else { panic!("no time") };
    u64::try_from(left).expect("it is kept for some time")
}

/// Makes the last token of a free lock one that a clock gave that was an hour ahead.
async fn token_of_the_future(server: &Redis, key: &str) -> u64 {
    let token = now(server).await + 3_600_000_000;
    let record = "redis.call('SET', KEYS[1], struct.pack('>I4I8I8I8', 24641536, 0, 0, ARGV[1]) .. string.rep('x', 16))";
    server.command(&["EVAL", record, "1", key, &token.to_string()]).await;
    token
}

#[tokio::test]
async fn tokens_rise_and_are_kept_while_the_clock_is_behind_the_last_one() {
    let server = Redis::start(&[]);
    let backend = server.backend("&retention=10m").await;
    let last = token_of_the_future(&server, "test:{job}").await;
    let hour = 3_600_000;
    let grant = backend.granted(&claim("job", 1), LONG).await;
    assert_eq!(grant.token.get(), last + 1);
    // Until the clock has passed the token, and the retention: before that a new record could repeat it.
    assert!(kept(&server, "test:{job}").await >= hour + 590_000);
    let (_, _) = backend.queued(&claim("job", 2), LONG).await;
    backend.release(&claim("job", 1)).await.unwrap();
    let RenewReply::Granted(next) = backend.renew_one(&claim("job", 2), grant.confirmation.place.next(), LONG).await
    else {
        panic!("not handed over")
    };
    assert_eq!(next.token.get(), last + 2);
    assert!(kept(&server, "test:{job}").await >= hour + 590_000);
    let admin = backend.inner.admin().expect("Redis can");
    let raised =
        admin.break_lock(claim("job", 0).name(), FencingToken::new(last + 2)).await.unwrap().expect("it is held");
    assert_eq!(raised.get(), last + 3);
    assert!(backend.granted(&claim("job", 3), LONG).await.token > raised);

    // The way of a record that has more than an ordinary one, from the beginning.
    let last = token_of_the_future(&server, "test:{other}").await;
    backend.withdraw(&claim("other", 9)).await.unwrap();
    assert!(kept(&server, "test:{other}").await >= hour + 590_000);
    assert_eq!(backend.granted(&claim("other", 1), LONG).await.token.get(), last + 1);
}

#[tokio::test]
async fn a_queue_keeps_its_record_for_as_long_as_a_place_lasts_however_short_the_retention() {
    let server = Redis::start(&[]);
    let backend = server.backend("&retention=1s").await;
    backend.granted(&claim("job", 1), ms(2000)).await;
    let (place, _) = backend.queued(&claim("job", 2), LONG).await;
    assert!(kept(&server, "test:{job}").await >= 7_500, "the place would be lost with its record");
    tokio::time::sleep(ms(2050)).await;
    assert!(matches!(backend.renew_one(&claim("job", 2), place, LONG).await, RenewReply::Granted(_)));
}

#[tokio::test]
async fn a_server_has_run_for_a_second_less_than_it_says() {
    let server = Redis::start(&[]);
    for (says, uptime) in [("5", 4000), ("1", 0), ("0", 0), ("-7", 0)] {
        let script = format!(
            "local server = redis
             local redis = {{pcall = server.pcall, call = function(command, ...)
               if command ~= 'INFO' then return server.call(command, ...) end
               return 'run_id:f00 uptime_in_seconds:{says} redis_version:7.0.1 maxmemory_policy:noeviction'
             end}}
             {}",
            include_str!("../src/scripts/epoch.lua")
        );
        let Value::Array(reading) = server.command(&["EVAL", &script, "1", "test:epoch"]).await else {
            panic!("no list")
        };
        assert_eq!(reading[1], Value::Int(uptime), "uptime_in_seconds:{says}");
    }
}

/// A script as the client sends it.
fn whole(bodies: &[&str]) -> String {
    let library = include_str!("../src/scripts/library.lua");
    let put_back = include_str!("../src/scripts/put_back.lua");
    let body = bodies.concat().replace("--@ put_back.lua\n", put_back).replace("--@ library.lua\n", library);
    [include_str!("../src/scripts/prelude.lua"), &body].concat()
}

/// A request for one lock, as in a cluster: it declares these keys beside the record (1 the queue, 2 the tombstone of
/// its owner), and its script uses no other ones.
async fn declared(server: &Redis, keys: u8, script: &str, acquires: u8, more: &str) -> Value {
    let owner = "1".repeat(16);
    let names = ["test:{job}".to_owned(), "test:{job}:q".to_owned(), format!("test:{{job}}:t:{owner}")];
    let names = names.iter().enumerate().filter(|(number, _)| *number == 0 || usize::from(keys) & number != 0);
    let names: Vec<_> = names.map(|(_, name)| name.as_str()).collect();
    let common = format!("struct.pack('>I8I2I4c1c1c1B', 600000000, {acquires}, 30000, '1', 'q', '{keys}', 0)");
    let source = format!("local ARGV = {{{common}, {more}}}\n{script}");
    let count = names.len().to_string();
    server.command(&[&["EVAL", &source, &count], &names[..]].concat()).await
}

/// The keys that a request lacks, by the reply to it.
fn lacking(reply: &Value) -> Option<i64> {
    let Value::Array(parts) = reply else { return None };
    match &parts[..] {
        [Value::Int(5), Value::Int(keys), Value::Int(0)] => Some(*keys),
        _ => None,
    }
}

#[tokio::test]
async fn a_script_names_the_keys_that_it_lacks_and_has_changed_nothing() {
    let server = Redis::start(&[]);
    let batch = include_str!("../src/scripts/batch.lua");
    let acquire_and_release = [include_str!("../src/scripts/acquire.lua"), include_str!("../src/scripts/release.lua")];
    let exchange = whole(&[&[batch], &acquire_and_release[..]].concat());
    let renew = whole(&[batch, include_str!("../src/scripts/renew.lua")]);
    let inspect = whole(&[include_str!("../src/scripts/inspect.lua")]);
    let break_lock = whole(&[include_str!("../src/scripts/break.lua")]);
    let owner = |number: u8| format!("string.rep('{number}', 16)");
    let renewal = |place: &str, number: u8, exceptions: &str| {
        format!("struct.pack('>I8', {place}) .. {}, {exceptions}", owner(number))
    };
    let withdrawal = format!("{}, struct.pack('>I2I4', 1, 60000)", owner(1));

    let Value::Int(token) = declared(&server, 0, &exchange, 1, &owner(1)).await else { panic!("not granted") };
    let (token, place) = (token.to_string(), (token + 1).to_string());
    assert_eq!(lacking(&declared(&server, 0, &exchange, 1, &owner(2)).await), Some(1), "a first place");
    let queued = declared(&server, 1, &exchange, 1, &owner(2)).await;
    assert!(matches!(queued, Value::Array(ref parts) if parts[0] == Value::Int(2)), "{queued:?}");
    // A holder needs no queue, whoever waits.
    assert_eq!(lacking(&declared(&server, 0, &renew, 0, &renewal(&token, 1, "''")).await), None);
    let sooner = "struct.pack('>I2I4c1', 1, 100, 'e')";
    let dump = async || {
        let mut keys = Vec::new();
        for command in [&["DUMP", "test:{job}"], &["DUMP", "test:{job}:q"], &["KEYS", "test:{job}:t:*"]] {
            keys.push(server.command(command).await);
        }
        keys
    };
    for (what, keys, script, acquires, more, lacks) in [
        ("another place", 0, &exchange, 1, owner(3), 1),
        ("the waiter", 0, &renew, 0, renewal(&place, 2, "''"), 1),
        ("a sooner end", 0, &renew, 0, renewal(&token, 1, sooner), 1),
        ("a release", 0, &exchange, 0, owner(1), 1),
        ("a withdrawal", 0, &exchange, 0, withdrawal.clone(), 3),
        ("a withdrawal with its tombstone", 2, &exchange, 0, withdrawal.clone(), 3),
        ("a withdrawal with its queue", 1, &exchange, 0, withdrawal.clone(), 3),
        ("a break", 0, &break_lock, 0, format!("'{token}'"), 1),
        ("an inspection", 0, &inspect, 0, "''".to_owned(), 1),
    ] {
        let before = dump().await;
        let reply = declared(&server, keys, script, acquires, &more).await;
        assert_eq!(lacking(&reply), Some(lacks), "{what}: {reply:?}");
        assert_eq!(dump().await, before, "{what}");
    }
    // All keys are declared, and are not taken for records.
    assert_eq!(declared(&server, 3, &exchange, 0, &withdrawal).await, Value::Int(1));
    // It was withdrawn, and comes late.
    assert_eq!(lacking(&declared(&server, 0, &exchange, 1, &owner(1)).await), Some(2));
    let late = declared(&server, 2, &exchange, 1, &owner(1)).await;
    assert_eq!(late, Value::Array(vec![Value::Int(4), Value::Int(0), Value::Int(0)]));
    assert_eq!(lacking(&declared(&server, 0, &renew, 0, &renewal(&place, 2, "''")).await), None, "the next holder");
}
