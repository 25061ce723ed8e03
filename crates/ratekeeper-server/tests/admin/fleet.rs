//! Bans and overrides set on one node apply on others, on real Redis servers.

use crate::support::{Server, config_file, eventually, ratekeeper};
use crate::{about, audit, ban, check, entry, get, post};
use ratekeeper_testkit::{RedisCluster, RedisServer};
use serde_json::{Value, json};
use std::path::PathBuf;

fn file(url: &str) -> PathBuf {
    config_file(&format!(
        "[server]\nhttp = \"127.0.0.1:0\"\n[store]\nkind = \"redis\"\nurl = \"{url}\"\ntimeout = \"5s\"\n\
         [[policy]]\nname = \"user\"\nkey = \"user\"\nlimit = \"5/d\"\n"
    ))
}

fn node(file: &PathBuf) -> Server {
    let mut command = ratekeeper();
    command.args(["serve", "--config"]).arg(file);
    Server::run(command)
}

/// The texts on the board.
fn board(redis: &RedisServer) -> String {
    let all = redis.command(&["HGETALL", "ratekeeper:board"]);
    all.items()
        .iter()
        .filter_map(|item| item.text())
        .collect::<Vec<_>>()
        .join("\n")
}

fn is_banned(node: &Server, user: &str) -> bool {
    check(node, user).json()["reason"] == json!("ban")
}

#[test]
fn a_ban_applies_on_all_nodes_and_after_a_restart() {
    let redis = RedisServer::start();
    let file = file(redis.url());
    let (one, other) = (node(&file), node(&file));
    let response = post(&one, "/admin/ban", &ban("someone", "1h"));
    assert_eq!(response.status(), 200, "{response:?}");
    assert!(is_banned(&one, "someone"), "active where it was set");
    eventually("the ban on the other", || is_banned(&other, "someone"));
    assert!(!is_banned(&other, "bob"));
    // Both list the same entry, and Redis has no key in plain text.
    let here = get(&one, "/admin/overrides");
    let there = get(&other, "/admin/overrides");
    let of = |list: &Value| {
        json!([
            list[0]["policy"],
            list[0]["key"],
            list[0]["kind"],
            list[0]["reason"],
            list[0]["node"]
        ])
    };
    assert_eq!(of(&here), of(&there));
    assert!(
        here[0]["node"]
            .as_str()
            .is_some_and(|node| node.ends_with(&format!("/{}", one.id()))),
        "{here}"
    );
    let board = board(&redis);
    assert!(
        board.contains("ban:") && !board.contains("someone"),
        "{board}"
    );
    assert!(
        redis
            .command(&["PTTL", "ratekeeper:board"])
            .int()
            .is_some_and(|left| left > 0)
    );

    drop(one);
    let again = node(&file);
    assert!(is_banned(&again, "someone"), "from its first decision on");
    assert_eq!(post(&again, "/admin/lift", &about("someone")).status(), 200);
    assert!(!is_banned(&again, "someone"));
    eventually("the end on the other", || !is_banned(&other, "someone"));
    post(&again, "/admin/lift", &about("someone")).problem(404, "not_found");
}

#[test]
fn an_override_applies_and_ends_on_all_nodes() {
    let redis = RedisServer::start();
    let file = file(redis.url());
    let (one, other) = (node(&file), node(&file));
    let body =
        json!({"policy": "user", "subject": {"user": "ann"}, "limits": ["3/d"], "for": "1h"});
    assert_eq!(post(&one, "/admin/override", &body).status(), 200);
    eventually("the override", || {
        get(&other, "/admin/overrides")[0]["limits"] == json!(["3/d"])
    });
    let allowed =
        [&one, &other, &one, &other, &one, &other].map(|node| check(node, "ann").status() == 200);
    assert_eq!(
        allowed.iter().filter(|yes| **yes).count(),
        3,
        "one bucket for both"
    );
    assert_eq!(post(&other, "/admin/reset", &about("ann")).status(), 200);
    eventually("the end", || get(&one, "/admin/overrides") == json!([]));
    assert_eq!(check(&one, "ann").json()["limits"][0]["limit"], json!(5));

    assert_eq!(post(&one, "/admin/ban", &ban("bob", "400ms")).status(), 200);
    eventually("the end by itself", || {
        !is_banned(&one, "bob") && !is_banned(&other, "bob")
    });
    // Tokens are in Redis, and so for all.
    let spent = [&one, &other, &one, &other, &one, &other].map(|node| check(node, "carl").status());
    assert_eq!(spent.iter().filter(|status| **status == 200).count(), 5);
    post(
        &one,
        "/admin/grant",
        &json!({"policy": "user", "subject": {"user": "carl"}, "tokens": 1}),
    );
    assert_eq!(check(&other, "carl").status(), 200);
}

