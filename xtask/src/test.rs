//! `cargo xtask test`.

use std::time::Instant;

use anyhow::{Result, bail};

use crate::counts::{Count, Counts};
use crate::harness::{self, Kind, Outcome, Program};
use crate::metadata;
use crate::needs::{self, Install, Need};
use crate::parts::{Part, Parts};
use crate::report;
use crate::schedule::{self, IDLE, Weight};

/// The package of the suite.
const SUITE: &str = "leasehold-conformance";

/// A backend that the suite can be run on.
struct Backend {
    name: &'static str,
    /// The suite's feature that builds its test target.
    feature: Option<&'static str>,
    /// Its test targets: the suite, and holders in their own processes.
    targets: &'static [&'static str],
    needs: &'static [Need],
    /// The environment variable that names a server, and the test targets that use it. The other targets start their
    /// own servers.
    named_server: Option<(&'static str, &'static [&'static str])>,
}

impl Backend {
    /// The test targets that run, and the programs that they need. If the variable names a server, only the targets
    /// that use it.
    fn selected(&self, is_named: impl Fn(&str) -> bool) -> (&'static [&'static str], &'static [Need]) {
        match self.named_server {
            Some((variable, targets)) if is_named(variable) => (targets, &[]),
            _ => (self.targets, self.needs),
        }
    }
}

const BACKENDS: &[Backend] = &[
    Backend { name: "memory", feature: None, targets: &["memory"], needs: &[], named_server: None },
    Backend {
        name: "etcd",
        feature: Some("etcd"),
        targets: &["etcd", "etcd_cluster", "etcd_processes"],
        needs: &[needs::PROTOC, needs::PROTOC_INCLUDE, needs::ETCD, needs::OPENSSL],
        named_server: None,
    },
    Backend {
        name: "mysql",
        feature: Some("mysql"),
        targets: &["mysql", "mysql_for_update", "mysql_for_update_processes", "mysql_processes"],
        needs: &[needs::MARIADB, needs::MARIADB_INSTALL_DB, needs::OPENSSL],
        named_server: Some(("LEASEHOLD_MYSQL_URL", &["mysql", "mysql_for_update"])),
    },
    Backend {
        name: "redis",
        feature: Some("redis"),
        targets: &["redis", "redis_quorum", "redis_sentinel", "redis_cluster", "processes"],
        needs: &[needs::REDIS],
        named_server: None,
    },
    Backend {
        name: "sqlite",
        feature: Some("sqlite"),
        targets: &["sqlite", "sqlite_processes"],
        needs: &[],
        named_server: None,
    },
    Backend {
        name: "zk",
        feature: Some("zk"),
        targets: &["zk", "zk_ensemble", "zk_processes"],
        needs: &[needs::JAVA, needs::ZOOKEEPER, needs::OPENSSL],
        named_server: None,
    },
];

/// Runs the tests.
///
/// Without BACKEND everything: unit tests, doc tests, models, simulations, the conformance suite on every backend,
/// and all examples. With BACKEND only the suite on these. The tests start their servers themselves, on free ports
/// of the loopback interface, and stop them again.
///
/// At the end it lists the cases that met an unsupported fault or had nothing to prove.
///
/// With NAME only the tests whose names contain a NAME, as in `cargo xtask test redis -- lease:: waiting::`. Examples
/// and doc tests do not run then, and no counts are compared.
///
/// The tests need redis-server, mariadb-server, etcd-server, default-jre-headless, libzookeeper-java, openssl, and
/// protoc to build. LEASEHOLD_REDIS_SERVER, LEASEHOLD_MARIADB_SERVER, LEASEHOLD_ETCD_SERVER, LEASEHOLD_JAVA and
/// LEASEHOLD_ZOOKEEPER_JAR name other programs than redis-server, mariadbd, etcd, java and Debian's zookeeper.jar.
///
/// LEASEHOLD_MYSQL_URL=mysql://root:password@host:3306/ names a MySQL or MariaDB that exists already, for the suites of
/// both strategies: `cargo xtask test mysql` then runs only these, starts no server and needs none. The URL is that of
/// an administrator. The tests create databases and users, and drop them. CONTRIBUTING.md says how the server has to be
/// set up.
///
/// The number of cases that ran is compared with conformance-tests/counts.toml.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The backends whose suite is run: memory, etcd, mysql, redis, sqlite, zk.
    #[arg(value_name = "BACKEND", value_parser = backend)]
    backends: Vec<&'static str>,
    #[command(flatten)]
    install: Install,
    /// Names of tests, and options of Rust's test harness such as `--exact`.
    #[arg(value_name = "NAME", last = true)]
    filters: Vec<String>,
}

