//! The first limiter: two a second, five at once. Time is set by hand, so it is over at once.
//!
//!     cargo run --example first_limiter

use ratekeeper::{Limit, Limiter, ManualClock};
use std::time::Duration;

fn main() {
    let clock = ManualClock::new();
    let limiter = Limiter::with_clock(Limit::per_second(2).burst(5), clock.clone());

    let calls_at = |when: &str, calls: usize| {
        println!("\n{when}");
        let mut allowed = 0;
        for call in 1..=calls {
            let decision = limiter.check();
            allowed += usize::from(decision.is_allowed());
            match decision.retry_after() {
                None => println!("  call {call}: allowed, {} left", decision.remaining()),
                Some(after) => println!("  call {call}: denied, retry after {after:?}"),
            }
        }
        println!("  {allowed} of {calls} allowed");
    };

    println!("limit: {}", limiter.limit());
    calls_at("at first the bucket is full", 7);
    clock.advance(Duration::from_secs(1));
    calls_at("a second later it holds two", 3);
    clock.advance(Duration::from_secs(10));
    calls_at("ten seconds later it is full, and no more than full", 6);
}
