//! A holder is paused in its work, and MySQL refuses its transaction, because the lease is no longer current.
//!
//! The database checks the lease inside the transaction, and no other client can be granted the lock until the
//! transaction ends. So there is no moment between the check and the write.
//!
//! `cargo run --features mysql --example fenced_sql -- mysql://user:password@127.0.0.1/database`
//! The user needs the permission to create tables.

use std::error::Error;
use std::time::Duration;

use leasehold::ErrorKind;
use leasehold::mysql::sqlx::mysql::MySqlPool;
use leasehold::mysql::{MySqlBackend, fence, sqlx};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let Some(url) = std::env::args().nth(1) else {
        println!("usage: fenced_sql mysql://user:password@host/database");
        return Ok(());
    };
    MySqlBackend::create_schema(&url).await?;
    let client = leasehold::connect(&url).await?;
    // The program's own connections. sqlx ignores Leasehold's settings in the URL.
    let pool = MySqlPool::connect(url.split('?').next().unwrap_or_default()).await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS ledger (line VARCHAR(100) NOT NULL)").execute(&pool).await?;

    // Ann holds the lock, and is paused before her transaction. A lease without renewal simulates a process that does
    // not run at all.
    let ann = client.lock("ledger").ttl(Duration::from_secs(1)).without_renewal().acquire().await?;

    // Meanwhile her lease ends, and Bob does his work.
    let bob = client.lock("ledger").acquire().await?;
    let mut transaction = pool.begin().await?;
    fence(&mut transaction, &bob).await?;
    sqlx::query("INSERT INTO ledger VALUES ('bob: 20')").execute(&mut *transaction).await?;
    transaction.commit().await?;
    println!("bob wrote with token {}", bob.fencing_token());

    // Ann continues where she was paused.
    let mut transaction = pool.begin().await?;
    let refused = fence(&mut transaction, &ann).await.expect_err("bob holds the lock");
    transaction.rollback().await?;
    assert_eq!(refused.kind(), ErrorKind::Lost);
    println!("ann's late transaction was refused: {refused}");

    bob.release().await?;
    Ok(client.shutdown().await?)
}
