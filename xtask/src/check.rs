//! `cargo xtask check`.

use std::process::Command;

use anyhow::Result;

use crate::dependencies::{self, Policy};
use crate::metadata::Metadata;
use crate::parts::Parts;
use crate::{architecture, counts, features, hygiene, invariants, minimum_rust, process, readme, test};

/// Reads everything and changes nothing: what a change has to pass before its tests are worth running.
///
/// fmt, forbidden words, README.md, the paths and names in ARCHITECTURE.md, the cases of each invariant, licences,
/// duplicate dependencies, sources, what each feature pulls, clippy for each package and each feature alone and for all
/// together, docs, the checked-in counts, packaging, and other operating systems and the oldest Rust where they are installed.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the parts whose name contains one of these.
    #[arg(value_name = "PART")]
    parts: Vec<String>,
}

/// Operating systems that are not tested but have to compile.
const OTHER_TARGETS: &[&str] = &["aarch64-apple-darwin", "x86_64-pc-windows-msvc", "x86_64-pc-windows-gnu"];

/// Runs it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let metadata = Metadata::read()?;
    let policy = Policy::read()?;

    let mut parts = Parts::default();
    let mut part = |name: &str, body: &dyn Fn() -> Result<String>| {
        if args.parts.is_empty() || args.parts.iter().any(|wanted| name.contains(wanted.as_str())) {
            parts.run(name, body);
        }
    };
    part("fmt", &|| cargo(&["fmt", "--all", "--check"]));
    part("forbidden words", &hygiene::forbidden);
    part("licence files", &|| hygiene::licence_files(&metadata));
    part("ARCHITECTURE.md", &architecture::check);
    part("README.md", &readme::check);
    part("invariants", &invariants::check);
    part("licences", &|| dependencies::licences(&metadata, &policy));
    part("duplicates", &|| dependencies::duplicates(&metadata, &policy));
    part("sources", &|| dependencies::sources(&metadata));
    part("features pull", &|| dependencies::clients(&metadata, &policy));
    part("clippy together", &features::together);
    part("clippy alone", &|| features::alone(&metadata));
    part("docs", &|| docs(&metadata));
    part("counts", &|| counts::check(&metadata));
    part("packages", &|| packages(&metadata));
    part("other systems", &other_systems);
    part("minimum Rust", &|| minimum_rust::check(&metadata));
    parts.print();
    parts.result()
}

fn cargo(args: &[&str]) -> Result<String> {
    process::show(&mut process::cargo(args))?;
    Ok(String::new())
}

/// Docs of everything that is published, with all features, and of the facade without any.
fn docs(metadata: &Metadata) -> Result<String> {
    let doc = |args: &[String]| {
        let mut command = process::cargo(["doc", "--quiet", "--locked", "--no-deps"]);
        process::show(command.args(args).env("RUSTDOCFLAGS", "-D warnings"))
    };
    doc(&test::everything(metadata))?;
    doc(&["--package=leasehold".to_owned(), "--no-default-features".to_owned()])?;
    Ok(String::new())
}

/// Everything that is to be published can be packed, from the files that are there now.
fn packages(metadata: &Metadata) -> Result<String> {
    let mut command = process::cargo(["package", "--quiet", "--locked", "--workspace", "--allow-dirty", "--no-verify"]);
    command.args(
        metadata.members().filter(|package| !package.publish).map(|package| format!("--exclude={}", package.name)),
    );
    process::show(&mut command)?;
    Ok(format!("{} packages", metadata.members().filter(|package| package.publish).count()))
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