#[test]
fn nodes_restore_the_board_of_a_flushed_redis() {
    let redis = RedisServer::start();
    let file = file(redis.url());
    let (one, other) = (node(&file), node(&file));
    post(&one, "/admin/ban", &ban("ann", "1h"));
    post(&one, "/admin/ban", &ban("bob", "1h"));
    post(&one, "/admin/lift", &about("bob"));
    eventually("both on the other", || {
        is_banned(&other, "ann")
            && get(&other, "/admin/overrides")
                .as_array()
                .is_some_and(|all| all.len() == 1)
    });
    redis.kill();
    eventually("that it is gone", || {
        get(&one, "/admin/status")["store"]["fallback_active"] == json!(true)
    });
    // Decisions read memory only.
    assert!(is_banned(&one, "ann") && is_banned(&other, "ann"));
    redis.restart();
    redis.command(&["FLUSHALL"]);
    // Lifted bans stay lifted.
    eventually("the board", || board(&redis).matches("ban:").count() == 2);
    assert!(is_banned(&one, "ann") && is_banned(&other, "ann"));
    assert!(is_banned(&node(&file), "ann"), "a new node loads it");
    assert!(!is_banned(&one, "bob") && !is_banned(&other, "bob"));
    // Later changes work.
    assert_eq!(post(&other, "/admin/lift", &about("ann")).status(), 200);
    eventually("the end", || {
        !is_banned(&one, "ann") && !is_banned(&other, "ann")
    });
}

#[test]
fn without_redis_a_ban_is_local_and_the_error_says_so() {
    let redis = RedisServer::start();
    let file = file(redis.url());
    let one = node(&file);
    check(&one, "ann");
    redis.kill();
    eventually("that it is gone", || {
        get(&one, "/admin/status")["store"]["fallback_active"] == json!(true)
    });
    let detail = post(&one, "/admin/ban", &ban("ann", "1h")).problem(503, "unavailable");
    assert!(
        detail.starts_with("Redis cannot be reached")
            && detail.contains("set on this node only; repeat when Redis is back"),
        "{detail}"
    );
    assert!(is_banned(&one, "ann"));
    for (path, body, message) in [
        (
            "/admin/grant",
            json!({"policy": "user", "subject": {"user": "ann"}, "tokens": 1}),
            "nothing was granted",
        ),
        ("/admin/reset", about("ann"), "nothing was reset"),
        ("/admin/lift", about("bob"), "nothing was lifted"),
        ("/admin/lift", about("ann"), "lifted on this node only"),
    ] {
        let detail = post(&one, path, &body).problem(503, "unavailable");
        assert!(
            detail.starts_with("Redis ") && detail.ends_with(message),
            "{detail}"
        );
    }
    assert!(!is_banned(&one, "ann"));
    assert_eq!(audit(&one)[4], entry("ban", "failed"));
    // Explain does not wait for Redis.
    assert_eq!(
        post(&one, "/admin/explain", &json!({"subject": {"user": "ann"}})).status(),
        200
    );
    redis.restart();
    eventually("the way back", || {
        post(&one, "/admin/ban", &ban("carl", "1h")).status() == 200
    });
}

#[test]
fn a_node_that_starts_without_redis_loads_bans_later() {
    let redis = RedisServer::builder().aof(true).start();
    let file = file(redis.url());
    post(&node(&file), "/admin/ban", &ban("ann", "1h"));
    redis.kill();
    let other = node(&file);
    assert!(!is_banned(&other, "ann"));
    redis.restart();
    eventually("the ban", || is_banned(&other, "ann"));
}

#[test]
fn in_a_cluster_bans_reach_all_nodes() {
    let cluster = RedisCluster::start();
    let file = file(&cluster.url());
    let (one, other) = (node(&file), node(&file));
    eventually("the first ban", || {
        post(&one, "/admin/ban", &ban("ann", "1h")).status() == 200
    });
    eventually("the ban on the other", || is_banned(&other, "ann"));
    // The primary with the board fails; its replica takes over.
    let primary = cluster.primary(cluster.slot("ratekeeper:{fleet}:board"));
    primary.kill();
    assert!(is_banned(&one, "ann") && is_banned(&other, "ann"));
    cluster.await_whole();
    eventually("a ban afterwards", || {
        post(&one, "/admin/ban", &ban("bob", "1h")).status() == 200
    });
    eventually("that on the other", || {
        is_banned(&other, "bob") && is_banned(&other, "ann")
    });
}
