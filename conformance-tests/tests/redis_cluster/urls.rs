//! What a URL leads to, and administration across the nodes.

use std::sync::Arc;
use std::time::Duration;

use leasehold::redis::{FencedScript, RedisBackend, ScriptCalls, acl, read_only_acl, redis};
use leasehold_core::backend::{Admin, LockBackend};
use leasehold_core::{ErrorKind, LockClient};
use leasehold_test_servers::RedisSettings;

use super::common::{SOON, hold};
use super::deployment::{PATIENT, PREFIX, case, name, refused, run};

const TTL: Duration = Duration::from_secs(10);

/// The bound of a call that only has to succeed.
const LONG: &str = "10s";

/// A URL of a single server leads to a node, and a URL of a cluster to a single server: both errors name the right one.
#[test]
fn a_url_of_the_wrong_kind_names_the_right_one() {
    case(async |deployment| {
        for node in &deployment.cluster.nodes {
            let url = format!("{}/?timeout={LONG}", node.url());
            let error = RedisBackend::connect(&url).await.expect_err("a node of a cluster");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
            assert!(error.to_string().contains("`redis+cluster://`"), "{error}");
        }
        let plain = RedisSettings::new().start().unwrap_or_else(|error| panic!("{error}"));
        let url = format!("redis+cluster://{}/?timeout={LONG}", plain.addr());
        let error = RedisBackend::connect(&url).await.expect_err("no cluster");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        assert!(error.to_string().contains("`redis://`"), "{error}");
    });
}

/// Any node of the URL is enough: a replica, or one behind others that are dead.
#[test]
fn any_node_leads_to_the_others() {
    case(async |deployment| {
        let replica = deployment.cluster.nodes[5].addr();
        for (number, hosts) in [format!("{replica}"), format!("127.0.0.1:1,{replica}")].iter().enumerate() {
            let url = format!("redis+cluster://{hosts}/?timeout={LONG}");
            let backend = RedisBackend::connect(&url).await.unwrap_or_else(|error| panic!("{error:?}"));
            let client = LockClient::builder(backend).wait(SOON).ttl(TTL).build().expect("a client");
            for lock in 0..20 {
                hold(&client, &format!("{number}/{lock}")).await.release().await.expect("a release");
            }
        }
    });
}

/// Locks of all nodes are listed, shown and broken, and each node is examined, also if one is dead.
#[test]
fn administration_reaches_every_node() {
    case(async |mut deployment| {
        let client = deployment.client_within(PATIENT, TTL).await;
        let mut guards = Vec::new();
        for lock in 0..30 {
            guards.push(hold(&client, &format!("list/{lock:02}")).await);
        }
        let backend = deployment.backend(LONG).await;
        let admin: &dyn Admin = backend.admin().expect("it has one");
        let listing = admin.list("list/", 100).await.expect("a list");
        assert_eq!(listing.locks.len(), 30);
        assert_eq!(admin.list("list/", 7).await.expect("a list").locks.len(), 7);
        for guard in &guards {
            let seen = admin.inspect(guard.name()).await.expect("it is shown").expect("it is there");
            assert_eq!(seen.holders[0].token, guard.fencing_token());
        }
        let broken = admin.break_lock(guards[0].name(), guards[0].fencing_token()).await.expect("it is broken");
        assert!(broken > Some(guards[0].fencing_token()));
        let checks = admin.examine().await.expect("it is examined");
        let server = checks.iter().find(|check| check.about == "server").expect("a check");
        assert_eq!(server.found.split("; ").count(), 3, "{server:?}");
        deployment.kill_all_of(1);
        let checks = admin.examine().await.expect("it is examined");
        let dead = deployment.cluster.nodes[1].addr().to_string();
        assert!(checks.iter().any(|check| check.found.contains(&dead)), "{checks:?}");
    });
}

/// A user who may only look can do so on a cluster.
#[test]
fn a_reader_sees_who_holds() {
    case(async |deployment| {
        let rules = read_only_acl(PREFIX, ScriptCalls::Eval).expect("a prefix");
        for node in &deployment.cluster.nodes {
            let mut user = vec!["ACL", "SETUSER", "reader", "on", ">pass-word"];
            user.extend(rules.split(' '));
            run(node, &user);
        }
        let client = deployment.client_within(PATIENT, TTL).await;
        let guard = hold(&client, "seen").await;
        let url = format!("redis+cluster://reader:pass-word@{}/?timeout={LONG}", deployment.cluster.nodes[0].addr());
        let reader = RedisBackend::connect(&url).await.unwrap_or_else(|error| panic!("{error:?}"));
        let seen = reader.admin().expect("it has one").inspect(guard.name()).await.expect("it is shown");
        assert_eq!(seen.expect("it is there").holders[0].token, guard.fencing_token());
    });
}

