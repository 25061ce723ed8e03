//! Fingerprints as names of keys: the same everywhere and, with a configured secret, on all nodes
//! and after a restart.

use crate::cli::admin;
use crate::support::{Answer, Server, config_file, eventually, ratekeeper};
use crate::{get, post};
use ratekeeper_testkit::RedisServer;
use serde_json::{Value, json};

const SECRET: &str = "s3cret-of-a-client";

const POLICIES: &str = "[[policy]]\nname = \"keys\"\nkey = \"api_key\"\nlimit = \"5/d\"\n\
                        [[policy]]\nname = \"all\"\nlimit = \"1000/d\"\n\
                        [[policy]]\nname = \"both\"\nkey = [\"ip\", \"api_key\"]\nmissing = \"skip\"\nlimit = \"100/d\"\n";

fn node(more: &str) -> Server {
    Server::with_config(&format!(
        "[server]\nhttp = \"127.0.0.1:0\"\n{more}\n{POLICIES}"
    ))
}

fn ask(node: &Server) -> Answer {
    node.check(&json!({"subject": {"api_key": SECRET}}).to_string())
}

fn is_banned(node: &Server) -> bool {
    ask(node).json()["reason"] == json!("ban")
}

/// The fingerprint of the key in `explain`.
fn explained(node: &Server) -> String {
    let explained = post(
        node,
        "/admin/explain",
        &json!({"subject": {"api_key": SECRET}}),
    )
    .json();
    assert_eq!(
        explained["policies"][0]["key"], explained["policies"][0]["fingerprint"],
        "a secret is only shown as a fingerprint"
    );
    explained["policies"][0]["key"].as_str().unwrap().to_owned()
}

#[track_caller]
fn done(node: &Server, args: &[&str]) -> String {
    let (code, out, error) = admin(node, args);
    assert_eq!((code, error.as_str()), (0, ""), "{args:?}: {out}");
    out
}

