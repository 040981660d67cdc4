//! `docs/backends.md` says what each backend promises. It is generated from the backends' `Capabilities`, which the
//! conformance suite verifies.
#![cfg(all(feature = "etcd", feature = "mysql", feature = "redis", feature = "sqlite", feature = "zk"))]

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use leasehold_core::backend::{Capabilities, LockBackend, LossNotice, Restart, Scope, StoreClock, TtlScope, Waiting};
use leasehold_core::defaults::DEFAULT_TTL;
use leasehold_core::memory::{MemoryBackend, MemoryStore};
use leasehold_etcd::EtcdBackend;
use leasehold_mysql::MySqlBackend;
use leasehold_redis::{QuorumBackend, RedisBackend};
use leasehold_sqlite::SqliteBackend;
use leasehold_zk::ZkBackend;

const UPDATE: &str = "LEASEHOLD_WRITE_DOCS";

#[test]
fn the_page_says_what_the_backends_promise() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/backends.md");
    let redis = RedisBackend::connect_lazy("redis://127.0.0.1").unwrap().capabilities();
    let sentinel = RedisBackend::connect_lazy("redis+sentinel://one,two,three/mymaster").unwrap().capabilities();
    let cluster = RedisBackend::connect_lazy("redis+cluster://one,two,three").unwrap().capabilities();
    let quorum = QuorumBackend::connect_lazy("redis+quorum://one,two,three").unwrap().capabilities();
    let mysql = MySqlBackend::connect_lazy("mysql://user@127.0.0.1/locks").unwrap().capabilities();
    let for_update =
        MySqlBackend::connect_lazy("mysql://user@127.0.0.1/locks?strategy=for-update").unwrap().capabilities();
    let etcd = EtcdBackend::connect_lazy("etcd://127.0.0.1").unwrap().capabilities();
    let zk = ZkBackend::connect_lazy("zk://127.0.0.1").unwrap().capabilities();
    let sqlite = SqliteBackend::connect_lazy("sqlite:///tmp/locks.db").unwrap().capabilities();
    let memory = MemoryBackend::new(&MemoryStore::default()).capabilities();
    let page = page(&[redis, sentinel, cluster, quorum, mysql, for_update, etcd, zk, sqlite, memory]);
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(written == page, "docs/backends.md is out of date: run this test with {UPDATE}=1, and commit the page");
}

fn page(backends: &[Capabilities]) -> String {
    let mut page =
        "# What each backend promises\n\nWritten from the backends' `Capabilities` with their default settings by \
        `tests/backends_page.rs`; the conformance suite\nholds them to the truth.\n\n"
            .to_owned();
    let names: Vec<_> = backends.iter().map(name).collect();
    let _ = writeln!(page, "| | {} |\n|---{}|", names.join(" | "), "|---".repeat(names.len()));
    let mut row = |what: &str, of: &dyn Fn(&Capabilities) -> String| {
        let cells: Vec<_> = backends.iter().map(of).collect();
        let _ = writeln!(page, "| {what} | {} |", cells.join(" | "));
    };
    row("a lock reaches", &|it| scope(it.scope).to_owned());
    row("leases end by", &|it| clock(it.clock).to_owned());
    row("a ttl belongs to", &|it| ttl_scope(it.ttl_scope).to_owned());
    row("shortest ttl", &|it| text(it.min_ttl));
    row("longest ttl", &|it| text(it.max_ttl));
    row("a ttl is rounded up to whole", &|it| text(it.ttl_granularity));
    row("a waiter learns of its turn by", &|it| waiting(it.waiting).to_owned());
    row("clients get the lock in the order in which they came", &|it| yes(it.fifo).to_owned());
    row(&format!("ttl of a place in the queue, with a ttl of {}", text(DEFAULT_TTL)), &|it| match it.waiting {
        Waiting::ServerQueue => text(DEFAULT_TTL.min(it.max_place_ttl)),
        _ => "no queue".to_owned(),
    });
    row("a lease that was ended behind the holder's back is noticed", &|it| notice(it.loss_notice).to_owned());
    row("failover time after a holder crashes: its ttl plus", &|it| takeover(it));
    row("fencing token", &|it| it.fencing.to_owned());
    row("after a restart of the store there is", &|it| restart(it.restart).to_owned());
    row("a call takes at most", &|it| text(it.call_bound));
    page += "\n## Where exclusion ends\n\nThere only the fencing token decides. It keeps its order unless the list says \
        that tokens start again, and the holder is notified by its next renewal at the latest.\n";
    for it in backends {
        let _ = writeln!(page, "\n{}:\n", name(it));
        for end in it.limits_of_exclusion {
            let _ = writeln!(page, "- {end}");
        }
    }
    page
}

