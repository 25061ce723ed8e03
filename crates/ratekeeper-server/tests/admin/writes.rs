//! Changes by operators: authorization and effects.

use crate::support::{eventually, failed_start};
use crate::{TOKEN, about, audit, ban, check, entry, get, post, post_with, serve};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Paths of changes.
const WRITES: [&str; 6] = [
    "/admin/ban",
    "/admin/override",
    "/admin/lift",
    "/admin/grant",
    "/admin/reset",
    "/admin/reload",
];

#[test]
fn without_the_token_changes_are_rejected_and_recorded() {
    let node = serve(&format!("admin_token = \"{TOKEN}\""), "");
    let body = ban("ann", "1h").to_string();
    for path in WRITES {
        for (head, message) in [
            ("", "admin_token required"),
            (
                "Authorization: Bearer something else entirely\r\n",
                "wrong admin_token",
            ),
            ("Authorization: Basic YTpi\r\n", "admin_token required"),
        ] {
            let detail = post_with(&node, path, head, &body).problem(401, "unauthorized");
            assert!(detail.starts_with(message), "{detail}");
        }
    }
    assert_eq!(check(&node, "ann").status(), 200);
    assert_eq!(get(&node, "/admin/overrides"), json!([]));
    let attempts = audit(&node);
    assert_eq!(attempts.len(), 18);
    assert!(
        attempts.iter().all(|(_, outcome)| outcome == "rejected"),
        "{attempts:?}"
    );
    assert_eq!(attempts[17].0, "ban");

    let with_token = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(
        post_with(&node, "/admin/ban", &with_token, &body).status(),
        200
    );
    check(&node, "ann").json()["reason"]
        .as_str()
        .filter(|reason| *reason == "ban")
        .unwrap();
    assert_eq!(audit(&node)[0], entry("ban", "done"));
    // Reads and explain need no token.
    assert_eq!(
        post(
            &node,
            "/admin/explain",
            &json!({"subject": {"user": "ann"}})
        )
        .status(),
        200
    );
    node.signal("TERM");
    let (_, log) = node.ended();
    assert_eq!(log.matches("operator: ban rejected").count(), 3, "{log}");
    assert!(
        log.contains("operator: ban done who=\"127.0.0.1\" action=\"ban\" policy=\"user\""),
        "{log}"
    );
    assert!(
        !log.contains(TOKEN) && !log.contains("something else entirely"),
        "{log}"
    );
}

#[test]
fn off_loopback_changes_require_a_token() {
    let file = "[server]\nhttp = \"127.0.0.1:0\"\n[[policy]]\nname = \"user\"\nkey = \"user\"\nlimit = \"5/d\"\n";
    let mut command = crate::support::ratekeeper();
    command.env("RATEKEEPER_SERVER__ADMIN", "0.0.0.0:0");
    command
        .args(["serve", "--config"])
        .arg(crate::support::config_file(file));
    let node = crate::support::Server::run(command);
    for path in WRITES {
        let detail = post(&node, path, &ban("ann", "1h")).problem(403, "forbidden");
        assert!(
            detail.contains("not on loopback and no admin_token; set `admin_token`"),
            "{detail}"
        );
    }
    assert_eq!(audit(&node).len(), WRITES.len());
    assert_eq!(get(&node, "/admin/overrides"), json!([]));
}

#[test]
fn changes_from_other_origins_are_rejected() {
    let node = serve("", "");
    let body = ban("ann", "1h").to_string();
    for head in [
        "Origin: http://evil.example\r\n",
        "Origin: null\r\n",
        "Origin: http://localhost:1\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
    ] {
        let detail = post_with(&node, "/admin/ban", head, &body).problem(403, "forbidden");
        assert!(
            detail.starts_with("cross-origin request rejected"),
            "{detail}"
        );
    }
    assert_eq!(audit(&node), vec![entry("ban", "rejected"); 4]);
    assert_eq!(get(&node, "/admin/overrides"), json!([]));
    assert_eq!(
        post_with(&node, "/admin/ban", "Origin: http://localhost\r\n", &body).status(),
        200
    );
}

#[test]
fn a_ban_lasts_until_lifted_or_expired() {
    let node = serve("", "");
    let entry = post(&node, "/admin/ban", &ban("ann", "1h")).json();
    assert_eq!(
        (&entry["kind"], &entry["policy"], &entry["reason"]),
        (&json!("ban"), &json!("user"), &json!("scraping"))
    );
    let answer = check(&node, "ann");
    assert_eq!(
        (answer.status(), &answer.json()["reason"]),
        (429, &json!("ban"))
    );
    assert_eq!(check(&node, "bob").status(), 200);
    assert_eq!(get(&node, "/admin/overrides"), json!([entry]));
    assert_eq!(post(&node, "/admin/lift", &about("ann")).status(), 200);
    assert_eq!(check(&node, "ann").status(), 200);
    let detail = post(&node, "/admin/lift", &about("ann")).problem(404, "not_found");
    assert!(
        detail.starts_with("no ban or override for this key under `user`"),
        "{detail}"
    );

    assert_eq!(
        post(&node, "/admin/ban", &ban("ann", "300ms")).status(),
        200
    );
    eventually("the end of the ban", || {
        check(&node, "ann").json()["reason"] == json!("limits")
    });
    assert_eq!(get(&node, "/admin/overrides"), json!([]));
}