/// The suites that belong to no backend of the workspace.
const OTHER_SUITES: &[&str] = &["third_party", "saboteurs"];

/// The test targets whose cases are counted: all that run cases of backends, or saboteurs.
pub(crate) fn suites() -> impl Iterator<Item = &'static str> {
    BACKENDS.iter().flat_map(|backend| backend.targets).chain(OTHER_SUITES).copied()
}

/// Whether the cases of a program are counted.
pub(crate) fn is_suite(program: &Program) -> bool {
    program.package.name == SUITE && suites().any(|target| target == program.target)
}

/// The weight of a program that runs alone, because its cases measure time and were late beside other programs.
const ALONE: u32 = 1000;

/// The weights of programs: first those that take long, which start in this order. The cases of a suite on one server
/// mostly wait: for leases and sessions to end, and for time limits to pass. Each case on a cluster uses three servers.
/// Suites without a server use a few percent of a processor.
const WEIGHTS: &[(&str, Weight)] = &[
    ("simulation", Weight { threads: 2, percent: IDLE }),
    ("queue_model", Weight { threads: 2, percent: IDLE }),
    ("quorum_model", Weight { threads: 2, percent: IDLE }),
    ("cli", Weight { threads: 6, percent: ALONE }),
    ("zk_ensemble", Weight { threads: 2, percent: ALONE }),
    ("etcd_cluster", Weight { threads: 2, percent: ALONE }),
    ("redis_quorum", Weight { threads: 4, percent: ALONE }),
    ("redis_sentinel", Weight { threads: 4, percent: ALONE }),
    ("redis_cluster", Weight { threads: 6, percent: ALONE }),
    ("zk", Weight { threads: 4, percent: ALONE }),
    ("etcd", Weight { threads: 4, percent: ALONE }),
    ("mysql_for_update", Weight { threads: 6, percent: ALONE }),
    ("same_rules", Weight { threads: 6, percent: ALONE }),
    ("mysql", Weight { threads: 4, percent: 70 }),
    ("redis", Weight { threads: 6, percent: 35 }),
    ("sqlite", Weight { threads: 6, percent: 35 }),
    ("memory", Weight { threads: 6, percent: 10 }),
    ("saboteurs", Weight { threads: 6, percent: 10 }),
    ("third_party", Weight { threads: 6, percent: 10 }),
];

/// The weight of the process cases of a store.
const PROCESSES: Weight = Weight { threads: 6, percent: 45 };

/// The weight of a program that is not in the list.
const OTHER: Weight = Weight { threads: 6, percent: ALONE };

/// The weight of the doc tests.
const DOC_TESTS: Weight = Weight { threads: 2, percent: IDLE };

fn weight(program: &Program) -> (usize, Weight) {
    let found = WEIGHTS.iter().enumerate().find(|(_, (target, _))| *target == program.target);
    let other = if program.target.ends_with("processes") { PROCESSES } else { OTHER };
    found.map_or((WEIGHTS.len(), other), |(place, (_, weight))| (place, *weight))
}

fn backend(name: &str) -> Result<&'static str> {
    match BACKENDS.iter().find(|backend| backend.name == name) {
        Some(backend) => Ok(backend.name),
        None => bail!("known are {}", BACKENDS.iter().map(|backend| backend.name).collect::<Vec<_>>().join(", ")),
    }
}

/// The arguments with which `cargo test` builds everything at once, except the benchmarks. These are built separately,
/// because they need the clients of the other lock libraries.
pub(crate) fn everything() -> Vec<String> {
    ["--workspace", "--all-features", "--exclude=leasehold-benchmarks"].map(str::to_owned).into()
}

/// The programs that tests start which belong to no backend.
const OWN_NEEDS: &[Need] = &[needs::ETCD, needs::JAVA, needs::OPENSSL, needs::ZOOKEEPER];

fn is_named(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|url| !url.is_empty())
}

fn suite(backends: &[&Backend]) -> Vec<String> {
    let mut selection = vec![format!("--package={SUITE}"), "--no-default-features".to_owned()];
    selection.extend(backends.iter().filter_map(|backend| backend.feature).map(|name| format!("--features={name}")));
    let targets = backends.iter().flat_map(|backend| backend.selected(is_named).0);
    selection.extend(targets.map(|target| format!("--test={target}")));
    selection
}

