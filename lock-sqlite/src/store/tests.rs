//! The rules of a lease, with clock readings that the tests choose.

use std::sync::Arc;

use leasehold_core::HolderInfo;
use leasehold_core::backend::{AcquireRequest, OnContention, OwnerToken, PlaceNumber, RenewRequest};

use super::*;

/// Tables in which COMMIT, and no earlier statement, refuses a row of `child`.
pub(crate) const UNCOMMITTABLE: &str = "\
PRAGMA foreign_keys = on; CREATE TABLE parent (id INTEGER PRIMARY KEY); \
CREATE TABLE child (id INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)";

const TTL: Duration = Duration::from_secs(30);
const SECOND: i64 = 1_000_000;

/// The wall clock is 0 unless a test sets it, so tokens count up from there.
fn at(seconds: i64) -> Reading {
    Reading { boottime: seconds * SECOND, boot: 7, wall: 0 }
}

fn after_a_reboot(seconds: i64) -> Reading {
    Reading { boot: 8, ..at(seconds) }
}

struct File {
    store: Store,
    _folder: tempfile::TempDir,
}

impl File {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("locks.db")).unwrap();
        store.prepare().unwrap();
        Self { store, _folder: folder }
    }

    fn acquire(&self, claim: &Claim, now: &Reading) -> AcquiredRow {
        self.store.acquire(&request(claim), Attempt::First, now).unwrap()
    }

    fn tries(&self, claim: &Claim, now: &Reading) -> AcquiredRow {
        self.store.acquire(&request(claim).on_contention(OnContention::Fail), Attempt::First, now).unwrap()
    }

    fn retries(&self, claim: &Claim, now: &Reading) -> AcquiredRow {
        self.store.acquire(&request(claim), Attempt::Retry, now).unwrap()
    }

    fn renew(&self, claim: &Claim, ttl: Duration, policy: RenewPolicy, now: &Reading) -> bool {
        let mut request = RenewRequest::new(claim.clone(), PlaceNumber::NONE, ttl);
        request.policy = policy;
        self.store.renew(&request, now).unwrap()
    }

    fn release(&self, claim: &Claim, now: &Reading) -> ReleasedRow {
        self.store.release(claim, now).unwrap()
    }

    fn left(&self, now: &Reading) -> i64 {
        let until: i64 = self.column("until");
        (until - now.boottime) / SECOND
    }

    fn column<T: rusqlite::types::FromSql>(&self, column: &str) -> T {
        let sql = format!("SELECT {column} FROM leasehold_locks");
        self.store.connection().query_row(&sql, [], |row| row.get(0)).unwrap()
    }

    fn execute(&self, sql: &str) {
        self.store.connection().execute_batch(sql).unwrap();
    }
}

fn claim(owner: u8) -> Claim {
    claim_of("n", owner)
}

fn claim_of(name: &str, owner: u8) -> Claim {
    let holder = Arc::new(HolderInfo::of_this_process("test").unwrap());
    Claim::new(LockName::new(name).unwrap(), OwnerToken::from_bytes([owner; 16]), holder)
}

fn request(claim: &Claim) -> AcquireRequest {
    AcquireRequest::new(claim.clone(), TTL)
}

fn granted(token: u64) -> AcquiredRow {
    AcquiredRow::Granted(FencingToken::new(token))
}

fn held(seconds: u64) -> AcquiredRow {
    AcquiredRow::Held(Duration::from_secs(seconds))
}