#[test]
fn an_override_replaces_the_limits() {
    let node = serve("", "");
    let body = json!({"policy": "user", "subject": {"user": "ann"}, "limits": ["7/d", "6/h"], "for": "1d"});
    let entry = post(&node, "/admin/override", &body).json();
    assert_eq!(
        (&entry["kind"], &entry["limits"]),
        (&json!("override"), &json!(["7/d", "6/h"]))
    );
    let allowed = (0..10)
        .filter(|_| check(&node, "ann").status() == 200)
        .count();
    assert_eq!(allowed, 6);
    assert_eq!(post(&node, "/admin/lift", &about("ann")).status(), 200);
    assert_eq!(
        (0..10)
            .filter(|_| check(&node, "ann").status() == 200)
            .count(),
        5
    );
}

#[test]
fn tokens_are_granted_and_a_key_is_reset() {
    let node = serve(
        "",
        "penalty = { denials = 2, within = \"1h\", ban = \"1h\" }\n",
    );
    let spend = || {
        (0..6)
            .filter(|_| check(&node, "ann").status() == 200)
            .count()
    };
    assert_eq!(spend(), 5);
    let granted = post(
        &node,
        "/admin/grant",
        &json!({"policy": "user", "subject": {"user": "ann"}, "tokens": 2}),
    );
    assert_eq!(
        (granted.status(), &granted.json()["tokens"]),
        (200, &json!(2))
    );
    // Two are allowed, then enough denials for the penalty to ban.
    assert_eq!(spend(), 2);
    eventually("the ban", || {
        check(&node, "ann").json()["reason"] == json!("ban")
    });
    post(&node, "/admin/ban", &ban("ann", "1h"));
    assert_eq!(post(&node, "/admin/reset", &about("ann")).status(), 200);
    assert_eq!(get(&node, "/admin/overrides"), json!([]));
    assert_eq!(spend(), 5);
    assert_eq!(
        audit(&node),
        [
            entry("reset", "done"),
            entry("ban", "done"),
            entry("grant", "done")
        ]
    );
}

#[test]
fn requests_without_a_user_are_banned_by_their_address() {
    let node = serve("", "[stats]\nkeys = \"plain\"\n");
    let subject = json!({"ip": "203.0.113.7"});
    let ban = json!({"policy": "user", "subject": subject, "for": "1h"});
    assert_eq!(
        post(&node, "/admin/ban", &ban).json()["key"],
        json!("ip=203.0.113.7")
    );
    let check = |subject: &Value| {
        node.check(&json!({"subject": subject}).to_string())
            .status()
    };
    assert_eq!(check(&subject), 429);
    assert_eq!(check(&json!({"ip": "203.0.113.7", "user": "ann"})), 200);
    assert_eq!(check(&json!({"ip": "203.0.113.8"})), 200);
    // The address is not part of the key of a user.
    let both =
        json!({"policy": "user", "subject": {"ip": "203.0.113.7", "user": "ann"}, "for": "1h"});
    post(&node, "/admin/ban", &both).problem(400, "invalid_field");
    let explained = post(
        &node,
        "/admin/explain",
        &json!({"subject": {"ip": "203.0.113.8"}}),
    )
    .json();
    assert_eq!(
        explained["policies"][0]["missing"],
        json!({"attribute": "user", "action": "address"})
    );
}

