//! A holder continues too late after a pause and writes, and the protected resource refuses the write.
//!
//! No lease can stop such a write, because the holder was paused between its last check of the lock and the write. Only
//! the resource can stop it, by the fencing token: it stores the highest token that it has seen and refuses any lower
//! one.
//!
//! `cargo run --example fencing`, or with a store: `cargo run --features redis --example fencing --
//! redis://127.0.0.1:6379`

use std::time::Duration;

use leasehold::FencingToken;

/// What the lock protects: a file, a table, an object store, or anything else that can compare two numbers when it
/// writes.
#[derive(Default)]
struct Ledger {
    highest: Option<FencingToken>,
    lines: Vec<String>,
}

impl Ledger {
    fn write(&mut self, token: FencingToken, line: &str) -> Result<(), String> {
        if self.highest.is_some_and(|highest| token < highest) {
            return Err(format!("token {token} is stale, {} was seen", self.highest.expect("just compared")));
        }
        self.highest = Some(token);
        self.lines.push(line.to_owned());
        Ok(())
    }
}

#[tokio::main]
async fn main() -> leasehold::Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://".to_owned());
    let client = leasehold::connect(&url).await?;
    let mut ledger = Ledger::default();

    // Ann checks that she holds the lock, and is paused right before her write: by a garbage collection, the migration
    // of a virtual machine, or a closed laptop lid. A lease without renewal simulates a process that does not run at
    // all.
    let ann = client.lock("ledger").ttl(Duration::from_secs(1)).without_renewal().acquire().await?;
    assert!(ann.is_held());
    let token_of_ann = ann.fencing_token();

    // Meanwhile her lease ends, and Bob does his work.
    let bob = client.lock("ledger").acquire().await?;
    ledger.write(bob.fencing_token(), "bob: 20").expect("bob holds the lock");
    println!("bob wrote with token {}", bob.fencing_token());

    // Ann continues where she was paused.
    let refused = ledger.write(token_of_ann, "ann: 10").expect_err("bob's token is higher");
    println!("ann's late write was refused: {refused}");
    assert_eq!(ledger.lines, ["bob: 20"]);

    bob.release().await?;
    client.shutdown().await
}