#[test]
fn a_lock_goes_from_holder_to_holder_with_rising_tokens() {
    let (file, [a, b]) = (File::new(), [claim(1), claim(2)]);
    assert_eq!(file.acquire(&a, &at(100)), granted(0));
    assert_eq!(file.acquire(&b, &at(110)), held(20));
    assert_eq!(file.release(&b, &at(111)), ReleasedRow::NotHeld);
    // b waits, so it has to be notified.
    assert_eq!(file.release(&a, &at(112)), ReleasedRow::HasWaiters);
    assert_eq!(file.release(&a, &at(112)), ReleasedRow::NotHeld);
    assert_eq!(file.retries(&b, &at(112)), granted(1));
    // Nobody waits any more.
    assert_eq!(file.release(&b, &at(113)), ReleasedRow::NoWaiters);
    // A silent holder is taken over from at the end of its ttl, and not before.
    assert_eq!(file.acquire(&a, &at(113)), granted(2));
    assert_eq!(
        file.acquire(&b, &Reading { boottime: 143 * SECOND - 1, ..at(0) }),
        AcquiredRow::Held(Duration::from_micros(1))
    );
    assert_eq!(file.retries(&b, &at(143)), granted(3));
    assert_eq!(file.release(&a, &at(144)), ReleasedRow::NotHeld);
    assert_eq!(file.left(&at(144)), 29);
}

/// After a reboot a lease of the boot before is adopted, and lasts for a whole ttl. One that was released is not.
#[test]
fn a_released_lock_is_free_after_a_reboot() {
    for has_waiter in [false, true] {
        let (file, [a, b]) = (File::new(), [claim(1), claim(2)]);
        assert_eq!(file.acquire(&a, &at(100)), granted(0));
        if has_waiter {
            assert_eq!(file.acquire(&b, &at(101)), held(29));
        }
        assert_ne!(file.release(&a, &at(102)), ReleasedRow::NotHeld);
        assert_eq!(file.retries(&b, &after_a_reboot(5)), granted(1));
    }
}

#[test]
fn a_grant_has_the_token_of_its_own_row() {
    let (file, first, wall) = (File::new(), claim(1), 1_000_000);
    let now = Reading { wall, ..at(100) };
    assert_eq!(file.acquire(&first, &now), granted(1_000_000));
    file.release(&first, &now);
    assert_eq!(file.acquire(&claim(2), &now), granted(1_000_001));
    // Neither a refused claim nor the row of another lock affects the token of the next grant.
    assert_eq!(file.acquire(&claim(3), &now), held(30));
    let other = claim_of("o", 4);
    assert_eq!(file.acquire(&other, &Reading { wall: wall - 5, ..now }), granted(999_995));
    let tokens: String = file.column("group_concat(fence, ' ' ORDER BY name)");
    assert_eq!(tokens, "1000001 999995");
}

#[test]
fn a_repeated_acquire_returns_the_same_grant_and_never_shortens() {
    let (file, a) = (File::new(), claim(1));
    assert_eq!(file.acquire(&a, &at(100)), granted(0));
    assert_eq!(file.acquire(&a, &at(110)), granted(0));
    assert_eq!(file.left(&at(110)), 30);
    assert_eq!(
        file.store.acquire(&AcquireRequest::new(a.clone(), TTL / 10), Attempt::First, &at(111)).unwrap(),
        granted(0)
    );
    assert_eq!(file.left(&at(111)), 29);
    // It takes nothing away from waiters.
    file.acquire(&claim(2), &at(112));
    file.acquire(&a, &at(113));
    assert_eq!(file.release(&a, &at(114)), ReleasedRow::HasWaiters);
    // After the lease has ended, the same claim gets a new grant.
    assert_eq!(file.retries(&claim(2), &at(114)), granted(1));
    assert_eq!(file.acquire(&a, &at(144)), granted(2));
}

