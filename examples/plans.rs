//! A limit for each user, one for all users of a plan together, and one for all users: a request is
//! charged to all of them or to none.
//!
//!     cargo run --release --example plans

use ratekeeper::{Ask, Limit, MemoryStore, Store, keyed::TooManyLimitsError, store::LimitHandle};

struct Plan {
    name: &'static str,
    /// The limit of each user.
    user: LimitHandle,
    /// The limit of all users of the plan together.
    all: LimitHandle,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), TooManyLimitsError> {
    let store = MemoryStore::new();
    let plan = |name, user, all| {
        Ok(Plan {
            name,
            user: store.limit("user", Limit::per_minute(user))?,
            all: store.limit(name, Limit::per_minute(all))?,
        })
    };
    let (free, pro) = (plan("free", 2, 3)?, plan("pro", 5, 100)?);
    let everybody = store.limit("everybody", Limit::per_minute(7))?;

    println!("{:9}{:>16}{:>16}{:>16}", "", "user", "plan", "everybody");
    let requests = [
        ("ann", &free),
        ("ann", &free),
        ("ann", &free),
        ("bob", &free),
        ("cat", &free),
        ("dan", &pro),
    ];
    for (user, plan) in requests.into_iter().chain([("dan", &pro); 4]) {
        let asks = [
            Ask::new(&plan.user, user),
            Ask::new(&plan.all, ""),
            Ask::new(&everybody, ""),
        ];
        let verdict = store.decide(&asks).await;

        print!("{user}, {:4}", plan.name);
        for (at, status) in verdict.results().enumerate() {
            let binds = if verdict.binding() == Some(at) {
                "*"
            } else {
                " "
            };
            let decision = status.decision();
            let text = format!(
                "{} {}/{}{binds}",
                status.outcome().name(),
                decision.remaining(),
                decision.capacity()
            );
            print!("{text:>16}");
        }
        match verdict.retry_after() {
            Some(after) => println!("  429, Retry-After: {}", after.as_secs_f64().ceil()),
            None => println!("  200"),
        }
    }
    println!("\n* denied the request; the other limits were not charged");
    Ok(())
}
