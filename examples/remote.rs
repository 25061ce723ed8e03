//! Two programs, one tollgate, one limit; then an estimate that is settled.
//!
//!     cargo run --release                      # in another terminal: tollgate on 127.0.0.1:8080
//!     cargo run --release --example remote [http://127.0.0.1:8080]
//!
//! Five a minute, asked for by two clients in turn: five pass, whoever asks, and the sixth is told when to come back. Without
//! a tollgate nobody hangs: each client goes on with its share of the limit, which begins empty, and says so.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;
use tollgate::{Ask, Limit, Store};
use tollgate_remote::RemoteStore;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let url = std::env::args().nth(1).unwrap_or_else(|| "http://127.0.0.1:8080".to_owned());
    match ask(&url).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn ask(url: &str) -> Result<(), Box<dyn Error>> {
    // Two clients as two programs would have them. Each does without tollgate half of what the limit says.
    let client = || RemoteStore::builder(url).timeout(Duration::from_millis(250)).nodes(2).connect();
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
    }
    if let Some((_, trouble)) = ann.status().trouble {
        println!("{trouble}");
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
