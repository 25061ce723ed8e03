//! Policies from text: decide requests, explain a denial, and change a limit while the program runs.
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
        let told = if verdict.is_allowed() {
            status
        } else {
            verdict.status()
        };
        println!("attempt {}: {told}", attempt + 1);
        if verdict.is_allowed() {
            engine.settle(verdict, Completion::status(status)).await; // a 200 gives it back
        }
    }

    let explained = engine.explain(&caller, 1).await;
    for tried in explained.traces() {
        println!(
            "{}: {:?}",
            tried.policy,
            tried.outcome.as_ref().map(|standing| &standing.key)
        );
    }
    println!("retry after {:?}", explained.verdict().retry_after());

    engine.set_policies(read(&FILE.replace("3/min", "6/min"))?)?; // what was left stays, the rate is the new one
    println!("now {:?}", engine.peek(&caller, 1).await.retry_after());
    Ok(())
}

/// Every problem of a text is a line with its place.
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
