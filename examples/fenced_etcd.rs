//! A holder is paused in its work, and etcd refuses its transaction, because the lease is no longer current.
//!
//! etcd compares the key of the lease and writes in one step. So there is no moment between the check and the write.
//!
//! `cargo run --features etcd --example fenced_etcd -- etcd://127.0.0.1:2379`
//! Building it needs `protoc`: apt-get install protobuf-compiler libprotobuf-dev

use std::error::Error;
use std::time::Duration;

use leasehold::etcd::etcd_client::{Client, Txn, TxnOp};
use leasehold::etcd::fence;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let Some(url) = std::env::args().nth(1) else {
        println!("usage: fenced_etcd etcd://host:2379");
        return Ok(());
    };
    let client = leasehold::connect(&url).await?;
    // The program's own connection.
    let host = url.trim_start_matches("etcd://").split(['/', '?']).next().unwrap_or_default().to_owned();
    let mut kv = Client::connect([host], None).await?.kv_client();

    // Ann holds the lock, and is paused before her transaction. A lease without renewal simulates a process that does
    // not run at all.
    let ann = client.lock("ledger").ttl(Duration::from_secs(1)).without_renewal().acquire().await?;
    let late = Txn::new().when([fence(&ann)?]).and_then([TxnOp::put("ledger", "ann: 10", None)]);

    // Meanwhile her lease ends, and Bob does his work.
    let bob = client.lock("ledger").acquire().await?;
    let write = Txn::new().when([fence(&bob)?]).and_then([TxnOp::put("ledger", "bob: 20", None)]);
    assert!(kv.txn(write).await?.succeeded());
    println!("bob wrote with token {}", bob.fencing_token());

    // Ann continues where she was paused.
    assert!(!kv.txn(late).await?.succeeded());
    let found = kv.get("ledger", None).await?;
    println!("ann's late transaction was refused, and the ledger has {:?}", found.kvs()[0].value_str()?);

    bob.release().await?;
    Ok(client.shutdown().await?)
}