/// The backend and, if it is not the default, its strategy.
fn name(it: &Capabilities) -> String {
    match it.ttl_scope {
        TtlScope::Connection => format!("{}, `strategy=for-update`", it.backend),
        _ => it.backend.to_owned(),
    }
}

/// The time for a waiter with the default ttl. If a place lasts as long as its session, a longer ttl means a longer
/// time.
fn takeover(it: &Capabilities) -> String {
    let (slack, worst) = (it.takeover_slack, it.takeover_at_worst(DEFAULT_TTL));
    match worst.saturating_sub(slack) {
        Duration::ZERO => text(slack),
        more => format!("{} (plus {} if the next waiter has crashed too)", text(slack), text(more)),
    }
}

fn text(duration: Duration) -> String {
    let ms = duration.as_millis();
    match (ms, duration.subsec_nanos()) {
        (0, nanos) if nanos.is_multiple_of(1000) => format!("{} µs", nanos / 1000),
        (0, nanos) => format!("{nanos} ns"),
        _ if ms.is_multiple_of(3_600_000) => format!("{} h", ms / 3_600_000),
        _ if ms < 1000 => format!("{ms} ms"),
        _ if ms.is_multiple_of(1000) => format!("{} s", ms / 1000),
        _ => format!("{:.1} s", duration.as_secs_f64()),
    }
}

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::Process => "the process",
        Scope::Machine => "the machine",
        Scope::Network => "every machine that reaches the server",
        _ => unreachable!("a word is missing here"),
    }
}

fn clock(clock: StoreClock) -> &'static str {
    match clock {
        StoreClock::Client => "the client's clock",
        StoreClock::ServerWall => "the server's wall clock",
        StoreClock::ServerMonotonic => "a clock of the server that is never stepped",
        StoreClock::MachineBoot => "the machine's clock since boot",
        _ => unreachable!("a word is missing here"),
    }
}

fn ttl_scope(scope: TtlScope) -> &'static str {
    match scope {
        TtlScope::Lease => "each lease",
        TtlScope::Session => "a session, for all its leases",
        TtlScope::Connection => "each lease, on its own connection",
        _ => unreachable!("a word is missing here"),
    }
}

fn waiting(waiting: Waiting) -> &'static str {
    match waiting {
        Waiting::ServerQueue => "a queue in the store, whose head is handed the lock",
        Waiting::Notification => "a notice that the lock may be free",
        Waiting::Poll => "looking again and again",
        _ => unreachable!("a word is missing here"),
    }
}

fn notice(notice: LossNotice) -> &'static str {
    match notice {
        LossNotice::Pushed => "at once",
        LossNotice::NextRenewal => "by the next renewal, ttl / 3 later at most",
        _ => unreachable!("a word is missing here"),
    }
}

fn restart(restart: Restart) -> &'static str {
    match restart {
        Restart::KeepsAll => "everything that was acknowledged",
        Restart::KeepsPersisted => "what its persistence kept; new grants are guarded where that is not all",
        Restart::KeepsNothing => "nothing",
        _ => unreachable!("a word is missing here"),
    }
}
