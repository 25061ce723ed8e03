//! The first limiter: two a second, five at once. Time is set by hand, so it is over at once.
//!
//!     cargo run --example first_limiter

use ratekeeper::{Limit, Limiter, ManualClock};
use std::time::Duration;

fn main() {
    let clock = ManualClock::new();
    let limiter = Limiter::with_clock(Limit::per_second(2).burst(5), clock.clone());

    let knock = |when: &str, calls: usize| {
        println!("\n{when}");
        let mut passed = 0;
        for call in 1..=calls {
            let decision = limiter.check();
            passed += usize::from(decision.is_allowed());
            match decision.retry_after() {
                None => println!("  call {call}: passes, {} left", decision.remaining()),
                Some(after) => println!("  call {call}: turned away, come back in {after:?}"),
            }
        }
        println!("  {passed} of {calls} passed");
    };

    println!("limit: {}", limiter.limit());
    knock("at first the bucket is full", 7);
    clock.advance(Duration::from_secs(1));
    knock("a second later it holds two", 3);
    clock.advance(Duration::from_secs(10));
    knock("ten seconds later it is full, and no more than full", 6);
}
