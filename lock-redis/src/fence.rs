//! Fenced writes: a write of the holder on the same server takes effect only while the lease is current.

use std::sync::Arc;

use leasehold_core::backend::RenewRequest;
use leasehold_core::{Error, ErrorKind, FencingToken, LockGuard, LockName, Result};
use redis::Value;

use crate::backend::RedisBackend;
use crate::cluster::{Declared, MoreKeys};
use crate::connection::{Connection, script_call};
use crate::errors::{BACKEND, Failure, refused, refused_to_script};
use crate::replies;
use crate::scripts::{Script, ScriptCalls, Scripts};

/// A Lua script of the user, for [`Fence::run`].
///
/// The script sees its own `KEYS` and `ARGV`, and its result is the reply. Create it once and keep it, because the
/// server then knows it by its digest.
#[derive(Debug)]
pub struct FencedScript(Script);

impl FencedScript {
    /// Takes the source of the script. It is sent unchanged, so user input must not be part of it: pass that in `ARGV`.
    pub fn new(body: &str) -> Self {
        Self(Scripts::fenced(body))
    }
}

/// Writes under a lease. Created by [`RedisBackend::fence`].
#[derive(Debug)]
pub struct Fence<'a> {
    backend: &'a RedisBackend,
    lease: RenewRequest,
    token: FencingToken,
}

impl RedisBackend {
    /// Returns a fence for the lease of `guard`, which must come from a client of this backend.
    ///
    /// A program that checks its guard and then writes can be paused in between. Here Redis checks and writes in one
    /// step, so it refuses the late write of a holder that lost its lease.
    ///
    /// ```no_run
    /// # async fn example() -> leasehold_core::Result<()> {
    /// use std::sync::Arc;
    /// use leasehold_core::LockClient;
    /// use leasehold_redis::{FencedScript, RedisBackend};
    ///
    /// let backend = Arc::new(RedisBackend::connect("redis://127.0.0.1:6379").await?);
    /// let client = LockClient::new(backend.clone());
    /// let guard = client.lock("account/7").acquire().await?;
    ///
    /// let pay_in = FencedScript::new("return redis.call('INCRBY', KEYS[1], ARGV[1])");
    /// let fence = backend.fence(&guard);
    /// fence.run(&pay_in, &[fence.key("balance")], &["20"]).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn fence(&self, guard: &LockGuard) -> Fence<'_> {
        Fence { backend: self, lease: guard.lease_ref(), token: guard.fencing_token() }
    }

    /// A key that can be written under the fence of the lock `name`. It has the lock's hash tag. The same key as
    /// [`Fence::key`], for readers that do not hold the lock.
    pub fn fenced_key(&self, name: &LockName, suffix: &str) -> String {
        self.servers.keys().fenced(name, suffix)
    }
}

impl Fence<'_> {
    /// A key that can be written under this fence. It has the lock's hash tag. The same suffix always gives the same
    /// key.
    pub fn key(&self, suffix: &str) -> String {
        self.backend.fenced_key(self.lease.claim.name(), suffix)
    }

    /// Runs a script if the lease is current by the server's own clock and record, in one step.
    ///
    /// # Errors
    /// - [`Lost`](leasehold_core::ErrorKind::Lost): the lease was not current, and nothing was written.
    /// - [`InvalidInput`](leasehold_core::ErrorKind::InvalidInput): a key is not one of [`key`](Self::key); nothing was
    ///   sent.
    /// - [`Indeterminate`](leasehold_core::ErrorKind::Indeterminate): there was no reply, or the script failed. What
    ///   the script wrote before it failed stays written.
    /// - [`Unavailable`](leasehold_core::ErrorKind::Unavailable), [`Auth`](leasehold_core::ErrorKind::Auth),
    ///   [`Capacity`](leasehold_core::ErrorKind::Capacity): nothing was written.
    /// - [`Unsupported`](leasehold_core::ErrorKind::Unsupported): the backend uses
    ///   [`ScriptCalls::Functions`](crate::ScriptCalls::Functions); nothing was sent.
    ///
    /// Returns within the backend's call bound.
    ///
    /// # Cancel safety
    /// A dropped call may or may not run. If it runs, the lease is current.
    pub async fn run<K, A>(&self, script: &FencedScript, keys: &[K], args: &[A]) -> Result<Value>
    where
        K: AsRef<str> + Sync,
        A: AsRef<[u8]> + Sync,
    {
        let name = self.lease.claim.name();
        self.try_run(script, keys, args).await.map_err(|error| error.during("write under", name, BACKEND))
    }

    async fn try_run<K, A>(&self, script: &FencedScript, keys: &[K], args: &[A]) -> Result<Value>
    where
        K: AsRef<str> + Sync,
        A: AsRef<[u8]> + Sync,
    {
        let own = self.key("");
        if let Some(foreign) = keys.iter().find(|key| !key.as_ref().starts_with(&own)) {
            let foreign = foreign.as_ref();
            return Err(Error::invalid(format!("`{foreign}` is not a key of this fence: take it from `Fence::key`")));
        }
        let servers = &self.backend.servers;
        if servers.settings().scripts == ScriptCalls::Functions {
            let text = "a fenced write is a script of your own, which needs `EVAL`: leave out `scripts=functions`";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let (record, until) = (&*servers.keys().record(self.lease.claim.name()), servers.until());
        let send = |connection: Arc<Connection>, declared: Declared| async move {
            let shared = connection.protocol();
            let mut call = script_call(&script.0, keys.len() + 1);
            call.arg(record);
            for key in keys {
                call.arg(key.as_ref());
            }
            call.arg(shared.common(declared, false));
            call.arg(&self.lease.claim.owner().as_bytes()[..]).arg(self.token.get());
            for arg in args {
                call.arg(arg.as_ref());
            }
            match connection.run_declared(&script.0, &call, declared, until).await {
                Err(Failure::ErrorReply(text)) if connection.redirection(&text).is_none() => {
                    Err(refused_to_script(&text))
                }
                reply => connection.refusals(reply),
            }
        };
        let Value::Array(mut reply) = servers.call(record, MoreKeys::RECORD, until, send).await? else {
            return Err(Failure::UnexpectedReply.into());
        };
        match reply.as_mut_slice() {
            [Value::Int(0)] => Err(Error::lease_ended()),
            [Value::Int(2), why] => {
                let why = replies::text(why).ok_or(Failure::UnexpectedReply)?;
                Err(refused(&why).without_effect())
            }
            // Lua drops a trailing nil, so the list is shorter if the script returns nothing.
            [Value::Int(1)] => Ok(Value::Nil),
            [Value::Int(1), value] => Ok(std::mem::replace(value, Value::Nil)),
            _ => Err(Failure::UnexpectedReply.into()),
        }
    }
}