#[test]
fn actions_accept_fingerprints() {
    for keys in ["fingerprint", "plain"] {
        let node = node(&format!("[stats]\nkeys = \"{keys}\"\n"));
        assert_eq!(ask(&node).status(), 200);
        let key = explained(&node);
        assert!(
            key.starts_with("api_key=#") && key.len() == "api_key=#".len() + 16,
            "{key}"
        );
        let out = done(&node, &["ban", "keys", &key, "--for", "1h"]);
        assert!(
            out.starts_with(&format!("{key} under keys: banned until 2")),
            "{out}"
        );
        assert!(is_banned(&node), "{keys}");
        assert_eq!(
            node.check(r#"{"subject":{"api_key":"another"}}"#).status(),
            200
        );
        assert_eq!(
            done(&node, &["lift", "keys", &key]),
            format!("{key} under keys: lifted\n")
        );
        assert!(!is_banned(&node));
        done(
            &node,
            &["override", "keys", &key, "--limit", "1/d", "--for", "1h"],
        );
        assert_eq!([ask(&node).status(), ask(&node).status()], [200, 429]);
        done(&node, &["reset", "keys", &key]);
        assert_eq!((0..9).filter(|_| ask(&node).status() == 200).count(), 5);
        done(&node, &["grant", "keys", &key, "--tokens", "2"]);
        assert_eq!((0..9).filter(|_| ask(&node).status() == 200).count(), 2);
        let (code, out, error) = admin(&node, &["explain", &key]);
        assert_eq!((code, error.as_str()), (1, ""));
        assert!(
            out.starts_with("denied by keys") && out.contains("5/d: denied, 0 of 5 left"),
            "{out}"
        );

        // Every list has the same fingerprint, which actions accept.
        let top = get(&node, "/admin/top");
        let most_active = |policy: &str| {
            let list = top["most_active"].as_array().unwrap();
            list.iter()
                .find(|row| row["policy"] == policy && row["count"] != 1)
                .unwrap()["fingerprint"]
                .clone()
        };
        assert_eq!(most_active("keys"), json!(key));
        post(
            &node,
            "/admin/ban",
            &json!({"policy": "keys", "subject": {"api_key": key.split_once('=').unwrap().1}, "for": "1h"}),
        );
        for list in ["/admin/overrides", "/admin/audit"] {
            assert_eq!(get(&node, list)[0]["key"], json!(key), "{list}");
        }
        // A part of a key may be a value, and another a fingerprint; a policy without a key needs
        // neither.
        done(
            &node,
            &["ban", "both", "ip=203.0.113.7", &key, "--for", "1h"],
        );
        let of = |ip: &str| {
            let body = json!({"subject": {"api_key": SECRET, "ip": ip}}).to_string();
            node.check(&body).json()["policy"].clone()
        };
        done(&node, &["lift", "keys", &key]);
        assert_eq!(
            (of("203.0.113.7"), of("203.0.113.8")),
            (json!("both"), json!("keys"))
        );
        done(&node, &["ban", "all", "--for", "1h"]);
        assert_eq!(
            node.check(r#"{"subject":{"api_key":"another"}}"#).json()["policy"],
            json!("all")
        );
        done(&node, &["lift", "all"]);
        node.signal("TERM");
        assert!(!node.ended().1.contains(SECRET));
    }
}

/// Keys counted by an address because their attribute is missing.
#[test]
fn actions_accept_fingerprints_of_keys_without_their_attribute() {
    for keys in ["fingerprint", "plain"] {
        let node = node(&format!("[stats]\nkeys = \"{keys}\"\n"));
        let ask = |ip: &str| node.check(&json!({"subject": {"ip": ip}}).to_string());
        let passes = |ip: &str| (0..9).filter(|_| ask(ip).status() == 200).count();
        assert_eq!(passes("203.0.113.7"), 5);
        let top = get(&node, "/admin/top");
        let list = top["most_denied"].as_array().unwrap();
        let row = list.iter().find(|row| row["policy"] == "keys").unwrap();
        let key = row["fingerprint"].as_str().unwrap();
        assert!(key.starts_with("api_key=#"), "{key}");
        let shown = match keys {
            "plain" => "ip=203.0.113.7",
            _ => key,
        };
        assert_eq!(row["key"], json!(shown));

        let (code, out, error) = admin(&node, &["explain", key]);
        assert_eq!((code, error.as_str()), (1, ""), "{keys}");
        assert!(
            out.starts_with("denied by keys") && out.contains("5/d: denied, 0 of 5 left"),
            "{out}"
        );
        // A different address names another key.
        let (code, _, error) = admin(&node, &["explain", key, "ip=203.0.113.8"]);
        assert_eq!(code, 1);
        assert!(
            error.contains("another address, ") && error.contains("; remove `ip`"),
            "{error}"
        );
        assert_eq!(admin(&node, &["explain", key, "ip=203.0.113.7"]).0, 1);

        done(&node, &["reset", "keys", key]);
        assert_eq!(passes("203.0.113.7"), 5);
        done(&node, &["grant", "keys", key, "--tokens", "2"]);
        assert_eq!(passes("203.0.113.7"), 2);
        done(
            &node,
            &["override", "keys", key, "--limit", "7/d", "--for", "1h"],
        );
        assert_eq!(passes("203.0.113.7"), 7);
        done(&node, &["lift", "keys", key]);
        done(&node, &["reset", "keys", key]);
        done(&node, &["ban", "keys", key, "--for", "1h"]);
        assert_eq!(ask("203.0.113.7").json()["reason"], json!("ban"));
        assert_eq!(ask("203.0.113.8").status(), 200, "another address");
        assert!(!is_banned(&node), "a separate key");
        assert_eq!(get(&node, "/admin/overrides")[0]["fingerprint"], json!(key));
        let (code, out, _) = admin(&node, &["explain", key]);
        assert_eq!(code, 1);
        assert!(out.contains("it is banned"), "{out}");
        done(&node, &["lift", "keys", key]);

        // Without an address either they share one bucket.
        assert_eq!(
            (0..9)
                .filter(|_| node.check(r#"{"subject":{}}"#).status() == 200)
                .count(),
            5
        );
        let top = get(&node, "/admin/top");
        let list = top["most_denied"].as_array().unwrap();
        let unknown = list
            .iter()
            .find(|row| row["policy"] == "keys" && row["fingerprint"] != key)
            .unwrap()["fingerprint"]
            .as_str()
            .unwrap();
        let (code, out, error) = admin(&node, &["explain", unknown]);
        assert_eq!((code, error.as_str()), (1, ""));
        assert!(out.starts_with("denied by keys"), "{out}");
        done(&node, &["ban", "keys", unknown, "--for", "1h"]);
        assert_eq!(
            node.check(r#"{"subject":{}}"#).json()["reason"],
            json!("ban")
        );
    }
}

#[test]
fn invalid_keys_are_rejected() {
    let node = node("");
    ask(&node);
    let wrong = "is not a fingerprint: a fingerprint is `#` and 16 hexadecimal digits, as in #f8c0a1b2c3d4e5f6";
    let cases = [
        (&["ban", "keys", "api_key=#f8c0…", "--for", "1h"][..], format!("`api_key`: `#f8c0…` {wrong}")),
        (&["ban", "keys", "api_key=#f8c0", "--for", "1h"], format!("`api_key`: `#f8c0` {wrong}")),
        (&["lift", "keys", "api_key=#f8c0a1b2c3d4e5f67"], format!("`api_key`: `#f8c0a1b2c3d4e5f67` {wrong}")),
        (&["reset", "keys", "api_key=#secret"], format!("`api_key`: `#secret` {wrong}")),
        (&["explain", "ip=#f8c0"], format!("`ip`: `#f8c0` {wrong}")),
        (
            &["ban", "keys", "api_key=x", "user=42", "--for", "1h"],
            "the policy `keys` counts by api_key, and `user` is not in its key; remove it".to_owned(),
        ),
        (
            &["ban", "keys", "api_kye=x", "--for", "1h"],
            "the policy `keys` counts by api_key, and `subject` lacks it; add it".to_owned(),
        ),
        (
            &["ban", "all", "user=42", "--for", "1h"],
            "the policy `all` has one bucket for all requests; remove `user`".to_owned(),
        ),
        (
            &["ban", "both", "api_key=#f8c0a1b2c3d4e5f6", "--for", "1h"],
            "the policy `both` counts by ip, and `subject` lacks it; add it".to_owned(),
        ),
        (
            &["explain", "api_kye=x"],
            "no policy uses `api_kye`; attributes in use: `ip`, `api_key`".to_owned(),
        ),
        (
            &["reset", "keys", "api_key=#f8c0a1b2c3d4e5f6"],
            "this node has not seen api_key=#f8c0a1b2c3d4e5f6 lately, so its counters cannot be found; give the \
             value itself, or ask a node that lists the key"
                .to_owned(),
        ),
        (
            &["grant", "keys", "api_key=#f8c0a1b2c3d4e5f6", "--tokens", "1"],
            "this node has not seen api_key=#f8c0a1b2c3d4e5f6 lately".to_owned(),
        ),
        (
            &["explain", "api_key=#f8c0a1b2c3d4e5f6"],
            "this node has not seen api_key=#f8c0a1b2c3d4e5f6 lately".to_owned(),
        ),
    ];
    for (args, message) in cases {
        let (code, out, error) = admin(&node, args);
        assert_eq!((code, out.as_str()), (1, ""), "{args:?}: {error}");
        assert!(
            error.starts_with(&format!("ratekeeper: {message}")),
            "{args:?}: {error}"
        );
    }
    assert_eq!(get(&node, "/admin/overrides"), json!([]));
    // In checks, values that look like fingerprints are values.
    assert_eq!(
        node.check(r##"{"subject":{"api_key":"#f8c0"}}"##).status(),
        200
    );
}

#[test]
fn with_a_secret_fingerprints_are_the_same_on_all_nodes_and_after_a_restart() {
    let secret = |of: char| format!("key_secret = \"{}\"\n", of.to_string().repeat(16));
    let redis = RedisServer::start();
    let on_redis = format!(
        "kind = \"redis\"\nurl = \"{}\"\ntimeout = \"5s\"\n",
        redis.url()
    );
    let of = |store: &str| explained(&node(&format!("[store]\n{store}")));
    let one = of(&secret('a'));
    assert_eq!(one, of(&secret('a')), "after a restart");
    assert_eq!(one, of(&(secret('a') + &on_redis)), "on Redis");
    assert_ne!(one, of(&secret('b')));
    assert_ne!(of(""), of(""));
    // Without a configured secret the nodes agree on one.
    let other = RedisServer::start();
    let agreed = format!(
        "kind = \"redis\"\nurl = \"{}\"\ntimeout = \"5s\"\n",
        other.url()
    );
    assert_eq!(of(&agreed), of(&agreed));
    // `ratekeeper explain` is another process.
    let file = config_file(&format!("[store]\n{}{POLICIES}", secret('a')));
    let mut command = ratekeeper();
    command
        .args([
            "explain",
            "--format",
            "json",
            "--subject",
            &format!("api_key={SECRET}"),
            "--config",
        ])
        .arg(file);
    let explained: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    assert_eq!(explained["policies"][0]["fingerprint"], json!(one));
}

#[test]
fn a_node_that_never_saw_the_key_bans_it_on_all() {
    let redis = RedisServer::start();
    let more = format!(
        "[store]\nkind = \"redis\"\nurl = \"{}\"\ntimeout = \"5s\"\n",
        redis.url()
    );
    let (one, other) = (node(&more), node(&more));
    ask(&one);
    let key = get(&one, "/admin/top")["most_active"][0]["key"]
        .as_str()
        .unwrap()
        .to_owned();
    done(&other, &["ban", "keys", &key, "--for", "1h"]);
    eventually("the ban", || is_banned(&one) && is_banned(&other));
    let rows = |node: &Server| get(node, "/admin/overrides")[0]["fingerprint"].clone();
    assert_eq!((rows(&one), rows(&other)), (json!(key), json!(key)));
    done(&one, &["lift", "keys", &key]);
    eventually("the end", || !is_banned(&one) && !is_banned(&other));
    done(
        &other,
        &["override", "keys", &key, "--limit", "2/d", "--for", "1h"],
    );
    eventually("the override", || {
        get(&one, "/admin/overrides")[0]["limits"] == json!(["2/d"])
    });
    assert_eq!((0..4).filter(|_| ask(&one).status() == 200).count(), 2);
    assert!(
        !redis
            .command(&["HGETALL", "ratekeeper:board"])
            .items()
            .iter()
            .any(|item| item.text() == Some(SECRET))
    );

    // Before nodes have agreed on a secret, their fingerprints differ, and none is accepted.
    redis.kill();
    let lonely = node(&more);
    let (code, _, error) = admin(&lonely, &["ban", "keys", &key, "--for", "1h"]);
    assert_eq!(code, 2);
    assert!(
        error.ends_with("name the key by its values instead of fingerprints\n"),
        "{error}"
    );
}
