//! Users of Sentinels, and URLs that cannot work.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold::redis::RedisBackend;
use leasehold_core::{Error, ErrorKind, LockClient};
use leasehold_test_servers::RedisSettings;

use super::common::hold;
use super::deployment::{Deployment, NAME, case, client, run};

const TTL: Duration = Duration::from_secs(3);

/// What a client may do at a Sentinel. The README has the same rules.
const RULES: &str =
    "resetchannels &+switch-master nocommands +sentinel|get-master-addr-by-name +sentinel|myid +subscribe";

async fn refused(url: &str) -> Error {
    RedisBackend::connect(url).await.err().unwrap_or_else(|| panic!("{url} is accepted"))
}

fn text(error: &Error) -> String {
    format!("{error} {error:?}")
}

#[test]
fn sentinels_have_users_of_their_own() {
    leasehold_conformance::run(leasehold_conformance::DEADLINE, || async {
        let user = format!("user watcher on >hunter2 {RULES}");
        let deployment = Deployment::start(0, &["requirepass boss", &user]).await;
        // A name with several addresses.
        let hosts: Vec<_> = deployment.addrs().iter().map(|addr| format!("localhost:{}", addr.port())).collect();
        let url = format!("redis+sentinel://{}/{NAME}?timeout=2s&", hosts.join(","));
        let client = client(&format!("{url}sentinel_user=watcher&sentinel_password=hunter2"), TTL).await;
        let guard = hold(&client, "x").await;
        tokio::time::sleep(TTL).await;
        assert!(guard.is_held(), "it is renewed");
        for sentinel in &deployment.sentinels {
            let clients = run(sentinel, &["CLIENT", "LIST"]).text();
            let is_subscribed = |line: &str| line.contains("user=watcher") && line.contains(" sub=1 ");
            assert!(clients.lines().any(is_subscribed), "{clients}");
        }
        guard.release().await.expect("a release");
        for (more, hint) in [
            ("", "`sentinel_user` and `sentinel_password` in the URL"),
            ("sentinel_user=watcher&sentinel_password=hunter22", "refused the user or the password"),
            ("sentinel_user=nobody&sentinel_password=hunter2", "refused the user or the password"),
        ] {
            let error = refused(&format!("{url}{more}")).await;
            assert_eq!(error.kind(), ErrorKind::Auth, "{more}: {error}");
            assert!(error.to_string().contains(hint) && !text(&error).contains("hunter2"), "{}", text(&error));
        }
        let backend = RedisBackend::connect(&format!("{url}sentinel_password=boss")).await.expect("the default user");
        assert!(!format!("{backend:?}").contains("boss"), "{backend:?}");
    });
}

#[test]
fn an_error_says_what_is_wrong_with_a_url() {
    case(0, async |deployment| {
        let (sentinels, server) = (deployment.addrs(), deployment.servers[0].addr());
        let with = |sentinels: &[SocketAddr]| deployment.url_of(sentinels, "timeout=2s");

        let error = refused(&with(&sentinels).replace(NAME, "another")).await;
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        for sentinel in &sentinels {
            assert!(error.to_string().contains(&format!("{sentinel}: does not know `another`")), "{error}");
        }

        let error = refused(&with(&[server])).await;
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let hint = format!("{server} is a Redis server and no Sentinel: its own URL is redis://{server}");
        assert!(error.to_string().contains(&hint), "{error}");

        let error = refused(&format!("redis://{}", sentinels[0])).await;
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(&format!("redis+sentinel://{}/{NAME}", sentinels[0])), "{error}");

        // The same Sentinel under two names counts once.
        let one = sentinels[0];
        let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
        let twice = with(&[one, nobody]).replace("127.0.0.1:1/", &format!("127.0.0.1:1,localhost:{}/", one.port()));
        let error = refused(&twice).await;
        assert!(error.to_string().contains("are the same one"), "{error}");
    });
}

#[test]
fn a_node_of_a_cluster_is_refused() {
    leasehold_conformance::run(leasehold_conformance::DEADLINE, || async {
        let node = RedisSettings::new().line("cluster-enabled yes").start().unwrap_or_else(|error| panic!("{error}"));
        run(&node, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        let begin = std::time::Instant::now();
        loop {
            let error = refused(&node.url()).await;
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("`redis+cluster://`"), "{error}");
            // A fresh node says that its cluster is down.
            if error.to_string().contains(&node.addr().to_string()) {
                return;
            }
            assert!(begin.elapsed() < super::common::SOON, "{error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
}

/// `doctor` shows what each Sentinel says.
#[test]
fn an_examination_shows_the_sentinels() {
    case(0, async |mut deployment| {
        let found = async |client: &LockClient| {
            let checks = client.examine().await.expect("an examination");
            let check = checks.into_iter().find(|check| check.about == "sentinels").expect("a line about Sentinels");
            (check.found, check.status)
        };
        let client = deployment.client(TTL).await;
        let server = deployment.servers[0].addr();
        let (all, status) = found(&client).await;
        assert!(all == format!("3 of 3 name {server}") && status == leasehold_core::admin::CheckStatus::Ok, "{all}");
        deployment.sentinels[1].kill().expect("it runs");
        let (some, status) = found(&client).await;
        assert!(some.starts_with(&format!("2 of 3 name {server}; {}", deployment.addrs()[1])), "{some}");
        assert!(matches!(status, leasehold_core::admin::CheckStatus::Warning(_)), "{status:?}");
        let few = super::deployment::client(&deployment.url_of(&deployment.addrs()[..1], "timeout=1s"), TTL).await;
        let (one, status) = found(&few).await;
        assert_eq!(one, format!("1 of 1 name {server}"));
        assert!(format!("{status:?}").contains("names 1 of 3 Sentinels"), "{status:?}");
    });
}
