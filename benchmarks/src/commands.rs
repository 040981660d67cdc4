//! How many commands clients have sent to a server.

use anyhow::{Context, Result};
use redis::aio::MultiplexedConnection;

/// The commands that clients send themselves. `total_commands_processed` cannot be used: it also counts the calls
/// inside scripts, as do the statistics of the commands that scripts call.
const SENT: &[&str] = &[
    "evalsha",
    "eval",
    "fcall",
    "script|load",
    "script|exists",
    "ping",
    "hello",
    "auth",
    "select",
    "client|setname",
    "client|setinfo",
    "client|id",
    "client|tracking",
    "subscribe",
    "unsubscribe",
    "ssubscribe",
    "psubscribe",
    "multi",
    "exec",
    "watch",
    "config|get",
    "acl|whoami",
    "role",
    "wait",
];

/// How many commands clients have sent, without those by which this benchmark reads the number.
pub(crate) async fn sent(connection: &mut MultiplexedConnection) -> Result<u64> {
    let info: String = redis::cmd("INFO").arg("commandstats").query_async(connection).await?;
    let mut sum = 0;
    for line in info.lines().filter_map(|line| line.strip_prefix("cmdstat_")) {
        let (command, statistics) = line.split_once(':').context("a line of commandstats has no colon")?;
        if SENT.contains(&command) {
            let calls = statistics.split(',').find_map(|field| field.strip_prefix("calls="));
            sum += calls.context("a line of commandstats has no calls")?.parse::<u64>()?;
        }
    }
    Ok(sum)
}
