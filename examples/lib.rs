//! One screen each: `cargo run --example first_limiter`, `worker_pool`, `paid_api`, `reserve_and_decide`,
//! `plans`, `follow_load`.
