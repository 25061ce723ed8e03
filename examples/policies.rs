//! Policies from a configuration text: decide requests, explain a denial, and change the limit at
//! runtime.
//!
//! Run it with `cargo run --example policies`.

use ratekeeper::MemoryStore;
use ratekeeper_policy::config::Config;
use ratekeeper_policy::{Completion, Engine, Policies, Subject};

const FILE: &str = r#"
[[policy]]
name = "login"
match = { method = ["POST"], path = "/login" }
key = ["ip"]
limit = "3/min"
count = "failures"
"#;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::new(MemoryStore::new(), read(FILE)?)?;
    let caller = Subject::new()
        .ip("203.0.113.7".parse()?)
        .method("POST")
        .path("/login");

    for (attempt, status) in [401, 200, 401, 401, 401].into_iter().enumerate() {
        let verdict = engine.decide(&caller).await;
        let shown = if verdict.is_allowed() {
            status
        } else {
            verdict.status()
        };
        println!("attempt {}: {shown}", attempt + 1);
        if verdict.is_allowed() {
            engine.settle(verdict, Completion::status(status)).await; // a 200 is refunded
        }
    }

    let explained = engine.explain(&caller).await;
    for trace in explained.traces() {
        println!(
            "{}: {:?}",
            trace.policy,
            trace.outcome.as_ref().map(|state| &state.key)
        );
    }
    println!("retry after {:?}", explained.verdict().retry_after());

    // Keeps what remains, at the new rate.
    engine.set_policies(read(&FILE.replace("3/min", "6/min"))?)?;
    println!("now {:?}", engine.peek(&caller).await.retry_after());
    Ok(())
}

/// Parses the policies; an error lists every problem with its location.
fn read(text: &str) -> Result<Policies, String> {
    let loaded = Config::parse("policies.toml", text, []);
    let problems = || {
        loaded
            .diagnostics
            .iter()
            .map(|problem| format!("{problem}\n"))
            .collect::<String>()
    };
    loaded
        .config
        .map(|config| config.policies)
        .ok_or_else(problems)
}
