//! A user who may read the store and not write it.

use crate::process::{Running, id_of, leasehold, output, tell, told};
use crate::store::Store;

const HOLDS: [&str; 6] = ["run", "x", "--", "sh", "-c", "echo $$ > id; read line < gate"];

#[test]
fn a_user_of_redis_with_read_commands_sees_the_holder() {
    let store = Store::redis();
    let gate = store.gate();
    let run = Running::start(&store, &HOLDS);
    id_of(&store.file("id"));
    let url = store.user(&tell(&store, &["acl", "redis", "--read-only"]).1);
    let tell = |args: &[&str]| told(&output(leasehold(&store, args).env("LEASEHOLD_STORE", &url)));
    let (code, stdout, stderr) = tell(&["status", "x", "--exit-code"]);
    assert_eq!((code, &*stderr), (0, ""));
    assert!(stdout.contains("state    held"), "{stdout}");
    let (code, _, stderr) = tell(&["run", "y", "--", "true"]);
    assert!(code == 123 && stderr.contains("`leasehold acl redis`"), "{stderr}");
    gate.open();
    run.end();
}
