//! Replays the corpora of the fuzz targets on stable: whatever a fuzzer found once stays found.

// Part of a library of its own elsewhere.
#[allow(unreachable_pub)]
#[path = "../../../fuzz/src/resp.rs"]
mod targets;

#[allow(unreachable_pub)]
#[path = "../../../fuzz/src/gateway/mod.rs"]
mod gateway;

#[path = "../../../fuzz/src/net.rs"]
mod net;

#[allow(unreachable_pub)]
#[path = "../../../fuzz/src/config.rs"]
mod config;

#[path = "../../../fuzz/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn every_text_of_the_corpus_loads_or_returns_errors() {
    replay("config", config::config);
}

#[test]
fn all_bytes_of_the_corpus_are_answered_alike_in_any_pieces() {
    replay("resp", targets::resp);
}

#[test]
fn what_passes_the_guard_of_the_gateway_is_understood_in_one_way() {
    replay("gateway", gateway::gateway);
}

#[test]
fn what_an_upstream_sends_comes_out_as_it_came_in_any_pieces() {
    replay("response", gateway::response);
}
