//! The Lua scripts. Each starts with the prelude and includes the library where it says so. Scripts for several locks
//! also start with the batch part.
//!
//! A user who may not run `EVAL` calls them as functions (`FCALL`), which an operator has loaded. Their names contain the
//! digest of all scripts, so that clients of two versions can use one server.

use std::sync::OnceLock;

use crate::quorum;

/// How the scripts are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ScriptCalls {
    /// With `EVALSHA`, and with `EVAL` if the server does not know the script yet.
    #[default]
    Eval,
    /// With `FCALL`, for a user who may not run `EVAL`. An operator must have loaded [`functions`]. Needs Redis 7.0 or
    /// later. URL: `scripts=functions`.
    Functions,
}

impl ScriptCalls {
    /// The permissions to call scripts, as rules of `ACL SETUSER`.
    pub(crate) const fn permissions(self) -> &'static str {
        match self {
            Self::Eval => "+eval +evalsha",
            Self::Functions => "+fcall",
        }
    }
}

/// A script, and how the server finds it.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) source: String,
    pub(crate) command: &'static str,
    /// The digest, or the name of the function.
    pub(crate) id: String,
}

impl Script {
    pub(crate) fn new(calls: ScriptCalls, name: &str, source: String) -> Self {
        match calls {
            ScriptCalls::Eval => Self { command: "EVALSHA", id: digest(&source), source },
            ScriptCalls::Functions => Self { command: "FCALL", id: function(name), source },
        }
    }

    pub(crate) fn is_function(&self) -> bool {
        self.command == "FCALL"
    }
}

fn digest(source: &str) -> String {
    redis::Script::new(source).get_hash().to_owned()
}

/// All scripts of a single server.
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

const PUT_BACK: &str = include_str!("scripts/put_back.lua");

/// The line that the library replaces.
const HERE: &str = "--@ library.lua\n";

/// The line in `renew.lua` that the part for leases of an earlier run replaces.
const PUT_BACK_HERE: &str = "--@ put_back.lua\n";

impl Scripts {
    pub(crate) fn new(calls: ScriptCalls) -> Self {
        let script = |(name, source)| Script::new(calls, name, source);
        let [exchange, renew, inspect, break_lock, epoch] = sources().map(script);
        Self { exchange, renew, inspect, break_lock, epoch }
    }

    /// A script of the user, which runs only while the caller's lease is current. It cannot be a function, because the
    /// operator does not know it.
    pub(crate) fn fenced(body: &str) -> Script {
        let check = include_str!("scripts/fence.lua").replace(HERE, LIBRARY);
        let source = ["local function body(KEYS, ARGV)\n", body, "\nend\n", PRELUDE, &check].concat();
        Script::new(ScriptCalls::Eval, "fenced", source)
    }
}

/// The names and sources of the scripts of a single server.
fn sources() -> [(&'static str, String); 5] {
    let whole = |body: &str| [PRELUDE, &body.replace(HERE, LIBRARY)].concat();
    let batch = |bodies: &[&str]| whole(&[&[BATCH], bodies].concat().concat());
    [
        ("exchange", batch(&[include_str!("scripts/acquire.lua"), include_str!("scripts/release.lua")])),
        ("renew", batch(&[&include_str!("scripts/renew.lua").replace(PUT_BACK_HERE, PUT_BACK)])),
        ("inspect", whole(include_str!("scripts/inspect.lua"))),
        ("break", whole(include_str!("scripts/break.lua"))),
        ("epoch", include_str!("scripts/epoch.lua").to_owned()),
    ]
}

/// The scripts of a single server and of a quorum.
fn all_sources() -> impl Iterator<Item = (&'static str, String)> {
    sources().into_iter().chain(quorum::sources())
}

/// Changes with each change of a script.
fn version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| {
        let all: String = all_sources().map(|(_, source)| source).collect();
        digest(&all)[..12].to_owned()
    })
}

fn function(name: &str) -> String {
    format!("leasehold_{name}_{}", version())
}

/// The library of functions for users who may not run `EVAL`: see [`ScriptCalls::Functions`]. `leasehold functions
/// redis` prints it, and `redis-cli -x FUNCTION LOAD` loads it. Its name contains its version, and the libraries of two
/// versions can be loaded at once. `FUNCTION DELETE` removes one that no client uses any more.
pub fn functions() -> String {
    // A full server would refuse every function without this flag, also those that renew and release leases.
    let register = |(name, source)| {
        format!(
            "redis.register_function{{function_name = '{}', flags = {{'allow-oom'}}, callback = function(KEYS, ARGV)\n\
             {source}\nend}}\n",
            function(name)
        )
    };
    let bodies: String = all_sources().map(register).collect();
    format!("#!lua name=leasehold_{}\n{bodies}", version())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_library_has_each_function_that_is_called() {
        let library = functions();
        let named: BTreeSet<_> = all_sources().map(|(name, _)| function(name)).collect();
        assert_eq!(named.len(), all_sources().count());
        assert!(named.iter().all(|name| library.contains(&format!("function_name = '{name}'"))));
        let Scripts { exchange, renew, .. } = Scripts::new(ScriptCalls::Functions);
        for script in [exchange, renew] {
            assert!(script.command == "FCALL" && named.contains(&script.id), "{}", script.id);
        }
    }
}
