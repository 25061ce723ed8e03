//! A limit that follows the load: above 0.8 it is 50 a second, above 0.5 it is 100, else 200.
//! Changing it keeps the tokens.
//!
//!     cargo run --example follow_load

use ratekeeper::{Limit, Limiter, ManualClock};
use std::time::Duration;

fn limit_for(load: f64) -> Limit {
    let rate = match load {
        load if load > 0.8 => 50,
        load if load > 0.5 => 100,
        _ => 200,
    };
    Limit::per_second(rate).burst(20)
}

fn main() {
    let clock = ManualClock::new();
    let limiter = Limiter::with_clock(limit_for(0.0), clock.clone());

    println!("second  load   limit            allowed of 300 calls");
    for (second, load) in [0.20, 0.45, 0.60, 0.75, 0.90, 0.95, 0.70, 0.40]
        .into_iter()
        .enumerate()
    {
        limiter.set_limit(limit_for(load));
        let mut allowed = 0;
        for _ in 0..300 {
            clock.advance(Duration::from_nanos(1_000_000_000 / 300));
            allowed += usize::from(limiter.check().is_allowed());
        }
        let limit = limiter.limit().to_string();
        println!(
            "{second:6}  {load:.2}   {limit:15}  {allowed:3} {}",
            "▇".repeat(allowed / 6)
        );
    }
}
