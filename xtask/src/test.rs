//! `cargo xtask test`.

use anyhow::{Result, bail};

use crate::counts::{Counts, Target};
use crate::harness::{self, Outcome, Program};
use crate::metadata::Metadata;
use crate::needs::{self, Install, Need};
use crate::parts::Parts;
use crate::report;
use crate::server::Server;

/// The package of the suite.
const SUITE: &str = "leasehold-conformance";

/// A backend that the suite can be run on.
struct Backend {
    name: &'static str,
    /// The suite's feature that builds its test target.
    feature: Option<&'static str>,
    /// Its test targets: the suite, and holders in processes of their own.
    targets: &'static [&'static str],
    needs: &'static [Need],
}

const BACKENDS: &[Backend] = &[
    Backend { name: "memory", feature: None, targets: &["memory"], needs: &[] },
    Backend { name: "redis", feature: Some("redis"), targets: &["redis", "processes"], needs: &[needs::REDIS] },
    Backend { name: "sqlite", feature: Some("sqlite"), targets: &["sqlite", "sqlite_processes"], needs: &[] },
];

/// Runs the tests.
///
/// Without BACKEND everything: unit tests, doc tests, models, simulations, the conformance suite on every backend,
/// and all examples. With BACKEND only the suite on these. The tests start their servers themselves, on free ports
/// of the loopback interface, and stop them again.
///
/// At the end stand the cases that could not prove what they are there for: a fault that a backend declares impossible, or
/// something that it does not offer.
///
/// The tests need redis-server and openssl. LEASEHOLD_REDIS_SERVER names another program than redis-server. The number of
/// cases that ran is compared with conformance-tests/counts.toml.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The backends whose suite is run: memory, redis, sqlite.
    #[arg(value_name = "BACKEND", value_parser = backend)]
    backends: Vec<&'static str>,
    /// Write conformance-tests/counts.toml instead of holding the run against it.
    #[arg(long, conflicts_with = "backends")]
    update_counts: bool,
    #[command(flatten)]
    install: Install,
}

/// Under which name an example that takes the URL of a store is counted when it runs on this one.
pub(crate) fn on_store(program: &Program, store: &str) -> Option<Target> {
    let takes_url = ["example-quickstart", "example-fencing", "example-lost"].contains(&&*program.target);
    takes_url.then(|| (program.package.name.clone(), format!("{}-{store}", program.target)))
}

/// The stores, besides memory, on which such examples are run.
pub(crate) const EXAMPLE_STORES: &[&str] = &["redis", "sqlite"];

fn backend(name: &str) -> Result<&'static str> {
    match BACKENDS.iter().find(|backend| backend.name == name) {
        Some(backend) => Ok(backend.name),
        None => bail!("known are {}", BACKENDS.iter().map(|backend| backend.name).collect::<Vec<_>>().join(", ")),
    }
}

/// What `cargo test` is asked to build for everything. Packages that are not published have their own build, so
/// that their dependencies change no feature of what users get.
pub(crate) fn everything(metadata: &Metadata) -> Vec<String> {
    let excluded = metadata.members().filter(|package| !package.publish);
    ["--workspace".to_owned(), "--all-features".to_owned()]
        .into_iter()
        .chain(excluded.map(|package| format!("--exclude={}", package.name)))
        .collect()
}

/// The same for the models and simulations, and for the commands themselves.
pub(crate) fn own() -> Vec<String> {
    ["--package=leasehold-simulation", "--package=xtask"].map(str::to_owned).into()
}

fn suite(backends: &[&Backend]) -> Vec<String> {
    let mut selection = vec![format!("--package={SUITE}"), "--no-default-features".to_owned()];
    selection.extend(backends.iter().filter_map(|backend| backend.feature).map(|name| format!("--features={name}")));
    selection.extend(backends.iter().flat_map(|backend| backend.targets).map(|target| format!("--test={target}")));
    selection
}

/// Runs it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let whole = args.backends.is_empty();
    let backends: Vec<_> = BACKENDS.iter().filter(|backend| whole || args.backends.contains(&backend.name)).collect();
    let own_tests = whole.then_some(needs::OPENSSL);
    let needs: Vec<_> = backends.iter().flat_map(|backend| backend.needs).copied().chain(own_tests).collect();
    needs::provide(&needs, &args.install, "cargo xtask test")?;

    let metadata = Metadata::read()?;
    let selections = if whole { vec![everything(&metadata), own()] } else { vec![suite(&backends)] };
    let mut parts = Parts::default();
    let mut run = Run::default();

    let mut programs = Vec::new();
    parts.run("build", || {
        for selection in &selections {
            programs.extend(harness::build(&metadata, selection)?);
        }
        Ok(format!("{} programs", programs.len()))
    });
    parts.result()?;
    report::reset()?;
    for program in &programs {
        parts.run(&program.name(), || {
            let outcome = program.run(&[], &mut run.said)?;
            run.note((program.package.name.clone(), program.target.clone()), outcome)
        });
    }
    if whole {
        for store in EXAMPLE_STORES {
            parts.run(&format!("examples on {store}"), || {
                let server = Server::start(store)?;
                let mut sum = Outcome::default();
                for program in &programs {
                    let Some(target) = on_store(program, store) else { continue };
                    println!("{}", program.name());
                    let outcome = program.run(&[server.url()], &mut run.said)?;
                    sum.add(outcome);
                    run.add(target, outcome);
                }
                run.judge(sum)
            });
        }
        parts.run("doc tests", || {
            let mut sum = Outcome::default();
            for (package, outcome) in harness::doc_tests(&metadata, &everything(&metadata))? {
                sum.add(outcome);
                run.add((package, "doc".to_owned()), outcome);
            }
            run.judge(sum)
        });
    }
    if args.update_counts {
        // Counts of a run with failures may be of a program that ended in its middle.
        parts.result()?;
        run.counts.write()?;
        println!("\nwrote conformance-tests/counts.toml");
    } else {
        parts.run("counts", || run.counts.hold(&Counts::read()?, whole));
    }

    let report = report::read()?;
    if !report.is_empty() {
        println!("\n=== cases that met what is declared instead of a fault, or had nothing to prove\n{report}");
    }
    if !run.said.is_empty() {
        println!("\n=== what failed");
        run.said.iter().for_each(|line| println!("{line}"));
    }
    parts.print();
    println!();
    println!("{} passed, {} failed, {} skipped", run.sum.passed, run.sum.failed, run.sum.ignored);
    parts.result()
}

/// What ran so far.
#[derive(Default)]
struct Run {
    sum: Outcome,
    /// What failed cases said: told once more at the end, where it is looked for.
    said: Vec<String>,
    counts: Counts,
}

impl Run {
    fn add(&mut self, target: Target, outcome: Outcome) {
        self.sum.add(outcome);
        self.counts.add(target, outcome.count());
    }

    fn note(&mut self, target: Target, outcome: Outcome) -> Result<String> {
        self.add(target, outcome);
        self.judge(outcome)
    }

    fn judge(&self, outcome: Outcome) -> Result<String> {
        let text = format!("{} passed, {} failed, {} ignored", outcome.passed, outcome.failed, outcome.ignored);
        if outcome.failed > 0 {
            bail!("{text}");
        }
        Ok(text)
    }
}
