//! A client of a paid API that allows 5 calls a second: it waits before each call instead of being
//! denied.
//!
//!     cargo run --release --example paid_api

use ratekeeper::{Limit, Limiter, limiter::WaitError};
use std::time::{Duration, Instant};

/// The API: takes 20 ms, and bills every call above 5 a second.
async fn call(city: &str) -> String {
    tokio::time::sleep(Duration::from_millis(20)).await;
    format!("{city}: sunny")
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), WaitError> {
    let limiter = Limiter::new(Limit::per_second(5).burst(3));
    let start = Instant::now();

    for city in [
        "Oslo", "Lima", "Pune", "Bern", "Kyiv", "Accra", "Osaka", "Quito",
    ] {
        limiter.wait().await?;
        println!("{:4} ms  {}", start.elapsed().as_millis(), call(city).await);
    }

    // With a maximum wait a call fails immediately if it would have to wait longer.
    match limiter.wait_n(3).within(Duration::from_millis(100)).await {
        Ok(()) => println!("{:4} ms  three more", start.elapsed().as_millis()),
        Err(error) => println!(
            "{:4} ms  three more at once? {error}",
            start.elapsed().as_millis()
        ),
    }
    Ok(())
}
