//! A holder is paused in its work, and ZooKeeper refuses its multi, because the lease is no longer current.
//!
//! ZooKeeper checks the node of the lease and writes in one step. So there is no moment between the check and the
//! write.
//!
//! `cargo run --features zk --example fenced_zk -- zk://127.0.0.1:2181`

use std::error::Error;
use std::time::Duration;

use leasehold::zk::fence;
use leasehold::zk::zookeeper_client::{Acls, Client, CreateMode, Error as ZkError, MultiWriteError};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let Some(url) = std::env::args().nth(1) else {
        println!("usage: fenced_zk zk://host:2181");
        return Ok(());
    };
    let client = leasehold::connect(&url).await?;
    // The program's own connection.
    let hosts = url.trim_start_matches("zk://").split(['/', '?']).next().unwrap_or_default();
    let zk = Client::connect(hosts).await?;
    match zk.create("/ledger", b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await {
        Ok(_) | Err(ZkError::NodeExists) => {}
        Err(error) => return Err(error.into()),
    }

    // Ann holds the lock, and is paused before her multi. A lease without renewal simulates a process that does not run
    // at all.
    let ann = client.lock("ledger").ttl(Duration::from_secs(1)).without_renewal().acquire().await?;
    let mut late = zk.new_multi_writer();
    fence(&ann)?.check(&mut late)?;
    late.add_set_data("/ledger", b"ann: 10", None)?;

    // Meanwhile her lease ends, and Bob does his work.
    let bob = client.lock("ledger").acquire().await?;
    let mut write = zk.new_multi_writer();
    fence(&bob)?.check(&mut write)?;
    write.add_set_data("/ledger", b"bob: 20", None)?;
    write.commit().await?;
    println!("bob wrote with token {}", bob.fencing_token());

    // Ann continues where she was paused.
    let refused = late.commit().await;
    assert!(matches!(refused, Err(MultiWriteError::OperationFailed { source: ZkError::NoNode, .. })), "{refused:?}");
    let (data, _) = zk.get_data("/ledger").await?;
    println!("ann's late multi was refused, and the ledger has {:?}", String::from_utf8_lossy(&data));

    bob.release().await?;
    Ok(client.shutdown().await?)
}
