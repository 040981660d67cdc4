//! Two workers take turns at one lock.
//!
//! `cargo run --example quickstart` needs no server. With a URL the same program locks on a real store:
//! `cargo run --features redis --example quickstart -- redis://127.0.0.1:6379`

use std::time::Duration;

use leasehold::LockClient;

#[tokio::main]
async fn main() -> leasehold::Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://".to_owned());
    let client = leasehold::connect(&url).await?;
    let (ann, bob) = tokio::join!(work(&client, "ann"), work(&client, "bob"));
    ann.and(bob)?;
    client.shutdown().await
}

async fn work(client: &LockClient, who: &str) -> leasehold::Result<()> {
    for turn in 1..=3 {
        let lock = client.lock("orders/42").ttl(Duration::from_secs(30)).wait(Duration::from_secs(5));
        let guard = lock.acquire().await?;
        println!("{who} holds {} for turn {turn}, fencing token {}", guard.name(), guard.fencing_token());
        tokio::time::sleep(Duration::from_millis(100)).await; // the work; the lease renews itself meanwhile
        guard.release().await?;
    }
    Ok(())
}
