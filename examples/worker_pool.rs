//! Five workers share one limit: 10 units a second, 20 at once. A job costs 1 to 3 units, and each
//! worker waits for them.
//!
//!     cargo run --release --example worker_pool

use ratekeeper::{Limit, Limiter, limiter::WaitError};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

fn main() -> Result<(), WaitError> {
    let limiter = Limiter::new(Limit::per_second(10).burst(20));
    let jobs = Mutex::new((1..=24u64).map(|job| (job, 1 + job % 3)));
    let (start, done) = (Instant::now(), AtomicU64::new(0));

    println!("  time  worker  job  cost");
    std::thread::scope(|scope| {
        let work = |worker: u32| {
            // The lock is held for the next job only, not while waiting.
            while let Some((job, cost)) = { jobs.lock().unwrap().next() } {
                limiter.wait_n(cost).blocking()?;
                println!(
                    "{:5.2}s  {worker:6}  {job:3}  {}",
                    start.elapsed().as_secs_f64(),
                    "#".repeat(cost as usize)
                );
                done.fetch_add(cost, Ordering::Relaxed);
            }
            Ok(())
        };
        let workers: Vec<_> = (1..=5)
            .map(|worker| scope.spawn(move || work(worker)))
            .collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().expect("a worker panicked"))
    })?;

    let (units, seconds) = (done.into_inner(), start.elapsed().as_secs_f64());
    println!(
        "\n{units} units in {seconds:.2} s: 20 at once, then {:.1} a second",
        (units - 20) as f64 / seconds
    );
    Ok(())
}
