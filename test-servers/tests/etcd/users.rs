//! Users and their roles.

use std::time::Duration;

use leasehold_conformance::Data;
use leasehold_test_servers::{EtcdAccess, EtcdKeys, EtcdServer, EtcdSettings};

use super::stored::{base64, request};
use super::support::wait_until;

const PASSWORD: &str = "pass-word";

fn log_in(server: &EtcdServer, user: &str) -> Option<String> {
    let body = format!(r#"{{"name":"{user}","password":"{PASSWORD}"}}"#);
    let reply = request(server, "auth/authenticate", None, &body);
    let (_, token) = reply.split_once(r#""token":""#)?;
    token.split_once('"').map(|(token, _)| token.to_owned())
}

fn may_write(server: &EtcdServer, token: Option<&str>, key: &str) -> Result<(), String> {
    let body = format!(r#"{{"key":"{}"}}"#, base64(key));
    let reply = request(server, "kv/put", token, &body);
    if reply.contains("revision") { Ok(()) } else { Err(reply) }
}

fn may_read(server: &EtcdServer, token: Option<&str>, key: &str) -> Result<(), String> {
    let body = format!(r#"{{"key":"{}"}}"#, base64(key));
    let reply = request(server, "kv/range", token, &body);
    if reply.contains("revision") { Ok(()) } else { Err(reply) }
}

fn guarded(server: &EtcdServer) {
    server.side().enable_users().unwrap();
    let permissions = [
        (EtcdAccess::ReadWrite, EtcdKeys::with_prefix("locks/")),
        (EtcdAccess::Read, EtcdKeys::One(b"read".to_vec())),
        (EtcdAccess::Write, EtcdKeys::Range(b"w0".to_vec(), b"w5".to_vec())),
    ];
    server.side().set_user("locker", PASSWORD, &permissions).unwrap();
}

#[test]
fn a_user_has_the_permissions_of_its_role_and_no_others() {
    let server = EtcdSettings::new().start().unwrap();
    may_write(&server, None, "other").unwrap();
    guarded(&server);
    assert!(may_write(&server, None, "locks/a").unwrap_err().contains("user name is empty"));
    let token = log_in(&server, "locker").unwrap();
    let token = Some(&*token);
    may_write(&server, token, "locks/a").unwrap();
    may_read(&server, token, "locks/a").unwrap();
    may_read(&server, token, "read").unwrap();
    may_write(&server, token, "w4").unwrap();
    for refused in [
        may_write(&server, token, "other"),
        may_read(&server, token, "other"),
        may_write(&server, token, "read"),
        may_read(&server, token, "w4"),
        may_write(&server, token, "w5"),
    ] {
        assert!(refused.as_ref().unwrap_err().contains("permission denied"), "{refused:?}");
    }
    // The test may do everything.
    server.side().put("other", "", 0).unwrap();
}

#[test]
fn a_deleted_user_is_refused_and_can_return() {
    let server = EtcdSettings::new().start().unwrap();
    guarded(&server);
    let token = log_in(&server, "locker").unwrap();
    server.side().delete_user("locker").unwrap();
    server.side().delete_user("locker").unwrap();
    assert!(may_write(&server, Some(&token), "locks/a").unwrap_err().contains("invalid auth token"));
    assert_eq!(log_in(&server, "locker"), None);
    guarded_again(&server);
    may_write(&server, log_in(&server, "locker").as_deref(), "locks/a").unwrap();
}

fn guarded_again(server: &EtcdServer) {
    let permissions = [(EtcdAccess::ReadWrite, EtcdKeys::with_prefix("locks/"))];
    server.side().set_user("locker", PASSWORD, &permissions).unwrap();
}

#[test]
fn users_survive_a_restart_with_data_and_end_with_the_data() {
    let mut server = EtcdSettings::new().start().unwrap();
    guarded(&server);
    server.side().put("other", "", 0).unwrap();
    server.kill().unwrap();
    server.start_again(Data::Kept).unwrap();
    assert!(may_write(&server, None, "locks/a").is_err());
    server.side().put("other", "", 0).unwrap();
    assert!(log_in(&server, "locker").is_some());
    server.kill().unwrap();
    server.start_again(Data::Lost).unwrap();
    may_write(&server, None, "other").unwrap();
    server.side().put("other", "", 0).unwrap();
}

#[test]
fn the_test_logs_in_again_when_its_token_has_expired() {
    let server = EtcdSettings::new().option("auth-token-ttl=1").start().unwrap();
    guarded(&server);
    let token = log_in(&server, "locker").unwrap();
    server.side().put("other", "", 0).unwrap();
    wait_until(Duration::from_secs(10), || {
        std::thread::sleep(Duration::from_secs(2));
        may_write(&server, Some(&token), "locks/a").is_err()
    });
    server.side().put("other", "", 0).unwrap();
}
