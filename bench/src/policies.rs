//! Engines of many policies of which three apply, for the group `policies` and for counting
//! instructions.

use ratekeeper::clock::SystemClock;
use ratekeeper::{Clock, Limit, MemoryStore};
use ratekeeper_policy::{Engine, Match, Policies, Policy, Subject};
use std::net::{IpAddr, Ipv4Addr};

/// The numbers of policies measured.
pub(crate) const SIZES: [usize; 3] = [10, 100, 1_000];

/// A limit that is never reached, so that every call takes the same path.
pub(crate) fn wide() -> Limit {
    Limit::per_second(1_000_000_000)
}

/// Builds an engine: each policy applies to a path of its own, but two apply everywhere.
pub(crate) fn engine(policies: usize) -> Engine<MemoryStore> {
    engine_with_clock(policies, SystemClock)
}

/// The same on another clock.
pub(crate) fn engine_with_clock<C: Clock>(policies: usize, clock: C) -> Engine<MemoryStore<C>> {
    let one = |number: usize| {
        let path = format!("/service{number}/items/**")
            .parse()
            .expect("a pattern");
        Policy::new(format!("service{number}"))
            .matching(Match::new().path(path))
            .key("ip")
            .limit(wide())
    };
    let everywhere = Policies::new()
        .policy(Policy::new("each").key("user").limit(wide()))
        .policy(Policy::new("all").limit(wide()));
    let all = (2..policies).map(one).fold(everywhere, Policies::policy);
    let store = MemoryStore::builder().max_keys(10_000).clock(clock).build();
    Engine::new(store, all).expect("they are right")
}

/// A request that three policies apply to, the last one among them.
pub(crate) fn subject(path: &str) -> Subject<'_> {
    Subject::new()
        .ip(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7)))
        .user("user-42")
        .method("GET")
        .path(path)
}

/// The path of a request that three policies apply to.
pub(crate) fn path(policies: usize) -> String {
    format!("/service{}/items/42", policies - 1)
}
