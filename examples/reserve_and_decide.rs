//! Reserves a slot, then decides by its delay: run now, wait if it is short, or cancel and answer
//! Retry-After if it is long.
//!
//!     cargo run --release --example reserve_and_decide

use ratekeeper::{Limit, Limiter, decision::ReserveError};
use std::time::Duration;

fn main() -> Result<(), ReserveError> {
    let limiter = Limiter::new(Limit::per_second(4).burst(2));
    let max_wait = Duration::from_millis(600);

    for request in 1..=7 {
        let slot = limiter.reserve(1)?;
        let delay = slot.delay();
        if delay.is_zero() {
            println!("request {request}: run now");
        } else if delay <= max_wait {
            // The slot stays reserved while other requests go on. Here all requests come at once,
            // so the example does not sleep.
            println!("request {request}: run in {delay:.0?}");
        } else {
            slot.cancel();
            // Retry-After is whole seconds, rounded up.
            println!(
                "request {request}: 429, Retry-After: {}",
                delay.as_secs_f64().ceil()
            );
        }
    }

    println!(
        "\ncancelled slots are free again: {:.1} tokens, not {}",
        limiter.tokens(),
        2 - 7
    );
    Ok(())
}