/// A user of locks needs each command that only nodes of a cluster are sent.
#[test]
fn a_user_needs_the_permissions_of_a_cluster() {
    case(async |deployment| {
        let set = |rules: &str| {
            let command = ["ACL", "SETUSER", "locks", "on", ">pass-word"].into_iter().chain(rules.split(' '));
            let command: Vec<_> = command.collect();
            deployment.cluster.nodes.iter().for_each(|node| drop(run(node, &command)));
        };
        set(&acl(PREFIX, ScriptCalls::Eval).expect("a prefix"));
        // The other node is asked for a lock of this slot that has no record yet.
        let (_, slot, from) = deployment.place("moved");
        deployment.cluster.begin_to_move(slot, from, (from + 1) % 3).expect("a slot");
        let url = format!("redis+cluster://locks:pass-word@{}/?timeout={LONG}", deployment.cluster.nodes[0].addr());
        let works = async || {
            let client = LockClient::builder(RedisBackend::connect(&url).await?).wait(SOON).ttl(TTL).build()?;
            client.lock("moved").acquire().await?.release().await
        };
        works().await.expect("the permissions are enough");
        for command in ["cluster|myid", "cluster|info", "cluster|slots", "asking"] {
            set(&format!("-{command}"));
            let error = works().await.expect_err(command);
            assert_eq!(error.kind(), ErrorKind::Auth, "{command}: {error:?}");
            assert!(!error.to_string().contains("pass-word"), "{error}");
            set(&format!("+{command}"));
        }
    });
}

/// A fenced script fails after it has written, with a text that looks like a refusal. It is not sent again.
#[test]
fn a_fenced_script_that_fails_runs_once() {
    case(async |deployment| {
        let backend = Arc::new(deployment.backend(PATIENT).await);
        let client = LockClient::builder(backend.clone()).wait(SOON).ttl(TTL).build().expect("a client");
        let guard = hold(&client, "account").await;
        let fence = backend.fence(&guard);
        let script = FencedScript::new(
            "redis.call('INCR', KEYS[1]) redis.call('XGROUP', 'CREATE', KEYS[2], 'group', '$', 'MKSTREAM')",
        );
        let keys = [fence.key("count"), fence.key("stream")];
        fence.run(&script, &keys, &[""; 0]).await.expect("the group is new");
        // `BUSYGROUP Consumer Group name already exists`.
        let error = fence.run(&script, &keys, &[""; 0]).await.expect_err("the group exists");
        assert_eq!(error.kind(), ErrorKind::Indeterminate, "{error:?}");
        let (.., node) = deployment.place("account");
        assert_eq!(run(&deployment.cluster.nodes[node], &["GET", &keys[0]]).text(), "2", "each has run once");
    });
}

/// A fenced write goes to the node of its lock. It is refused, and not done by half, while some of its keys are at
/// another node.
#[test]
fn a_fenced_write_follows_its_lock() {
    case(async |deployment| {
        let backend = Arc::new(deployment.backend(PATIENT).await);
        let client = LockClient::builder(backend.clone()).wait(SOON).ttl(TTL).build().expect("a client");
        let guard = hold(&client, "account").await;
        let fence = backend.fence(&guard);
        let pay_in = FencedScript::new("return redis.call('INCRBY', KEYS[1], ARGV[1])");
        let keys = [fence.key("balance")];
        assert_eq!(fence.run(&pay_in, &keys, &["20"]).await.expect("it runs"), redis::Value::Int(20));
        let (key, slot, from) = deployment.place("account");
        let (to, cluster) = ((from + 1) % 3, &deployment.cluster);
        cluster.begin_to_move(slot, from, to).expect("a slot");
        assert_eq!(fence.run(&pay_in, &keys, &["1"]).await.expect("no key has moved"), redis::Value::Int(21));
        cluster.move_key(key.as_bytes(), from, to).expect("the key is there");
        // The keys are at two nodes.
        let error = refused(async || fence.run(&pay_in, &keys, &["1"]).await).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert_eq!(run(&cluster.nodes[from], &["GET", &keys[0]]).text(), "21", "nothing was written");
        cluster.move_key(keys[0].as_bytes(), from, to).expect("the key is there");
        cluster.end_the_move(slot, from, to).expect("a slot");
        assert_eq!(fence.run(&pay_in, &keys, &["1"]).await.expect("all keys have moved"), redis::Value::Int(22));
        guard.release().await.expect("a release");
        let error = fence_of(&backend, &client).await;
        assert_eq!(error, ErrorKind::Lost);
    });
}

/// The error of a fenced write under a lease that was broken.
async fn fence_of(backend: &RedisBackend, client: &LockClient) -> ErrorKind {
    let guard = hold(client, "account").await;
    let fence = backend.fence(&guard);
    let admin = backend.admin().expect("it has one");
    admin.break_lock(&name("account"), guard.fencing_token()).await.expect("it is broken");
    let write = FencedScript::new("return redis.call('INCR', KEYS[1])");
    fence.run(&write, &[fence.key("balance")], &[""; 0]).await.expect_err("its lease was broken").kind()
}
