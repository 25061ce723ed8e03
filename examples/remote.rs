//! Two programs, one tollgate, one limit; then an estimate that is settled.
//!
//!     cargo run --release                      # in another terminal: tollgate on 127.0.0.1:8080
//!     cargo run --release --example remote [http://127.0.0.1:8080]
//!
//! Five a minute, asked for by two clients in turn: five pass, whoever asks, and the sixth is told when to come back. Without
//! a tollgate nobody hangs: each client goes on with its share of the limit and says so.

use std::error::Error;
use std::time::Duration;
use tollgate::{Ask, Limit, Source, Store};
use tollgate_remote::RemoteStore;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "http://127.0.0.1:8080".to_owned());
    // Two clients as two programs would have them. Each does without tollgate half of what the limit says.
    let client = || RemoteStore::builder(&url).timeout(Duration::from_millis(250)).nodes(2).connect();
    let (ann, bob) = (client().await?, client().await?);
    // A name of its own for each run, so that it begins with a full bucket.
    let name = format!("example {}", std::process::id());
    let (of_ann, of_bob) = (ann.limit(&name, Limit::per_minute(5))?, bob.limit(&name, Limit::per_minute(5))?);

    for turn in 1..=6 {
        let (who, store, limit) = if turn % 2 == 1 { ("ann", &ann, &of_ann) } else { ("bob", &bob, &of_bob) };
        let verdict = store.decide(&[Ask::new(limit, "shared")]).await;
        match verdict.retry_after() {
            None => println!("{turn} {who}: passes, decided by {}", verdict.source()),
            Some(after) => println!("{turn} {who}: in {after:.1?}, decided by {}", verdict.source()),
        }
        if verdict.source() != Source::Remote {
            println!("  {}", ann.status().trouble.map_or_else(String::new, |(_, trouble)| trouble.to_string()));
        }
    }

    // Five are thought to be needed; it was one. The others are there for everybody.
    let estimate = ann.decide(&[Ask::new(&of_ann, "a task").cost(5)]).await;
    if estimate.is_allowed() {
        ann.settle(estimate, &[1]).await;
        let left = bob.decide(&[Ask::new(&of_bob, "a task").cost(4)]).await;
        println!("settled: bob's four {}", if left.is_allowed() { "fit" } else { "do not fit" });
    }
    Ok(())
}
