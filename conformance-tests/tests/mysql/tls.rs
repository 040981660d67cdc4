//! TLS to a real server, with a private authority and a client's certificate.

use std::path::Path;
use std::time::Duration;

use leasehold::ErrorKind;
use leasehold_test_servers::{MySqlServer, MySqlSettings, certificates};

use super::set_up::set_up;
use super::support::{eventually, hold, own_servers};
use super::wrong_tls::ends_a_wait;

/// A server with the certificates of this folder.
fn secure(folder: &Path) -> MySqlServer {
    let file = |name: &str| folder.join(name).display().to_string();
    let settings = MySqlSettings::new().option(format!("ssl-ca={}", file("ca.pem")));
    let settings =
        settings.option(format!("ssl-cert={}", file("own.pem"))).option(format!("ssl-key={}", file("own.key")));
    let server = settings.start().unwrap_or_else(|error| panic!("{error}"));
    set_up(&server);
    server
}

#[test]
fn a_lock_over_tls() {
    own_servers(|| async {
        let folder = tempfile::tempdir().expect("a temporary folder");
        certificates(folder.path()).unwrap_or_else(|error| panic!("{error}"));
        let file = |name: &str| folder.path().join(name).display().to_string();
        let (ca, cert, key) = (file("ca.pem"), file("own.pem"), file("own.key"));
        let server = secure(folder.path());
        let connect = async |user: &str, more: &str| {
            let port = server.addr().port();
            leasehold::connect(&format!("mysql://{user}:pass-word@localhost:{port}/locks?{more}")).await
        };
        let locks = async |user: &str, more: &str| {
            let client = connect(user, more).await.unwrap_or_else(|error| panic!("{user} {more}: {error:?}"));
            client.lock("job").acquire().await.expect("a lock").release().await.expect("a release");
            client.shutdown().await.expect("an end");
        };
        let (unencrypted, own) = ("tls=off", format!("ca={ca}&cert={cert}&key={key}"));

        // The user of the suite needs no TLS.
        for more in [unencrypted, "tls=unverified", &format!("ca={ca}"), &own] {
            locks("locker", more).await;
        }

        server.query("ALTER USER 'locker'@'%' REQUIRE SSL").expect("it is altered");
        locks("locker", &format!("ca={ca}")).await;
        // Over loopback, a client uses the TLS that a server offers.
        locks("locker", "").await;
        let plain = connect("locker", unencrypted).await.expect_err("the user needs TLS");
        assert_eq!(plain.kind(), ErrorKind::Auth, "{plain:?}");

        server.query("ALTER USER 'locker'@'%' REQUIRE X509").expect("it is altered");
        locks("locker", &own).await;
        let anonymous = connect("locker", &format!("ca={ca}")).await.expect_err("the user needs a certificate");
        assert_eq!(anonymous.kind(), ErrorKind::Auth, "{anonymous:?}");

        let missing = connect("locker", "ca=nowhere.pem").await.expect_err("there is no such file");
        assert!(missing.kind() == ErrorKind::InvalidInput && missing.to_string().contains("nowhere.pem"), "{missing}");
    });
}

/// Each row ends a wait, with both strategies: waiting cures none of it.
#[test]
fn wrong_tls_ends_a_wait() {
    own_servers(|| async {
        let [folder, others] = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
        for folder in [&folder, &others] {
            certificates(folder.path()).unwrap_or_else(|error| panic!("{error}"));
        }
        let file = |name: &str| folder.path().join(name).display().to_string();
        let other = |name: &str| others.path().join(name).display().to_string();
        let (ca, secure) = (file("ca.pem"), secure(folder.path()));
        let plain = MySqlSettings::new().option("skip-ssl").start().unwrap_or_else(|error| panic!("{error}"));
        set_up(&plain);
        secure.query("CREATE USER 'sure'@'%' IDENTIFIED BY 'pass-word' REQUIRE SSL").expect("it is created");
        secure.query("CREATE USER 'known'@'%' IDENTIFIED BY 'pass-word' REQUIRE X509").expect("it is created");
        let (tls, plain) = (secure.addr().port(), plain.addr().port());
        let other_files = format!("cert={}&key={}", other("own.pem"), other("own.key"));
        for (at, parameters, kind, advice) in [
            (format!("locker:pass-word@localhost:{plain}"), format!("ca={ca}"), ErrorKind::Unsupported, "`tls=off`"),
            (format!("sure:pass-word@localhost:{tls}"), "tls=off".to_owned(), ErrorKind::Auth, "`tls=verify`"),
            // An authority that is not one of the world's, and one that has the same name.
            (format!("locker:pass-word@localhost:{tls}"), "tls=verify".to_owned(), ErrorKind::Unsupported, "`ca=`"),
            (
                format!("locker:pass-word@localhost:{tls}"),
                format!("ca={}", other("ca.pem")),
                ErrorKind::Unsupported,
                "`ca=`",
            ),
            (format!("locker:pass-word@127.0.0.1:{tls}"), format!("ca={ca}"), ErrorKind::Unsupported, "host name"),
            (format!("known:pass-word@localhost:{tls}"), format!("ca={ca}"), ErrorKind::Auth, "`cert=`"),
            (format!("known:pass-word@localhost:{tls}"), format!("ca={ca}&{other_files}"), ErrorKind::Auth, "`cert=`"),
        ] {
            for strategy in ["row", "for-update"] {
                let url = format!("mysql://{at}/locks?timeout=5s&{parameters}&strategy={strategy}");
                ends_a_wait(&url, kind, advice).await;
            }
        }
    });
}

/// The authority, the server's and the client's certificate are replaced at their paths: a new connection reads them
/// again, and the lease goes on.
#[test]
fn rotated_certificates_are_read_for_the_next_connection() {
    own_servers(|| async {
        let folder = tempfile::tempdir().expect("a temporary folder");
        certificates(folder.path()).unwrap_or_else(|error| panic!("{error}"));
        let file = |name: &str| folder.path().join(name).display().to_string();
        let (ca, cert, key) = (file("ca.pem"), file("own.pem"), file("own.key"));
        let server = secure(folder.path());
        server.query("ALTER USER 'locker'@'%' REQUIRE X509").expect("it is altered");
        let files = format!("timeout=5s&ca={ca}&cert={cert}&key={key}");
        let url = format!("mysql://locker:pass-word@localhost:{}/locks?{files}", server.addr().port());
        let client = leasehold::connect(&url).await.expect("a client");
        let guard = client.lock("held").ttl(Duration::from_secs(15)).acquire().await.expect("free");
        for _ in 0..2 {
            certificates(folder.path()).unwrap_or_else(|error| panic!("{error}"));
            server.query("FLUSH SSL").expect("a rotation");
            let renewed = client.stats().renewed;
            server.query("KILL USER locker").expect("its connections are ended");
            hold(&client, "other").await.release().await.expect("a release");
            eventually("the lease is renewed", || client.stats().renewed > renewed).await;
        }
        assert!(guard.is_held());
        guard.release().await.expect("a release");
    });
}
