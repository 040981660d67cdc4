//! The scripts, each with the prelude before it.

/// A script and the digest by which the server knows it.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) source: String,
    pub(crate) digest: String,
}

impl Script {
    fn new(parts: &[&str]) -> Self {
        let source = parts.concat();
        let digest = redis::Script::new(&source).get_hash().to_owned();
        Self { source, digest }
    }
}

/// All scripts.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) acquire: Script,
    pub(crate) renew: Script,
    pub(crate) release: Script,
    pub(crate) inspect: Script,
    pub(crate) epoch: Script,
}

const PRELUDE: &str = include_str!("scripts/prelude.lua");

impl Scripts {
    pub(crate) fn new() -> Self {
        let with_prelude = |body| Script::new(&[PRELUDE, body]);
        Self {
            acquire: with_prelude(include_str!("scripts/acquire.lua")),
            renew: with_prelude(include_str!("scripts/renew.lua")),
            release: with_prelude(include_str!("scripts/release.lua")),
            inspect: with_prelude(include_str!("scripts/inspect.lua")),
            epoch: Script::new(&[include_str!("scripts/epoch.lua")]),
        }
    }

    /// A user's own body, which runs only while the lease of the caller is current.
    pub(crate) fn fenced(body: &str) -> Script {
        Script::new(&["local function body(KEYS, ARGV)\n", body, "\nend\n", PRELUDE, include_str!("scripts/fence.lua")])
    }
}