#[test]
fn a_renewal_creates_nothing_revives_nothing_and_shortens_only_on_request() {
    let (file, [a, b]) = (File::new(), [claim(1), claim(2)]);
    assert!(!file.renew(&a, TTL, RenewPolicy::AtLeast, &at(1)));
    file.acquire(&a, &at(1));
    assert!(!file.renew(&b, TTL, RenewPolicy::AtLeast, &at(2)));
    assert!(file.renew(&a, TTL / 10, RenewPolicy::AtLeast, &at(2)));
    assert_eq!(file.left(&at(2)), 29);
    assert!(file.renew(&a, TTL, RenewPolicy::AtLeast, &at(30)));
    assert_eq!(file.left(&at(30)), 30);
    assert!(file.renew(&a, TTL / 10, RenewPolicy::Exactly, &at(31)));
    assert_eq!(file.left(&at(31)), 3);
    assert!(!file.renew(&a, TTL, RenewPolicy::AtLeast, &at(34)));
    assert!(!file.renew(&a, TTL, RenewPolicy::AtLeast, &at(35)));
    assert_eq!(file.acquire(&b, &at(35)), granted(1));
}

#[test]
fn tokens_rise_by_the_wall_clock_and_never_fall_with_it() {
    let (file, a) = (File::new(), claim(1));
    let cycle = |now: &Reading| {
        let outcome = file.acquire(&a, now);
        file.release(&a, now);
        outcome
    };
    assert_eq!(cycle(&Reading { wall: 5_000, ..at(1) }), granted(5_000));
    assert_eq!(cycle(&Reading { wall: 4_000, ..at(2) }), granted(5_001));
    assert_eq!(cycle(&Reading { wall: 9_000, ..at(3) }), granted(9_000));
    // Without the row, the wall clock alone keeps the order.
    file.execute("DELETE FROM leasehold_locks");
    assert_eq!(cycle(&Reading { wall: 9_001, ..at(4) }), granted(9_001));
}

#[test]
fn a_step_of_the_wall_clock_ends_no_lease() {
    let (file, [a, b]) = (File::new(), [claim(1), claim(2)]);
    file.acquire(&a, &Reading { wall: 1_000_000, ..at(100) });
    for wall in [0, i64::MAX / 4] {
        let now = Reading { wall, ..at(110) };
        assert_eq!(file.acquire(&b, &now), held(20));
        assert!(file.renew(&a, Duration::from_secs(1), RenewPolicy::AtLeast, &now));
    }
}

#[test]
fn a_lease_of_another_boot_is_kept_for_one_ttl_and_then_taken_over() {
    let (file, [a, b, c]) = (File::new(), [claim(1), claim(2), claim(3)]);
    file.acquire(&a, &at(1_000_000));
    // The clock started over, so the old deadline means nothing.
    assert_eq!(file.acquire(&b, &after_a_reboot(5)), held(30));
    assert_eq!(file.left(&after_a_reboot(6)), 29);
    assert_eq!(file.retries(&b, &after_a_reboot(20)), held(15));
    assert_eq!(file.acquire(&c, &after_a_reboot(34)), held(1));
    assert_eq!(file.retries(&b, &after_a_reboot(35)), granted(1));
}

#[test]
fn a_holder_that_lives_on_in_another_boot_learns_of_it_before_the_takeover() {
    let (file, [a, b]) = (File::new(), [claim(1), claim(2)]);
    file.acquire(&a, &at(100));
    // Two kernels, or two time namespaces, share the file. They must not, but even then no two claims hold the lock.
    assert_eq!(file.acquire(&b, &after_a_reboot(5_000)), held(30));
    assert!(!file.renew(&a, TTL, RenewPolicy::AtLeast, &at(110)), "the holder learns of it within a third of its ttl");
    assert_eq!(file.release(&a, &at(110)), ReleasedRow::NotHeld);
    assert_eq!(file.retries(&b, &after_a_reboot(5_029)), held(1));
}

#[test]
fn a_free_lock_of_another_boot_is_free() {
    let (file, [a, b]) = (File::new(), [claim(1), claim(2)]);
    file.acquire(&a, &at(1_000_000));
    file.acquire(&b, &at(1_000_000));
    file.release(&a, &at(1_000_001));
    assert_eq!(file.acquire(&claim(3), &after_a_reboot(5)), granted(1), "waiters from before the reboot are gone");
}

