//! The first limiter: two a second, five at once. A manual clock lets it finish immediately.
//!
//!     cargo run --example first_limiter

use ratekeeper::{Limit, Limiter, ManualClock};
use std::time::Duration;

fn main() {
    let clock = ManualClock::new();
    let limiter = Limiter::with_clock(Limit::per_second(2).burst(5), clock.clone());

    let call = |when: &str, calls: usize| {
        println!("\n{when}");
        let mut allowed = 0;
        for number in 1..=calls {
            let decision = limiter.check();
            allowed += usize::from(decision.is_allowed());
            match decision.retry_after() {
                None => println!("  call {number}: allowed, {} left", decision.remaining()),
                Some(after) => println!("  call {number}: denied, retry after {after:?}"),
            }
        }
        println!("  {allowed} of {calls} allowed");
    };

    println!("limit: {}", limiter.limit());
    call("at first the bucket is full", 7);
    clock.advance(Duration::from_secs(1));
    call("a second later it holds two", 3);
    clock.advance(Duration::from_secs(10));
    call("ten seconds later it is full, and no more than full", 6);
}
