//! The permissions that `leasehold acl zk` prints.

use leasehold::zk::acl;
use leasehold_conformance::{DEADLINE, run};
use leasehold_core::ErrorKind;
use leasehold_test_servers::{ZooKeeperSettings, percent_encoded};

/// `zkCli.sh` runs the commands as they are printed. The user then locks below the root, and nobody else does.
#[test]
fn zk_cli_sets_the_permissions_that_are_printed() {
    run(DEADLINE, || async {
        let server = ZooKeeperSettings::new().start().unwrap_or_else(|error| panic!("{error}"));
        let all = [("a b", "an n"), ("it's/c d", "o'hara"), ("q\"x y", "\"ann"), ("a\"b'c", "'bob")];
        let commands: String = all.map(|(root, user)| acl(root, user).expect("zkCli.sh reads it")).concat();
        let output = server.run_cli(&commands).expect("it runs");
        for (root, user) in all {
            let path = root.split('/').map(percent_encoded).collect::<Vec<_>>().join("/");
            let locks = async |login: &str| {
                let url = format!("zk://{login}{}/{path}?tick=100ms", server.addr());
                let guard = leasehold::connect(&url).await?.lock("job").try_acquire().await?;
                guard.expect("it is free").release().await
            };
            if let Err(error) = locks(&format!("{}:PASSWORD@", percent_encoded(user))).await {
                panic!("{user} may not lock below {root}: {error}\n{output:?}");
            }
            let refused = locks("").await.expect_err("anyone may lock");
            assert_eq!(refused.kind(), ErrorKind::Auth, "{root}: {refused}");
        }
    });
}
