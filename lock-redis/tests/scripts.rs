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
