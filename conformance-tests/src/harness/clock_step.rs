//! A wall clock that can be stepped, for one process at a time.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The library between a process and the machine's clock. It is written in C, because a preloaded Rust library would
/// need unsafe code here. A machine that links Rust programs has a C compiler.
const SOURCE: &str = include_str!("clock_step.c");

/// The step of a process's wall clock, zero at first. Linux only.
#[derive(Debug)]
pub struct ClockStep {
    library: PathBuf,
    file: PathBuf,
    micros: Mutex<i64>,
}

impl ClockStep {
    /// Writes its files into this folder.
    ///
    /// # Errors
    /// If there is no C compiler (the error says how to install it), or a file cannot be written.
    pub fn new(folder: &Path) -> io::Result<Self> {
        if !cfg!(target_os = "linux") {
            return Err(io::Error::other("a process's clock can be stepped on Linux only"));
        }
        static COMPILED: OnceLock<Result<Vec<u8>, String>> = OnceLock::new();
        let compiled = COMPILED.get_or_init(|| compile().map_err(|error| error.to_string()));
        let compiled = compiled.as_ref().map_err(|error| io::Error::other(error.clone()))?;
        let (library, file) = (folder.join("clock_step.so"), folder.join("clock_step"));
        std::fs::write(&library, compiled)?;
        std::fs::write(&file, 0_i64.to_ne_bytes())?;
        Ok(Self { library, file, micros: Mutex::new(0) })
    }

    /// The environment variables of a program that uses the stepped clock.
    pub fn variables(&self) -> [(&'static str, &Path); 2] {
        [("LD_PRELOAD", &self.library), ("LEASEHOLD_CLOCK_STEP", &self.file)]
    }

    /// Steps the clock, at once.
    ///
    /// # Errors
    /// Those of the system.
    pub fn step(&self, micros: i64) -> io::Result<()> {
        let mut total = self.micros.lock().unwrap_or_else(PoisonError::into_inner);
        *total += micros;
        // In place: the process has mapped this file.
        OpenOptions::new().write(true).open(&self.file)?.write_all(&total.to_ne_bytes())
    }
}

fn compile() -> io::Result<Vec<u8>> {
    let folder = tempfile::Builder::new().prefix("leasehold-clock-").tempdir()?;
    let (source, library) = (folder.path().join("clock_step.c"), folder.path().join("clock_step.so"));
    std::fs::write(&source, SOURCE)?;
    let mut command = Command::new("cc");
    command.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
    let output = command.output().map_err(|error| {
        io::Error::other(format!(
            "a process's clock is stepped by a file in C, and `cc` cannot be run ({error}): `apt-get install gcc`"
        ))
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("clock_step.c does not compile here: {said}")));
    }
    std::fs::read(library)
}