#[test]
fn a_lock_that_became_free_is_reserved_for_waiters() {
    let (file, [a, b, c]) = (File::new(), [claim(1), claim(2), claim(3)]);
    let soon = |micros: i64| Reading { boottime: 110 * SECOND + micros, ..at(0) };
    file.acquire(&a, &at(100));
    file.acquire(&b, &at(105));
    file.release(&a, &soon(0));
    // A client that released the lock and acquires it again at once is not first.
    assert_eq!(file.acquire(&c, &soon(4_000)), AcquiredRow::Reserved(Duration::from_millis(6)));
    assert_eq!(file.retries(&b, &soon(5_000)), granted(1));
    // Nobody waits, so there is no delay.
    assert_eq!(file.release(&b, &soon(6_000)), ReleasedRow::NoWaiters);
    assert_eq!(file.acquire(&a, &soon(6_000)), granted(2));
    // The waiter is gone. This delays one newcomer once.
    file.acquire(&b, &soon(7_000));
    file.release(&a, &soon(8_000));
    assert_eq!(file.acquire(&c, &soon(17_999)), AcquiredRow::Reserved(Duration::from_micros(1)));
    assert_eq!(file.acquire(&c, &soon(18_000)), granted(3));
    file.release(&c, &soon(18_001));
    assert_eq!(file.acquire(&c, &soon(18_002)), granted(4));
}

#[test]
fn a_claim_that_does_not_wait_is_neither_delayed_nor_recorded() {
    let (file, [a, b]) = (File::new(), [claim(1), claim(2)]);
    let visitor = claim(3);
    file.acquire(&a, &at(100));
    assert_eq!(file.tries(&visitor, &at(101)), held(29));
    assert_eq!(file.column::<i64>("wanted"), 0);
    file.acquire(&b, &at(102));
    file.release(&a, &at(103));
    assert_eq!(file.tries(&visitor, &at(103)), granted(1));
}

#[test]
fn a_waiter_is_recorded_again_before_its_record_expires() {
    let (file, [a, b]) = (File::new(), [claim(1), claim(2)]);
    file.acquire(&a, &at(100));
    file.acquire(&b, &at(100));
    let noted: i64 = file.column("wanted");
    file.renew(&a, TTL * 4, RenewPolicy::AtLeast, &at(100));
    file.retries(&b, &at(115));
    assert_eq!(file.column::<i64>("wanted"), noted, "a retry only reads");
    file.retries(&b, &at(121));
    assert!(file.column::<i64>("wanted") > noted);
}

#[test]
fn a_watcher_of_a_lock_is_notified_of_the_end_of_every_lease() {
    let (file, [a, b, c]) = (File::new(), [claim(1), claim(2), claim(3)]);
    let watch = |now: &Reading| file.store.held_for(c.name(), now).unwrap().is_none();
    assert!(watch(&at(99)));
    file.acquire(&a, &at(100));
    assert_eq!(file.acquire(&c, &at(101)), held(29));
    assert_eq!(file.release(&a, &at(102)), ReleasedRow::HasWaiters);
    assert!(watch(&at(102)));
    // Before it wakes up, b takes the lock, and does not know of c. c reads again and finds it held.
    assert_eq!(file.retries(&b, &at(102)), granted(1));
    assert!(!watch(&at(102)));
    assert_eq!(file.release(&b, &at(103)), ReleasedRow::HasWaiters);
}

