//! What the tests need from Debian's packages.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::process;

/// A program that a backend's tests start, and the package that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) program: &'static str,
    pub(crate) package: &'static str,
}

/// Installs what is missing, and says so.
///
/// # Errors
/// Says how to do it by hand, when it cannot be done here.
pub(crate) fn provide(needs: &[Need]) -> Result<()> {
    let missing: Vec<_> = needs.iter().filter(|need| !is_there(need.program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let programs: Vec<_> = missing.iter().map(|need| need.program).collect();
    let packages: Vec<_> = missing.iter().map(|need| need.package).collect();
    let by_hand = format!(
        "install `{}` by hand: apt-get update && apt-get install {}",
        programs.join("`, `"),
        packages.join(" ")
    );
    println!("missing: {}; installing {} with apt-get", programs.join(", "), packages.join(", "));
    if !is_there("apt-get") {
        bail!("the tests need {}, and this machine has no apt-get: install them in its own way", programs.join(", "));
    }
    let root = is_root();
    if !root && !is_there("sudo") {
        bail!("neither root nor sudo; {by_hand}");
    }
    let install = || {
        let mut command = apt(root);
        command
            .args(["install", "--yes", "--no-install-recommends", "--option=DPkg::Lock::Timeout=300"])
            .args(&packages);
        process::show(&mut command)
    };
    // On a fresh machine apt knows no packages before its first update; a list that is there may be out of date.
    if !has_lists() || install().is_err() {
        process::show(apt(root).arg("update")).map_err(|error| error.context(by_hand.clone()))?;
        install().map_err(|error| error.context(by_hand.clone()))?;
    }
    if let Some(need) = missing.iter().find(|need| !is_there(need.program)) {
        bail!("`{}` is still not on the PATH; {by_hand}", need.program);
    }
    Ok(())
}

fn apt(root: bool) -> Command {
    let mut command = Command::new(if root { "env" } else { "sudo" });
    if !root {
        // Not a prompt that nobody sees.
        command.arg("--non-interactive").arg("env");
    }
    command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]);
    command
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").stderr(Stdio::null()).output();
    id.is_ok_and(|id| id.stdout.trim_ascii() == b"0")
}

fn has_lists() -> bool {
    let lists = std::fs::read_dir("/var/lib/apt/lists").into_iter().flatten().flatten();
    lists.into_iter().any(|entry| entry.file_name().to_string_lossy().contains("_Packages"))
}

/// Whether a program is on the PATH, or where Debian puts servers.
fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/bin", "/usr/sbin"].map(Path::new).map(Path::to_path_buf))
        .any(|folder| folder.join(program).is_file())
}