#[test]
fn invalid_requests_are_rejected_and_change_nothing() {
    let node = serve("", "[[policy]]\nname = \"all\"\nlimit = \"100/d\"\n");
    let with = |name: &str, value: Value| {
        let mut body = ban("ann", "1h");
        body[name] = value;
        body
    };
    let cases = [
        (
            "/admin/ban",
            with("policy", json!("usr")),
            404,
            "no policy named `usr`; policies: `user`, `all`",
        ),
        (
            "/admin/ban",
            with("subject", json!({"method": "GET"})),
            400,
            "the policy `user` counts by user, and `subject` lacks it; add it",
        ),
        (
            "/admin/ban",
            with("for", json!("soon")),
            400,
            "`for`: `soon` is not a duration; use \"15min\", \"1h\" or \"7d\"",
        ),
        (
            "/admin/ban",
            with("for", json!("0s")),
            400,
            "`for`: `0s` is not a duration; use \"15min\", \"1h\" or \"7d\"",
        ),
        (
            "/admin/ban",
            with("for", json!("10000d")),
            400,
            "the duration must be longer than zero and at most a year",
        ),
        (
            "/admin/ban",
            with("for", Value::Null),
            400,
            "`for` is missing; the minimum is ",
        ),
        (
            "/admin/ban",
            with("reason", json!("x".repeat(201))),
            400,
            "`reason` is longer than 200 characters; shorten it",
        ),
        (
            "/admin/ban",
            with("tokens", json!(1)),
            400,
            "unknown field `tokens`; known: policy, subject, for, reason",
        ),
        (
            "/admin/override",
            ban("ann", "1h"),
            400,
            "`limits` is missing; the minimum is ",
        ),
        (
            "/admin/override",
            with("limits", json!([])),
            400,
            "`limits` has 0 entries; send 1 to 8, as in [\"200/min\"]",
        ),
        (
            "/admin/override",
            with("limits", json!([5])),
            400,
            "`limits` must be a list of texts, as in [\"200/min\"], not 5",
        ),
        (
            "/admin/override",
            with("limits", json!(["much"])),
            400,
            "`limits`: `much`: ",
        ),
        (
            "/admin/grant",
            about("ann"),
            400,
            "`tokens` is missing; the minimum is ",
        ),
        (
            "/admin/reset",
            json!({"subject": {"user": "ann"}}),
            400,
            "`policy` is missing; the minimum is ",
        ),
        (
            "/admin/lift",
            json!({"policy": "user"}),
            400,
            "`subject` is missing; the minimum is ",
        ),
    ];
    for (path, body, status, message) in &cases {
        let answer = post(&node, path, body);
        let detail = answer.json()["detail"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert_eq!(answer.status(), *status, "{body}: {detail}");
        assert!(detail.starts_with(message), "{body}: {detail}");
    }
    post_with(&node, "/admin/ban", "", "{\"policy\":").problem(400, "invalid_json");
    post_with(&node, "/admin/ban", "", &"x".repeat(20_000)).problem(413, "body_too_large");
    assert_eq!(get(&node, "/admin/overrides"), json!([]));
    let attempts = audit(&node);
    assert_eq!(attempts.len(), cases.len() + 2);
    assert!(
        attempts.iter().all(|(_, outcome)| outcome == "rejected"),
        "{attempts:?}"
    );
}

#[test]
fn the_audit_log_has_a_json_line_for_each_entry() {
    let file = crate::support::config_file("").with_extension("audit");
    let _ = fs::remove_file(&file);
    let node = serve(
        &format!(
            "audit_log = \"{}\"\nadmin_token = \"{TOKEN}\"",
            file.display()
        ),
        "",
    );
    let with_token = format!("Authorization: Bearer {TOKEN}\r\n");
    post(&node, "/admin/ban", &ban("someone", "1h"));
    post_with(
        &node,
        "/admin/ban",
        &with_token,
        &ban("someone", "1h").to_string(),
    );
    let lines: Vec<Value> = fs::read_to_string(&file)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let mut entries = get(&node, "/admin/audit").as_array().unwrap().clone();
    entries.reverse();
    assert_eq!(lines, entries);
    assert_eq!(
        (&lines[0]["outcome"], &lines[1]["outcome"]),
        (&json!("rejected"), &json!("done"))
    );
    assert_eq!(
        (&lines[1]["who"], &lines[1]["detail"]),
        (&json!("127.0.0.1"), &json!("for 1h \"scraping\""))
    );
    assert!(!lines[1].to_string().contains("someone"), "{lines:?}");
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );

    // Actions are performed even if the file cannot be written.
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert_eq!(
        post_with(
            &node,
            "/admin/lift",
            &with_token,
            &about("someone").to_string()
        )
        .status(),
        200
    );
    assert_eq!(node.metric("ratekeeper_audit_lost_total"), 1.0);
    assert_eq!(audit(&node)[0], entry("lift", "done"));
    fs::remove_dir(&file).unwrap();
    // A file that was moved away is created again.
    post(&node, "/admin/reload", &json!({}));
    assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 1);
    node.signal("TERM");
    let (_, log) = node.ended();
    assert_eq!(
        log.matches("cannot write the audit log ").count(),
        1,
        "{log}"
    );
}

#[test]
fn an_audit_log_that_cannot_be_written_fails_the_start() {
    let (code, message) = failed_start(
        "[server]\nhttp = \"127.0.0.1:0\"\naudit_log = \"/no/such/directory/audit.jsonl\"\n",
    );
    assert_eq!(code, Some(2));
    let first = "ratekeeper: cannot write the audit log /no/such/directory/audit.jsonl: No such file or directory";
    assert!(
        message.contains(first) && message.contains("RATEKEEPER_SERVER__AUDIT_LOG"),
        "{message}"
    );
}