#[test]
fn only_the_named_lease_is_broken() {
    let (file, [a, b]) = (File::new(), [claim(1), claim(2)]);
    let name = a.name().clone();
    let breaks = |token, now: &Reading| file.store.break_lease(&name, FencingToken::new(token), now).unwrap();
    assert_eq!(breaks(0, &at(99)), None);
    file.acquire(&a, &at(100));
    assert_eq!(breaks(1, &at(101)), None);
    assert_eq!(breaks(u64::MAX, &at(101)), None);
    assert_eq!(breaks(0, &at(101)), Some(FencingToken::new(1)));
    assert!(!file.renew(&a, TTL, RenewPolicy::AtLeast, &at(101)));
    assert_eq!(file.acquire(&b, &at(101)), granted(2));
    assert_eq!(breaks(2, &at(131)), None, "it had expired");
    // An operator need not wait for the ttl of a lease from before a reboot.
    file.acquire(&a, &at(140));
    assert_eq!(breaks(3, &after_a_reboot(1)), Some(FencingToken::new(4)));
    assert_eq!(file.acquire(&b, &after_a_reboot(1)), granted(5));
}

#[test]
fn a_record_of_another_format_is_an_error_and_stays() {
    let (file, [a, b]) = (File::new(), [claim(1), claim(2)]);
    file.acquire(&a, &at(100));
    file.execute("UPDATE leasehold_locks SET format = '2x'");
    let kind = |failure: Failure| Error::from(failure).kind();
    for claim in [&a, &b] {
        for attempt in [Attempt::First, Attempt::Retry] {
            let refused = file.store.acquire(&request(claim), attempt, &at(200)).unwrap_err();
            assert_eq!(kind(refused), ErrorKind::Unsupported);
        }
        assert_eq!(kind(file.store.release(claim, &at(101)).unwrap_err()), ErrorKind::Unsupported);
        let renewed = file.store.renew(&RenewRequest::new(claim.clone(), PlaceNumber::NONE, TTL), &at(101));
        assert_eq!(kind(renewed.unwrap_err()), ErrorKind::Unsupported);
    }
    let broken = file.store.break_lease(a.name(), FencingToken::new(0), &at(101));
    assert_eq!(kind(broken.unwrap_err()), ErrorKind::Unsupported);
    assert_eq!(file.left(&at(100)), 30);
}

#[test]
fn tables_of_another_version_are_an_error() {
    let file = File::new();
    file.execute("UPDATE leasehold_format SET version = 2");
    let error = Error::from(file.store.prepare().unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("version 2"), "{error}");
}

#[test]
fn the_tables_are_frozen() {
    let file = File::new();
    let tables = "SELECT group_concat(sql, ';') FROM (SELECT sql FROM sqlite_schema WHERE sql <> '' ORDER BY name)";
    let golden = "CREATE TABLE leasehold_format (\n    version INTEGER PRIMARY KEY NOT NULL\n) STRICT;\
        CREATE TABLE leasehold_locks (\n    name   BLOB PRIMARY KEY NOT NULL,\n    format TEXT NOT NULL,\n    \
        owner  BLOB NOT NULL,\n    fence  INTEGER NOT NULL,\n    until  INTEGER NOT NULL,\n    \
        boot   INTEGER NOT NULL,\n    ttl    INTEGER NOT NULL,\n    wanted INTEGER NOT NULL,\n    \
        holder TEXT NOT NULL\n) STRICT, WITHOUT ROWID";
    let found: String = file.store.connection().query_row(tables, [], |row| row.get(0)).unwrap();
    assert_eq!(found, golden);
}

#[test]
fn the_statements_contain_the_same_constants() {
    let reserved = format!("until + {} <= ?4", micros(RESERVED_FOR_WAITERS));
    assert!(ACQUIRE.contains(&reserved));
    for sql in [ACQUIRE, RENEW, RELEASE, RELEASE_WITH_WAITERS, BREAK] {
        assert!(sql.contains(&format!("format = '{FORMAT}'")), "{sql}");
    }
}