/// Runs it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let whole = args.backends.is_empty();
    let backends: Vec<_> = BACKENDS.iter().filter(|backend| whole || args.backends.contains(&backend.name)).collect();
    // In a whole run, other tests start servers too.
    let selected = |backend: &&Backend| backend.selected(|variable| !whole && is_named(variable));
    let own_needs = if whole { OWN_NEEDS } else { &[] };
    let needs: Vec<_> = backends.iter().flat_map(|backend| selected(backend).1).chain(own_needs).copied().collect();
    needs::provide(&needs, &args.install, "cargo xtask test")?;

    for backend in backends.iter().filter(|_| !whole) {
        let left_out: Vec<_> = backend.targets.iter().filter(|target| !selected(backend).0.contains(target)).collect();
        if !left_out.is_empty() {
            println!("not run, because a server is named: {left_out:?} start servers of their own");
        }
    }

    let start = Instant::now();
    let metadata = metadata::read()?;
    let mut parts = Parts::default();
    let mut programs = Vec::new();
    parts.run("build", || {
        programs = harness::build(&metadata, &if whole { everything() } else { suite(&backends) })?;
        // An example has no tests that names could select.
        programs.retain(|program| program.kind == Kind::Tests || args.filters.is_empty());
        Ok(format!("{} programs", programs.len()))
    });
    parts.result()?;
    report::reset()?;
    programs.sort_by_key(|program| weight(program).0);
    let mut jobs: Vec<_> = programs.iter().map(|program| (weight(program).1, Job::Program(program))).collect();
    if whole && args.filters.is_empty() {
        jobs.push((DOC_TESTS, Job::DocTests));
    }
    let mut run = Run::default();
    schedule::run(
        jobs,
        |(weight, job)| job.run(weight, &args.filters),
        |done| {
            parts.add(done.part);
            run.said.extend(done.said);
            run.sum.add(done.outcome);
            if let Some((target, count)) = done.counted {
                run.counts.add(&target, count);
            }
        },
    );
    parts.run("counts", || match &args.filters[..] {
        [] => run.counts.hold(&Counts::read()?, whole),
        filters if run.sum == Outcome::default() => bail!("no test matches `{}`", filters.join(" ")),
        _ => Ok("not compared, because only some tests were to run".to_owned()),
    });

    let report = report::read()?;
    if !report.is_empty() {
        println!("\n=== cases that met an unsupported fault, or had nothing to prove\n{report}");
    }
    parts.print(start.elapsed());
    // This comes last, because some who run this read only the end of the output.
    if !run.said.is_empty() {
        println!("\n=== what failed");
        run.said.iter().for_each(|line| println!("{line}"));
    }
    println!();
    println!("{} passed, {} failed, {} skipped", run.sum.passed, run.sum.failed, run.sum.ignored);
    parts.result()
}

/// The results so far.
#[derive(Default)]
struct Run {
    sum: Outcome,
    /// The messages of failed cases, which are repeated at the end.
    said: Vec<String>,
    counts: Counts,
}

/// A job, which runs beside others.
enum Job<'a> {
    Program(&'a Program),
    DocTests,
}

/// The result of a job.
struct Done {
    part: Part,
    outcome: Outcome,
    said: Vec<String>,
    counted: Option<(String, Count)>,
}

impl Job<'_> {
    fn name(&self) -> String {
        match self {
            Self::Program(program) => program.name(),
            Self::DocTests => "doc tests".to_owned(),
        }
    }

    fn run(&self, weight: Weight, filters: &[String]) -> Done {
        let (mut outcome, mut said) = (Outcome::default(), Vec::new());
        let part = Part::run(&self.name(), || {
            outcome = match self {
                Self::Program(program) if program.kind == Kind::Tests => {
                    let threads = format!("--test-threads={}", weight.threads);
                    program.run(&[filters, &[threads]].concat(), weight.percent == IDLE, &mut said)?
                }
                Self::Program(program) => program.run(&[], false, &mut said)?,
                Self::DocTests => harness::doc_tests(&everything())?,
            };
            let text = format!("{} passed, {} failed, {} ignored", outcome.passed, outcome.failed, outcome.ignored);
            if outcome.failed > 0 {
                bail!("{text}");
            }
            Ok(text)
        });
        let counted = match self {
            Self::Program(program) if is_suite(program) => Some((program.target.clone(), outcome.count())),
            _ => None,
        };
        Done { part, outcome, said, counted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_server_needs_no_program() {
        let mysql = BACKENDS.iter().find(|backend| backend.name == "mysql").unwrap();
        let (targets, needs) = mysql.selected(|variable| variable == "LEASEHOLD_MYSQL_URL");
        assert!(needs.is_empty() && targets.iter().all(|target| mysql.targets.contains(target)));
        assert!(targets.len() < mysql.targets.len() && mysql.selected(|_| false) == (mysql.targets, mysql.needs));
    }
}
