//! Programs that the tests start, and Debian's packages that contain them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::process;

/// A program that tests start, and the package that contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    program: &'static str,
    package: &'static str,
    /// The environment variable that names another program.
    variable: Option<&'static str>,
}

pub(crate) const REDIS: Need =
    Need { program: "redis-server", package: "redis-server", variable: Some("LEASEHOLD_REDIS_SERVER") };

pub(crate) const MARIADB: Need =
    Need { program: "mariadbd", package: "mariadb-server", variable: Some("LEASEHOLD_MARIADB_SERVER") };

/// Creates the data folder of a server.
pub(crate) const MARIADB_INSTALL_DB: Need =
    Need { program: "mariadb-install-db", package: "mariadb-server", variable: Some("LEASEHOLD_MARIADB_INSTALL_DB") };

pub(crate) const ETCD: Need = Need { program: "etcd", package: "etcd-server", variable: Some("LEASEHOLD_ETCD_SERVER") };

/// Generates the etcd client during its build.
pub(crate) const PROTOC: Need = Need { program: "protoc", package: "protobuf-compiler", variable: None };

/// Files that `protoc` includes, and finds relative to its own path.
pub(crate) const PROTOC_INCLUDE: Need =
    Need { program: "../include/google/protobuf/descriptor.proto", package: "libprotobuf-dev", variable: None };

/// Runs ZooKeeper.
pub(crate) const JAVA: Need =
    Need { program: "java", package: "default-jre-headless", variable: Some("LEASEHOLD_JAVA") };

/// A file that Java runs, at the path where its package installs it.
pub(crate) const ZOOKEEPER: Need = Need {
    program: "/usr/share/java/zookeeper.jar",
    package: "libzookeeper-java",
    variable: Some("LEASEHOLD_ZOOKEEPER_JAR"),
};

/// Creates the certificates for the TLS tests of MySQL, etcd and ZooKeeper, and for that of lock-redis, which runs with
/// all backends.
pub(crate) const OPENSSL: Need = Need { program: "openssl", package: "openssl", variable: None };

/// The option `--install`.
#[derive(clap::Args)]
pub(crate) struct Install {
    /// Install missing programs from Debian's packages, as root or with sudo. The environment variable CI implies it.
    #[arg(long)]
    install: bool,
}

impl Install {
    /// Whether packages may be installed.
    fn is_wanted(&self) -> bool {
        self.install || std::env::var_os("CI").is_some_and(|value| !value.is_empty())
    }
}

impl Need {
    /// The program to start; `None` if it is not installed.
    ///
    /// # Errors
    /// When the variable is set and names no program.
    pub(crate) fn find(&self) -> Result<Option<PathBuf>> {
        let named = self.variable.and_then(|variable| Some((variable, std::env::var_os(variable)?)));
        if let Some((variable, program)) = named {
            let program = PathBuf::from(program);
            // Each test program runs in the folder of its package, so a relative path would have several meanings.
            if !program.is_absolute() || !program.is_file() {
                bail!("{variable} is `{}`; it has to be the absolute path of a program", program.display());
            }
            return Ok(Some(program));
        }
        Ok(on_path(self.program))
    }
}

/// Installs missing programs if that is allowed. `command` is the command that a person runs.
///
/// # Errors
/// If a program is missing and may not or cannot be installed. The error names the command to run.
pub(crate) fn provide(needs: &[Need], install: &Install, command: &str) -> Result<()> {
    let mut missing = Vec::new();
    for need in needs {
        if need.find()?.is_none() && !missing.contains(need) {
            missing.push(*need);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    if !install.is_wanted() {
        bail!("{}", advice(&missing, command));
    }
    apt_install(&missing)
}

/// What to do about missing programs.
fn advice(missing: &[Need], command: &str) -> String {
    let mut text = format!(
        "not installed: {}\n`{command} --install` installs the Debian packages {} and then runs",
        list(missing, |need| need.program),
        list(missing, |need| need.package),
    );
    for need in missing {
        if let Some(variable) = need.variable {
            text += &format!("\n`{variable}=PATH {command}` uses the program PATH instead of {}", need.program);
        }
    }
    text
}

fn list(needs: &[Need], name: impl Fn(&Need) -> &'static str) -> String {
    let mut names: Vec<_> = needs.iter().map(name).collect();
    // One package contains several programs.
    names.dedup();
    names.join(", ")
}

fn apt_install(missing: &[Need]) -> Result<()> {
    let mut packages: Vec<_> = missing.iter().map(|need| need.package).collect();
    packages.dedup();
    let by_hand = format!("install them by hand: apt-get update && apt-get install {}", packages.join(" "));
    println!("not installed: {}; installing {}", list(missing, |need| need.program), packages.join(", "));
    if on_path("apt-get").is_none() {
        bail!("this machine has no apt-get; install {} in its own way", list(missing, |need| need.program));
    }
    let root = is_root();
    if !root && on_path("sudo").is_none() {
        bail!("installing packages needs root or sudo; {by_hand}");
    }
    let install = || {
        let mut command = apt_get(root);
        command
            .args(["install", "--yes", "--no-install-recommends", "--option=DPkg::Lock::Timeout=300"])
            .args(&packages);
        process::show(&mut command)
    };
    // On a new machine apt knows no packages before its first update, and an existing list may be out of date.
    if !has_lists() || install().is_err() {
        process::show(apt_get(root).arg("update")).with_context(|| by_hand.clone())?;
        install().with_context(|| by_hand.clone())?;
    }
    for need in missing {
        if need.find()?.is_none() {
            bail!("`{}` is still not on the PATH; {by_hand}", need.program);
        }
    }
    Ok(())
}

fn apt_get(root: bool) -> Command {
    let mut command = Command::new(if root { "env" } else { "sudo" });
    if !root {
        // Nothing would show a prompt.
        command.arg("--non-interactive").arg("env");
    }
    command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]);
    command
}

pub(crate) fn is_root() -> bool {
    let id = Command::new("id").arg("-u").stderr(Stdio::null()).output();
    id.is_ok_and(|id| id.stdout.trim_ascii() == b"0")
}

fn has_lists() -> bool {
    let lists = std::fs::read_dir("/var/lib/apt/lists").into_iter().flatten().flatten();
    lists.into_iter().any(|entry| entry.file_name().to_string_lossy().contains("_Packages"))
}

/// A program on the PATH or in the folder where Debian installs servers, which not every user's PATH contains.
fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([Path::new("/usr/sbin").to_path_buf()]);
    folders.map(|folder| folder.join(program)).find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_names_commands_and_variables() {
        let text = advice(&[REDIS, OPENSSL], "cargo xtask test");
        assert!(text.starts_with("not installed: redis-server, openssl\n`cargo xtask test --install`"), "{text}");
        assert!(
            text.ends_with(
                "\n`LEASEHOLD_REDIS_SERVER=PATH cargo xtask test` uses the program PATH instead of redis-server"
            ),
            "{text}"
        );
    }
}
