//! Upstream selection.

use super::*;
use crate::config::Config;

fn upstreams(balance: &str) -> Upstreams {
    let text = format!(
        "[gateway]\nupstreams = [\"http://a\", \"http://b\", \"http://c\"]\nbalance = \"{balance}\"\n[[policy]]\nname = \"x\"\nlimit = \"1/s\"\n"
    );
    let gateway = Config::parse("", &text, []).config.unwrap().gateway;
    let routes = Routes::new(&gateway, 1, None).unwrap();
    Upstreams::new(routes.peers().to_vec(), gateway.balance)
}

fn pick(upstreams: &Upstreams, key: &str) -> SelectedUpstream {
    upstreams
        .pick(key.as_bytes(), &TriedPeers::new())
        .ok()
        .unwrap()
}

#[test]
fn round_robin_chooses_one_after_the_other() {
    let upstreams = upstreams("round_robin");
    let selected: Vec<usize> = (0..6).map(|_| pick(&upstreams, "").index).collect();
    assert_eq!(selected, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn least_takes_the_least_busy() {
    let upstreams = upstreams("least");
    let held: Vec<SelectedUpstream> = (0..3).map(|_| pick(&upstreams, "")).collect();
    let mut indices: Vec<usize> = held.iter().map(|selected| selected.index).collect();
    indices.sort_unstable();
    assert_eq!(indices, [0, 1, 2]);
    let free = held[1].index;
    drop(held.into_iter().nth(1));
    // The others are no longer in use either, but this one was chosen before them.
    let _busy: Vec<SelectedUpstream> = (0..3).map(|_| pick(&upstreams, "")).collect();
    assert!(upstreams.peers[free].active() >= 1);
}

#[test]
fn by_key_is_stable_and_losing_an_upstream_moves_only_its_keys() {
    let upstreams = upstreams("by_key");
    let keys: Vec<String> = (0..300).map(|key| format!("203.0.113.{key}")).collect();
    let before: Vec<usize> = keys.iter().map(|key| pick(&upstreams, key).index).collect();
    assert_eq!(
        before,
        keys.iter()
            .map(|key| pick(&upstreams, key).index)
            .collect::<Vec<_>>()
    );
    for index in 0..3 {
        let many = before.iter().filter(|one| **one == index).count();
        assert!((50..150).contains(&many), "{index} has {many} of 300");
    }
    upstreams.peers[1].healthy.store(false, Relaxed);
    for (key, before) in keys.iter().zip(before) {
        let now = pick(&upstreams, key).index;
        assert!(if before == 1 { now != 1 } else { now == before });
    }
}

#[test]
fn failing_upstreams_are_skipped_unless_all_are_unhealthy() {
    let upstreams = upstreams("round_robin");
    for _ in 0..20 {
        let mut selected = upstreams
            .pick(b"", &TriedPeers::from_slice(&[1, 2]))
            .ok()
            .unwrap();
        assert_eq!(selected.index, 0);
        selected.report(false);
    }
    assert!((0..9).all(|_| pick(&upstreams, "").index != 0));
    let none = upstreams
        .pick(b"", &TriedPeers::from_slice(&[1, 2]))
        .err()
        .unwrap();
    assert!(none.retry_after.is_some_and(|after| !after.is_zero()));
    for peer in &upstreams.peers {
        peer.healthy.store(false, Relaxed);
    }
    assert_ne!(pick(&upstreams, "").index, 0);
}
