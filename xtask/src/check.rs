//! `cargo xtask check`.

use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::dependencies::{self, Policy};
use crate::metadata::{self, Metadata};
use crate::needs::{self, Install};
use crate::parts::Parts;
use crate::{architecture, features, hygiene, invariants, minimum_rust, named_tests, process, readme};

/// Reads everything and changes nothing: what a change has to pass before its tests are worth running.
///
/// fmt, forbidden words, licence files, README.md and the lists of stores and their URLs, the paths and names in
/// ARCHITECTURE.md, the cases of each invariant, the tests that documents name, licences, duplicate dependencies, sources, what each feature pulls, clippy for all together and for each published package and
/// each feature alone, docs, packaging, and other operating systems and the oldest Rust where they are installed.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the parts whose name contains one of these.
    #[arg(value_name = "PART")]
    parts: Vec<String>,
    /// Only what ends within a minute after a small change. Leaves out clippy for each package and each feature alone,
    /// docs, packaging, other operating systems and the oldest Rust.
    #[arg(long, conflicts_with = "parts")]
    fast: bool,
    /// Only what `--fast` leaves out.
    #[arg(long, conflicts_with_all = ["parts", "fast"])]
    slow: bool,
    #[command(flatten)]
    install: Install,
}

/// The parts that compile everything, for which `protoc` generates the etcd client.
const COMPILING: &[&str] = &["clippy together", "clippy alone", "docs"];

/// Whether `--fast` runs a part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Speed {
    Fast,
    /// It compiles everything once more, or in another way.
    Slow,
}

/// A part: whether `--fast` runs it, its name, and its function.
type Part<'a> = (Speed, &'a str, &'a dyn Fn() -> Result<String>);

/// Operating systems on which nothing is tested, but for which everything must compile.
const OTHER_TARGETS: &[&str] = &["aarch64-apple-darwin", "x86_64-pc-windows-msvc", "x86_64-pc-windows-gnu"];

/// Runs it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let metadata = metadata::read()?;
    let policy = Policy::read()?;
    let parts: &[Part<'_>] = &[
        (Speed::Fast, "fmt", &|| cargo(&["fmt", "--all", "--check"])),
        (Speed::Fast, "forbidden words", &hygiene::forbidden),
        (Speed::Fast, "licence files", &|| hygiene::licence_files(&metadata)),
        (Speed::Fast, "ARCHITECTURE.md", &architecture::check),
        (Speed::Fast, "README.md", &|| readme::check(&metadata)),
        (Speed::Fast, "invariants", &invariants::check),
        (Speed::Fast, "named tests", &named_tests::check),
        (Speed::Fast, "licences", &|| dependencies::licences(&metadata, &policy)),
        (Speed::Fast, "duplicates", &|| dependencies::duplicates(&metadata, &policy)),
        (Speed::Fast, "sources", &|| dependencies::sources(&metadata)),
        (Speed::Fast, "features pull", &|| dependencies::clients(&metadata, &policy)),
        (Speed::Fast, "clippy together", &features::together),
        (Speed::Slow, "clippy alone", &|| features::alone(&metadata)),
        (Speed::Slow, "docs", &|| docs(&metadata)),
        (Speed::Slow, "packages", &|| packages(&metadata)),
        (Speed::Slow, "other systems", &other_systems),
        (Speed::Slow, "minimum Rust", &|| minimum_rust::check(&metadata)),
    ];
    let names: Vec<_> = parts.iter().map(|(_, name, _)| *name).collect();
    if let Some(wanted) = args.parts.iter().find(|wanted| !names.iter().any(|name| name.contains(wanted.as_str()))) {
        bail!("no part has `{wanted}` in its name; the parts are {}", names.join(", "));
    }
    let is_selected = |speed: Speed, name: &str| match speed {
        Speed::Fast if args.slow => false,
        Speed::Slow if args.fast => false,
        _ => args.parts.is_empty() || args.parts.iter().any(|wanted| name.contains(wanted.as_str())),
    };

    if parts.iter().any(|(speed, name, _)| COMPILING.contains(name) && is_selected(*speed, name)) {
        needs::provide(&[needs::PROTOC, needs::PROTOC_INCLUDE], &args.install, "cargo xtask check")?;
    }

    let (start, mut done) = (Instant::now(), Parts::default());
    for (_, name, body) in parts.iter().filter(|(speed, name, _)| is_selected(*speed, name)) {
        done.run(name, body);
    }
    done.print(start.elapsed());
    if args.fast {
        let slow = parts.iter().filter(|(speed, ..)| *speed == Speed::Slow).map(|(_, name, _)| *name);
        println!("\nnot checked: {}", slow.collect::<Vec<_>>().join(", "));
    }
    done.result()
}

fn cargo(args: &[&str]) -> Result<String> {
    process::show(&mut process::cargo(args))?;
    Ok(String::new())
}

/// Builds the docs of everything that is published with all features, and those of the facade without features.
fn docs(metadata: &Metadata) -> Result<String> {
    let doc = |args: &[String]| {
        let mut command = process::cargo(["doc", "--quiet", "--locked", "--no-deps"]);
        process::show(command.args(args).env("RUSTDOCFLAGS", "-D warnings"))
    };
    let excluded = metadata::unpublished(metadata).map(|package| format!("--exclude={}", package.name));
    doc(&["--workspace".to_owned(), "--all-features".to_owned()].into_iter().chain(excluded).collect::<Vec<_>>())?;
    doc(&["--package=leasehold".to_owned(), "--no-default-features".to_owned()])?;
    Ok(String::new())
}

/// Checks that everything that is to be published can be packaged from the present files.
fn packages(metadata: &Metadata) -> Result<String> {
    let mut command = process::cargo(["package", "--quiet", "--locked", "--workspace", "--allow-dirty", "--no-verify"]);
    command.args(metadata::unpublished(metadata).map(|package| format!("--exclude={}", package.name)));
    process::show(&mut command)?;
    Ok(format!("{} packages", metadata::published(metadata).count()))
}

/// Compiles for other operating systems, as far as the toolchain has their standard library.
fn other_systems() -> Result<String> {
    let sysroot = process::read(Command::new("rustc").current_dir(process::root()).args(["--print", "sysroot"]))?;
    let libraries = std::path::Path::new(sysroot.trim()).join("lib/rustlib");
    let (there, missing): (Vec<_>, Vec<_>) =
        OTHER_TARGETS.iter().copied().partition(|target| libraries.join(target).join("lib").is_dir());
    for target in &there {
        cargo(&[
            "check",
            "--quiet",
            "--locked",
            "--package=leasehold",
            "--features=redis",
            &format!("--target={target}"),
        ])?;
    }
    Ok(match (there.is_empty(), missing.is_empty()) {
        (_, true) => there.join(", "),
        (true, _) => format!("not checked, the toolchain lacks them: {}", missing.join(", ")),
        (false, false) => format!("{}; not in the toolchain: {}", there.join(", "), missing.join(", ")),
    })
}
