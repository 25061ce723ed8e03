//! Counts the allocations of a decision by an engine of many policies. A program of its own,
//! because counting needs another allocator. Prints a line for each size: policies, allocations in
//! 1,000 decisions.

#[path = "policies.rs"]
#[allow(unreachable_pub)]
mod policies;

fn main() {
    for size in policies::SIZES {
        let (engine, path) = (policies::engine(size), policies::path(size));
        let decide = || assert!(engine.decide_now(&policies::subject(&path)).is_allowed());
        // The first decision of a thread registers it with the counters.
        decide();
        let counted = allocation_counter::measure(|| (0..1_000).for_each(|_| decide()));
        println!("{size} {}", counted.count_total);
    }
}
