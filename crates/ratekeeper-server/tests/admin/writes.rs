//! Who may change something, and what comes of it.

use crate::support::{eventually, refused};
use crate::{TOKEN, about, audit, ban, check, entry, get, post, post_with, serve};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Paths of what changes something.
const WRITES: [&str; 6] = [
    "/admin/ban",
    "/admin/override",
    "/admin/lift",
    "/admin/grant",
    "/admin/reset",
    "/admin/reload",
];

#[test]
fn nothing_changes_without_the_token_and_who_tried_is_remembered() {
    let node = serve(&format!("admin_token = \"{TOKEN}\""), "");
    let body = ban("ann", "1h").to_string();
    for path in WRITES {
        for (head, says) in [
            ("", "only who has the `admin_token`"),
            (
                "Authorization: Bearer something else entirely\r\n",
                "this is not the `admin_token`",
            ),
            (
                "Authorization: Basic YTpi\r\n",
                "only who has the `admin_token`",
            ),
        ] {
            let detail = post_with(&node, path, head, &body).problem(401, "unauthorized");
            assert!(detail.starts_with(says), "{detail}");
        }
    }
    assert_eq!(check(&node, "ann").status(), 200);
    assert_eq!(get(&node, "/admin/overrides"), json!([]));
    let tried = audit(&node);
    assert_eq!(tried.len(), 18);
    assert!(
        tried.iter().all(|(_, outcome)| outcome == "refused"),
        "{tried:?}"
    );
    assert_eq!(tried[17].0, "ban");

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
    // To look is for everybody who gets there, and so is to be told what would happen.
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
    assert_eq!(log.matches("operator: ban refused").count(), 3, "{log}");
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
fn off_loopback_nothing_changes_without_a_token() {
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
            detail.contains("not on loopback and has no token; set `admin_token`"),
            "{detail}"
        );
    }
    assert_eq!(audit(&node).len(), WRITES.len());
    assert_eq!(get(&node, "/admin/overrides"), json!([]));
}

#[test]
fn only_the_page_of_this_listener_may_change_something() {
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
    assert_eq!(audit(&node), vec![entry("ban", "refused"); 4]);
    assert_eq!(get(&node, "/admin/overrides"), json!([]));
    assert_eq!(
        post_with(&node, "/admin/ban", "Origin: http://localhost\r\n", &body).status(),
        200
    );
}

#[test]
fn a_ban_holds_until_it_is_lifted_or_over() {
    let node = serve("", "");
    let said = post(&node, "/admin/ban", &ban("ann", "1h")).json();
    assert_eq!(
        (&said["kind"], &said["policy"], &said["reason"]),
        (&json!("ban"), &json!("user"), &json!("scraping"))
    );
    let answer = check(&node, "ann");
    assert_eq!(
        (answer.status(), &answer.json()["reason"]),
        (429, &json!("ban"))
    );
    assert_eq!(check(&node, "bob").status(), 200);
    assert_eq!(get(&node, "/admin/overrides"), json!([said]));
    assert_eq!(post(&node, "/admin/lift", &about("ann")).status(), 200);
    assert_eq!(check(&node, "ann").status(), 200);
    let detail = post(&node, "/admin/lift", &about("ann")).problem(404, "not_found");
    assert!(
        detail.starts_with("there is no ban and no override of this key under `user`"),
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
fn an_override_stands_in_for_the_limits() {
    let node = serve("", "");
    let body = json!({"policy": "user", "subject": {"user": "ann"}, "limits": ["7/d", "6/h"], "for": "1d"});
    let said = post(&node, "/admin/override", &body).json();
    assert_eq!(
        (&said["kind"], &said["limits"]),
        (&json!("override"), &json!(["7/d", "6/h"]))
    );
    let admitted = (0..10)
        .filter(|_| check(&node, "ann").status() == 200)
        .count();
    assert_eq!(admitted, 6);
    assert_eq!(post(&node, "/admin/lift", &about("ann")).status(), 200);
    assert_eq!(
        (0..10)
            .filter(|_| check(&node, "ann").status() == 200)
            .count(),
        5
    );
}

#[test]
fn tokens_are_granted_and_a_key_is_made_fresh() {
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
    // Two pass, and then so many are turned away that the penalty bans.
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
    // The address is no part of the key of a user.
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
        explained["tried"][0]["missing"],
        json!({"attribute": "user", "action": "address"})
    );
}

#[test]
fn what_makes_no_sense_is_told_and_changes_nothing() {
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
            "no policy is called `usr`; there are `user`, `all`",
        ),
        (
            "/admin/ban",
            with("subject", json!({"method": "GET"})),
            400,
            "the policy `user` counts by user, and `subject` has none; add it",
        ),
        (
            "/admin/ban",
            with("for", json!("soon")),
            400,
            "`for` is `soon`, which is no time; write one as \"15min\", \"1h\" or \"7d\"",
        ),
        (
            "/admin/ban",
            with("for", json!("0s")),
            400,
            "`for` is `0s`, which is no time; write one as \"15min\", \"1h\" or \"7d\"",
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
            "`reason` is longer than 200 letters; write a shorter one",
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
            "`limits` has 0; name 1 to 8, as in [\"200/min\"]",
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
    for (path, body, status, says) in &cases {
        let answer = post(&node, path, body);
        let detail = answer.json()["detail"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert_eq!(answer.status(), *status, "{body}: {detail}");
        assert!(detail.starts_with(says), "{body}: {detail}");
    }
    post_with(&node, "/admin/ban", "", "{\"policy\":").problem(400, "invalid_json");
    post_with(&node, "/admin/ban", "", &"x".repeat(20_000)).problem(413, "body_too_large");
    assert_eq!(get(&node, "/admin/overrides"), json!([]));
    let tried = audit(&node);
    assert_eq!(tried.len(), cases.len() + 2);
    assert!(
        tried.iter().all(|(_, outcome)| outcome == "refused"),
        "{tried:?}"
    );
}

#[test]
fn the_audit_log_is_a_line_of_json_for_each() {
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
    let mut kept = get(&node, "/admin/audit").as_array().unwrap().clone();
    kept.reverse();
    assert_eq!(lines, kept);
    assert_eq!(
        (&lines[0]["outcome"], &lines[1]["outcome"]),
        (&json!("refused"), &json!("done"))
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

    // A file that cannot be written keeps nobody from doing what is to be done.
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
    assert_eq!(node.figure("ratekeeper_audit_lost_total"), 1.0);
    assert_eq!(audit(&node)[0], entry("lift", "done"));
    fs::remove_dir(&file).unwrap();
    // One that was moved away is begun anew.
    post(&node, "/admin/reload", &json!({}));
    assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 1);
    node.signal("TERM");
    let (_, log) = node.ended();
    assert_eq!(log.matches("the audit log ").count(), 1, "{log}");
}

#[test]
fn an_audit_log_that_cannot_be_written_is_told_at_the_start() {
    let (code, says) = refused(
        "[server]\nhttp = \"127.0.0.1:0\"\naudit_log = \"/no/such/directory/audit.jsonl\"\n",
    );
    assert_eq!(code, Some(2));
    let first = "ratekeeper: cannot write the audit log /no/such/directory/audit.jsonl: No such file or directory";
    assert!(
        says.contains(first) && says.contains("RATEKEEPER_SERVER__AUDIT_LOG"),
        "{says}"
    );
}
