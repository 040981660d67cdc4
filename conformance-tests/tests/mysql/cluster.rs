//! A node of a Galera cluster.

use leasehold_conformance::Route;
use leasehold_core::ErrorKind;
use leasehold_core::admin::CheckStatus;
use leasehold_core::backend::TtlScope;
use leasehold_test_servers::MySqlSettings;

use super::strategy::MySqlFixture;
use super::support::{SOON, client, hold, own_servers};

/// The nodes share rows and not their locks, so only a lease that is a row can be on one of them.
#[test]
fn a_node_of_a_cluster_is_detected() {
    own_servers(|| async {
        let node = MySqlSettings::new().option("wsrep-on=ON").option("binlog-format=ROW");
        let fixture = MySqlFixture::with_settings(node);
        let ann = client(&fixture, SOON).await;
        let is_connection = ann.capabilities().ttl_scope == TtlScope::Connection;
        match is_connection {
            false => hold(&ann, "job").await.release().await.expect("a release"),
            true => {
                let refused = ann.lock("job").acquire().await.expect_err("a lease would be that of one node");
                assert_eq!(refused.kind(), ErrorKind::Unsupported);
                assert!(refused.to_string().contains("`strategy=row`"), "{refused}");
            }
        }
        let operator = leasehold::connect(&fixture.url(Route::Clear, "")).await.expect("a client");
        let checks = operator.examine().await.expect("checks");
        let check = checks.iter().find(|check| check.about == "cluster").expect("it is checked");
        assert_eq!(check.found, "Galera");
        assert_eq!(matches!(check.status, CheckStatus::Error(_)), is_connection, "{check:?}");
        assert!(!matches!(check.status, CheckStatus::Ok), "{check:?}");
    });
}