#[test]
fn a_write_is_refused_as_busy_and_a_read_is_not() {
    let (file, [a, b]) = (File::new(), [claim(1), claim(2)]);
    file.acquire(&a, &at(100));
    file.acquire(&b, &at(100));
    let other = Store::open(&file.store.path).unwrap();
    other.begin().unwrap();
    let busy = |failed: Result<AcquiredRow>| matches!(failed, Err(Failure::Busy));
    assert!(busy(file.store.acquire(&request(&b), Attempt::First, &at(101))));
    assert_eq!(file.retries(&b, &at(101)), held(29));
    assert!(busy(file.store.acquire(&request(&b), Attempt::Retry, &at(131))));
    assert!(matches!(file.store.release(&a, &at(101)), Err(Failure::Busy)));
    other.commit().unwrap();
    assert_eq!(file.release(&a, &at(102)), ReleasedRow::HasWaiters);
}

#[test]
fn a_full_disk_is_reported_and_leaves_the_store_working() {
    let file = File::new();
    file.acquire(&claim(1), &at(100));
    let pages: i64 = file.store.connection().query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
    file.store.connection().pragma_update(None, "max_page_count", pages).unwrap();
    let fill = |index: u32| {
        let name = LockName::new(format!("{index}{}", "x".repeat(900))).unwrap();
        file.store.acquire(&request(&claim(1).renamed(name)), Attempt::First, &at(100))
    };
    let failure = (0..100).find_map(|index| fill(index).err()).expect("the file is full");
    assert!(!failure.closes_connection());
    assert_eq!(Error::from(failure).kind(), ErrorKind::Capacity);
    // A held lock can be released, which needs no disk space.
    assert_eq!(file.release(&claim(1), &at(101)), ReleasedRow::NoWaiters);
}

#[test]
fn a_file_that_is_no_database_is_unsupported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text");
    std::fs::write(&path, "not a database, but long enough to have a header. ".repeat(100)).unwrap();
    let error = Store::open(&path).err().expect("a text is no database").without_effect();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
}

#[test]
fn only_a_wal_that_lacks_frames_is_damaged() {
    let file = File::new();
    let wal = beside(&file.store.path, "-wal");
    let length = || std::fs::metadata(&wal).unwrap().len();
    file.acquire(&claim(1), &at(100));
    assert!(file.store.is_in_place() && length() > 0);
    // The checkpoint of another program may truncate it.
    let other = rusqlite::Connection::open(&file.store.path).unwrap();
    other.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    assert_eq!(length(), 0);
    assert!(file.store.is_in_place());
    file.release(&claim(1), &at(101));
    assert!(file.store.is_in_place() && length() > 0);
    std::fs::OpenOptions::new().write(true).open(&wal).unwrap().set_len(length() - 1).unwrap();
    assert!(!file.store.is_current());
    assert!(!file.store.is_current(), "the damage is remembered");
}

#[test]
fn nobody_writes_behind_the_gap_of_a_truncated_wal() {
    let file = File::new();
    file.store.checkpoint_passive();
    file.acquire(&claim(1), &at(100));
    let wal = std::fs::OpenOptions::new().write(true).open(beside(&file.store.path, "-wal")).unwrap();
    wal.set_len(0).unwrap();
    let error = Store::open(&file.store.path).err().expect("frames are missing").without_effect();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("truncated"), "{error}");
}

#[test]
fn an_expired_lease_of_the_same_claim_is_a_new_grant() {
    let (file, a) = (File::new(), claim(1));
    assert_eq!(file.acquire(&a, &at(100)), granted(0));
    assert_eq!(file.acquire(&a, &at(130)), granted(1), "the holder of token 0 no longer holds");
    assert_eq!(file.retries(&a, &at(160)), granted(2));
}

#[test]
fn what_cannot_be_committed_is_rolled_back() {
    let file = File::new();
    file.execute(UNCOMMITTABLE);
    let failed = file.store.in_transaction(|| file.execute("INSERT INTO child VALUES (1)"));
    assert!(failed.is_err());
    assert!(!file.store.is_in_transaction());
    file.store.in_transaction(|| ()).unwrap();
    let rows: i64 = file.store.connection().query_row("SELECT count(*) FROM child", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 0);
}
