//! Reserve a slot, look at its delay, then decide: run now, wait when it is short, cancel and say
//! Retry-After when long.
//!
//!     cargo run --release --example reserve_and_decide

use ratekeeper::{Limit, Limiter, decision::ReserveError};
use std::time::Duration;

fn main() -> Result<(), ReserveError> {
    let limiter = Limiter::new(Limit::per_second(4).burst(2));
    let patience = Duration::from_millis(600);

    for request in 1..=7 {
        let slot = limiter.reserve(1)?;
        let delay = slot.delay();
        if delay.is_zero() {
            println!("request {request}: run now");
        } else if delay <= patience {
            // Others may go on meanwhile: the slot is ours. Here requests come all at once, so
            // nobody sleeps yet.
            println!("request {request}: run in {delay:.0?}");
        } else {
            slot.cancel();
            // Whole seconds for HTTP, rounded up.
            println!(
                "request {request}: 429, Retry-After: {}",
                delay.as_secs_f64().ceil()
            );
        }
    }

    println!(
        "\nwhat was cancelled is free again: {:.1} tokens, not {}",
        limiter.tokens(),
        2 - 7
    );
    Ok(())
}
