//! The Lua scripts. Each starts with the prelude and includes the library where it says so. Scripts for several locks
//! also start with the batch part.

/// A script, and the digest by which the server finds it.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) source: String,
    pub(crate) digest: String,
}

impl Script {
    pub(crate) fn new(parts: &[&str]) -> Self {
        let source = parts.concat();
        let digest = redis::Script::new(&source).get_hash().to_owned();
        Self { source, digest }
    }
}

/// All scripts.
#[derive(Debug)]
pub(crate) struct Scripts {
    /// Acquires and releases locks.
    pub(crate) exchange: Script,
    pub(crate) renew: Script,
    pub(crate) inspect: Script,
    pub(crate) break_lock: Script,
    pub(crate) epoch: Script,
}

const PRELUDE: &str = include_str!("scripts/prelude.lua");
const BATCH: &str = include_str!("scripts/batch.lua");
const LIBRARY: &str = include_str!("scripts/library.lua");

/// The line that the library replaces.
const HERE: &str = "--@ library.lua\n";

impl Scripts {
    pub(crate) fn new() -> Self {
        let whole = |body: &str| Script::new(&[PRELUDE, &body.replace(HERE, LIBRARY)]);
        let batch = |bodies: &[&str]| whole(&[&[BATCH], bodies].concat().concat());
        Self {
            exchange: batch(&[include_str!("scripts/acquire.lua"), include_str!("scripts/release.lua")]),
            renew: batch(&[include_str!("scripts/renew.lua")]),
            inspect: whole(include_str!("scripts/inspect.lua")),
            break_lock: whole(include_str!("scripts/break.lua")),
            epoch: Script::new(&[include_str!("scripts/epoch.lua")]),
        }
    }

    /// A script of the user, which runs only while the caller's lease is current.
    pub(crate) fn fenced(body: &str) -> Script {
        let check = include_str!("scripts/fence.lua").replace(HERE, LIBRARY);
        Script::new(&["local function body(KEYS, ARGV)\n", body, "\nend\n", PRELUDE, &check])
    }
}
