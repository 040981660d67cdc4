//! A user without write permission.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use crate::process::{Running, id_of, leasehold, outcome, outcome_of, output};
use crate::store::Store;

const HOLDS: [&str; 6] = ["run", "x", "--", "sh", "-c", "echo $$ > id; read line < gate"];

#[test]
fn a_user_of_redis_with_read_commands_sees_the_holder() {
    let store = Store::redis();
    let gate = store.gate();
    let run = Running::start(&store, &HOLDS);
    id_of(&store.file("id"));
    let url = store.user(&outcome(&store, &["acl", "redis", "--read-only"]).1);
    let outcome = |args: &[&str]| outcome_of(&output(leasehold(&store, args).env("LEASEHOLD_STORE", &url)));
    let (code, stdout, stderr) = outcome(&["status", "x", "--exit-code"]);
    assert_eq!((code, &*stderr), (0, ""));
    assert!(stdout.contains("state    held"), "{stdout}");
    let (code, _, stderr) = outcome(&["run", "y", "--", "true"]);
    assert!(code == 123 && stderr.contains("`leasehold acl redis`"), "{stderr}");
    gate.open();
    run.end();
}

/// The command prints the tables, and what its users need.
#[test]
fn users_of_mysql_may_do_what_the_printed_grants_say() {
    let print = |args: &[&str]| {
        let (code, text, stderr) = outcome(&Store::any(), args);
        assert_eq!((code, &*stderr), (0, ""));
        text
    };
    let acl = ["acl", "mysql", "--database", "locks", "--user"];
    for store in Store::empty_mysql() {
        let (code, _, stderr) = outcome(&store, &["run", "x", "--", "true"]);
        assert!(code == 123 && stderr.contains("`leasehold acl mysql`"), "{code}: {stderr}");
        store.administer("GRANT ALL ON locks.* TO 'locker'@'%'");
        let (code, _, stderr) = outcome(&store, &["run", "x", "--", "true"]);
        assert!(code == 123 && stderr.contains("`leasehold schema mysql`"), "{code}: {stderr}");
        store.administer(&format!("USE locks; {}", print(&["schema", "mysql"])));
        store.administer("REVOKE ALL ON locks.* FROM 'locker'@'%'");
        store.administer(&print(&[&acl[..], &["'locker'@'%'"]].concat()));

        let gate = store.gate();
        let run = Running::start(&store, &HOLDS);
        id_of(&store.file("id"));
        store.administer("CREATE USER 'reader'@'%' IDENTIFIED BY 'hunter2'");
        store.administer(&print(&[&acl[..], &["'reader'@'%'", "--read-only"]].concat()));
        let url = store.url().replace("locker", "reader");
        let outcome = |args: &[&str]| outcome_of(&output(leasehold(&store, args).env("LEASEHOLD_STORE", &url)));
        for (args, shown) in [(["status", "x"], "state    held"), (["ls", "--all"], "x: held by ")] {
            let (code, stdout, stderr) = outcome(&args);
            assert_eq!((code, &*stderr), (0, ""));
            assert!(stdout.contains(shown) && stdout.contains(&run.id().to_string()), "{stdout}");
        }
        let (_, stdout, _) = outcome(&["status", "x", "--json"]);
        // Only a user who may see the connections of others knows who waits.
        assert!(stdout.contains(r#""waiters":null"#), "{stdout}");
        for args in [&["run", "y", "--", "true"][..], &["break", "x", "--yes"]] {
            let (code, _, stderr) = outcome(args);
            assert!(code == 123 && stderr.contains("permission"), "{args:?}: {code}: {stderr}");
        }
        gate.open();
        assert_eq!(run.end().0, 0);
    }
}

/// The command as a user without write permission for the SQLite file. Root could write everything.
struct FileReader<'a> {
    store: &'a Store,
    program: PathBuf,
}

impl<'a> FileReader<'a> {
    fn new(store: &'a Store) -> Self {
        let program = store.file("leasehold");
        std::fs::copy(env!("CARGO_BIN_EXE_leasehold"), &program).unwrap();
        Self { store, program }
    }

    fn outcome(&self, args: &[&str]) -> (i32, String, String) {
        let is_root = rustix::process::geteuid().is_root();
        let mut command = Command::new(if is_root { "setpriv" } else { "env" });
        if is_root {
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
        }
        command.arg(&self.program).args(args).env("LEASEHOLD_STORE", self.store.url()).current_dir("/");
        outcome_of(&output(&mut command))
    }

    /// The files of the store, with their permissions and owners.
    fn files(&self) -> Vec<(PathBuf, u32, u32)> {
        use std::os::unix::fs::MetadataExt;
        let found = std::fs::read_dir(self.store.folder()).unwrap().map(|entry| entry.unwrap().path());
        let mut found: Vec<_> = found.filter(|path| path.to_str().unwrap().contains("locks.db")).collect();
        found.sort();
        let described = found.into_iter().map(|path| std::fs::metadata(&path).map(|is| (path, is.mode(), is.uid())));
        described.collect::<Result<_, _>>().unwrap()
    }

    /// Checks that `status` and `ls` show this, that `run` is refused, and that no file is created in a folder with
    /// these permissions.
    #[track_caller]
    fn sees(&self, held: bool, what: &str, folder: u32) {
        for (path, ..) in self.files() {
            set_permissions(path, Permissions::from_mode(0o444)).unwrap();
        }
        set_permissions(self.store.folder(), Permissions::from_mode(folder)).unwrap();
        let before = self.files();
        for command in [&["status", "x", "--json"][..], &["ls", "--all", "--json"]] {
            let (code, stdout, stderr) = self.outcome(command);
            assert_eq!((code, &*stderr), (0, ""), "{what}, {folder:o}: {command:?}");
            let shown = format!(r#""name":"x","held":{held}"#);
            assert!(stdout.contains(&shown), "{what}, {folder:o}: {command:?} says {stdout}");
            assert!(!stdout.contains(r#""last_token":null"#), "{what}, {folder:o}: {command:?} says {stdout}");
        }
        let (code, _, stderr) = self.outcome(&["run", "y", "--wait", "30s", "--", "true"]);
        assert!(code == 123 && stderr.contains("may not be written"), "{what}, {folder:o}: {code}, {stderr}");
        assert_eq!(self.files(), before, "{what}, {folder:o}: a reader made, removed or changed files");
        set_permissions(self.store.folder(), Permissions::from_mode(0o755)).unwrap();
        for (path, ..) in before {
            set_permissions(path, Permissions::from_mode(0o644)).unwrap();
        }
    }
}

#[test]
fn a_user_who_can_only_read_the_file_sees_the_holder() {
    let store = Store::sqlite();
    let reader = FileReader::new(&store);
    for folder in [0o555, 0o777] {
        assert_eq!(outcome(&store, &["run", "x", "--", "true"]).0, 0);
        store.close_file();
        reader.sees(false, "nobody has the file open", folder);
        let gate = store.gate();
        let run = Running::start(&store, &HOLDS);
        id_of(&store.file("id"));
        reader.sees(true, "a holder has the file open", folder);
        gate.open();
        assert_eq!(run.end().0, 0);
        reader.sees(false, "the holder has ended", folder);
        std::fs::remove_file(store.file("id")).unwrap();
        let mut run = Running::start(&store, &HOLDS);
        id_of(&store.file("id"));
        run.kill();
        assert!(store.file("locks.db-wal").exists());
        reader.sees(true, "the holder was killed", folder);
        assert_eq!(outcome(&store, &["break", "x", "--yes"]).0, 0);
        std::fs::remove_file(store.file("id")).unwrap();
        std::fs::remove_file(store.file("gate")).unwrap();
    }
    // No process has the file open, and the user cannot create the files beside it.
    store.close_file();
    set_permissions(store.file("locks.db"), Permissions::from_mode(0o666)).unwrap();
    set_permissions(store.folder(), Permissions::from_mode(0o555)).unwrap();
    let (code, stdout, stderr) = reader.outcome(&["status", "x"]);
    assert!(code == 0 && stdout.contains("of the last grant"), "{stdout}{stderr}");
    let (code, _, stderr) = reader.outcome(&["run", "y", "--wait", "30s", "--", "true"]);
    assert!(code == 123 && stderr.contains("permissions and those of its folder"), "{code}, {stderr}");
    // The state after a process was killed while it closed the file.
    std::fs::write(store.file("locks.db-wal"), "").unwrap();
    let (code, _, stderr) = reader.outcome(&["status", "x"]);
    assert!(code == 122 && stderr.contains("as a user who may write to the folder"), "{code}, {stderr}");
    set_permissions(store.folder(), Permissions::from_mode(0o755)).unwrap();
}

/// SQLite deletes the `-shm` before the `-wal` when the last connection is closed. A user without write permission
/// cannot read a `-wal` alone.
#[test]
fn a_command_does_not_exit_while_it_closes_the_file() {
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let store = Store::sqlite();
                for _ in 0..50 {
                    assert_eq!(outcome(&store, &["run", "x", "--", "true"]).0, 0);
                    assert!(store.file("locks.db-wal").exists() && store.file("locks.db-shm").exists());
                }
            });
        }
    });
}
