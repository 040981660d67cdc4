//! A lease is lost, and its holder is notified at once, before another client can hold the lock.
//!
//! The lease here lasts one second without renewal, and the work takes longer. With renewal, which is the default, the
//! same happens to a holder that loses its connection to the store, or that is paused for too long.
//!
//! `cargo run --example lost`, or with a store: `cargo run --features redis --example lost -- redis://127.0.0.1:6379`

use std::time::{Duration, Instant};

use leasehold::ErrorKind;

const TTL: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> leasehold::Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://".to_owned());
    let client = leasehold::connect(&url).await?;
    let lock = client.lock("reports/daily").ttl(TTL).without_renewal();
    let start = Instant::now();

    // To decide yourself what happens at a loss, wait for the loss beside the work.
    let guard = lock.acquire().await?;
    println!("ann holds it, for {:?} at most", guard.validity());
    let next = tokio::spawn(async move { lock.acquire().await });
    tokio::select! {
        () = report() => unreachable!("the report takes longer than the lease"),
        loss = guard.lost() => println!("{:?}: ann lost it, {:?}: she stops", start.elapsed(), loss.reason),
    }
    assert!(!guard.is_held());

    // Ann was notified before Bob got the lock: her validity ends before her lease ends at the store.
    let guard = next.await.expect("the task runs to its end")?;
    println!("{:?}: bob holds it", start.elapsed());
    assert!(start.elapsed() >= TTL);

    // `run` does the same: it ends the work if the lease is lost.
    let error = guard.run(report()).await.expect_err("the report takes longer than the lease");
    println!("{:?}: bob lost it too, and his work was ended: {error}", start.elapsed());
    assert_eq!(error.kind(), ErrorKind::Lost);
    client.shutdown().await
}

async fn report() {
    tokio::time::sleep(10 * TTL).await;
}
