//! `ratekeeper admin`: output and exit codes.

use crate::support::{Server, config_file, ratekeeper};
use crate::{TOKEN, check, get, serve};
use serde_json::{Value, json};
use std::net::TcpListener;

pub(crate) fn run(url: &str, args: &[&str], token: Option<&str>) -> (i32, String, String) {
    let mut command = ratekeeper();
    command
        .env_remove("RATEKEEPER_SERVER__ADMIN")
        .env_remove("RATEKEEPER_ADMIN_TOKEN");
    if let Some(token) = token {
        command.env("RATEKEEPER_ADMIN_TOKEN", token);
    }
    let output = command
        .arg("admin")
        .args(args)
        .args(["--url", url])
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

pub(crate) fn admin(node: &Server, args: &[&str]) -> (i32, String, String) {
    run(&format!("http://{}", node.admin), args, None)
}

/// The output of a successful command.
#[track_caller]
fn prints(node: &Server, args: &[&str]) -> String {
    let (code, out, error) = admin(node, args);
    assert_eq!((code, error.as_str()), (0, ""), "{args:?}: {out}");
    out
}

#[track_caller]
fn prints_json(node: &Server, args: &[&str]) -> Value {
    let out = prints(node, &[args, &["--format", "json"]].concat());
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{args:?}: {error}: {out}"))
}

#[test]
fn a_day_of_an_operator() {
    let node = serve(
        "",
        "[stats]\nkeys = \"plain\"\n[[policy]]\nname = \"watch\"\nkey = \"user\"\nlimit = \"2/d\"\naction = \"shadow\"\n",
    );
    for _ in 0..7 {
        check(&node, "ann");
    }
    let status = prints(&node, &["status"]);
    assert!(
        status.contains("7 requests: 5 allowed, 2 denied; 0 waiting\n"),
        "{status}"
    );
    assert!(status.contains("store: memory, "), "{status}");
    let policies = prints(&node, &["policies"]);
    let words = |line: &str| {
        line.split_whitespace()
            .map(ToOwned::to_owned)
            .collect::<Vec<_>>()
    };
    let line = policies
        .lines()
        .find(|line| line.starts_with("user "))
        .unwrap();
    assert_eq!(
        words(line),
        [
            "user", "enforce", "user", "5/d", "5", "2", "0", "0", "0", "5"
        ],
        "{policies}"
    );
    assert_eq!(
        prints_json(&node, &["policies"]),
        get(&node, "/admin/status")["policies"]
    );

    let top = prints(&node, &["top", "-n", "5"]);
    let line = top.lines().find(|line| line.starts_with("user ")).unwrap();
    assert_eq!(words(line), ["user", "user=ann", "7", "7"], "{top}");
    assert_eq!(
        prints_json(&node, &["top"])["most_denied"][0]["count"],
        json!(2)
    );
    let shadow = prints(&node, &["shadow"]);
    assert!(
        shadow.contains("Keys that watch would deny most\n") && shadow.contains("user=ann"),
        "{shadow}"
    );
    assert_eq!(prints_json(&node, &["shadow"]), get(&node, "/admin/shadow"));

    let (code, out, _) = admin(&node, &["explain", "user=ann"]);
    assert_eq!(code, 1);
    assert!(
        out.starts_with("denied by user with status 429; allowed in "),
        "{out}"
    );
    assert!(
        out.contains("\nuser\n  applies, counted by user=ann, shown as user=#"),
        "{out}"
    );
    assert!(
        out.contains("\n  5/d: denied, 0 of 5 left, costs 1"),
        "{out}"
    );
    let (code, out, _) = admin(&node, &["explain", "user=bob", "--cost", "2"]);
    assert_eq!(code, 0);
    assert!(out.starts_with("allowed\n"), "{out}");

    assert_eq!(
        prints(&node, &["overrides"]),
        "no active bans or overrides\n"
    );
    let out = prints(
        &node,
        &[
            "ban", "user", "user=bob", "--for", "1h", "--reason", "too loud",
        ],
    );
    assert!(
        out.starts_with("user=bob under user: banned until 2"),
        "{out}"
    );
    assert_eq!(check(&node, "bob").json()["reason"], json!("ban"));
    let out = prints(&node, &["overrides"]);
    assert!(
        out.contains("user=bob") && out.contains("ban") && out.contains("too loud"),
        "{out}"
    );
    assert_eq!(
        prints_json(&node, &["overrides"])[0]["reason"],
        json!("too loud")
    );
    assert_eq!(
        prints(&node, &["lift", "user", "user=bob"]),
        "user=bob under user: lifted\n"
    );
    assert_eq!(check(&node, "bob").status(), 200);

    let out = prints(
        &node,
        &[
            "override",
            "user",
            "user=carl",
            "--limit",
            "1/d",
            "--limit",
            "1/h",
            "--for",
            "1h",
        ],
    );
    assert!(
        out.starts_with("user=carl under user: limited to 1/d, 1/h until 2"),
        "{out}"
    );
    assert_eq!(
        [check(&node, "carl").status(), check(&node, "carl").status()],
        [200, 429]
    );
    assert_eq!(
        prints(&node, &["grant", "user", "user=ann", "--tokens", "1"]),
        "user=ann under user: 1 tokens granted\n"
    );
    assert_eq!(check(&node, "ann").status(), 200);
    assert_eq!(
        prints(&node, &["reset", "user", "user=carl"]),
        "user=carl under user: reset\n"
    );
    assert_eq!(prints_json(&node, &["overrides"]), json!([]));
    assert!(prints(&node, &["reload"]).ends_with("reloaded, 2 policies\n"));

    let out = prints(&node, &["audit"]);
    let actions: Vec<String> = out
        .lines()
        .skip(1)
        .filter_map(|line| words(line).get(2).cloned())
        .collect();
    assert_eq!(
        actions,
        ["reload", "reset", "grant", "override", "lift", "ban"],
        "{out}"
    );
    assert_eq!(
        prints_json(&node, &["audit", "-n", "1"])
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn the_token_comes_from_a_file_or_the_environment() {
    let node = serve(&format!("admin_token = \"{TOKEN}\""), "");
    let url = format!("http://{}", node.admin);
    let ban = ["ban", "user", "user=ann", "--for", "1h"];
    let (code, out, error) = run(&url, &ban, None);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(
        error.starts_with("ratekeeper: admin_token required"),
        "{error}"
    );
    assert!(
        error.ends_with("set --token-file FILE or RATEKEEPER_ADMIN_TOKEN\n"),
        "{error}"
    );
    let (code, _, error) = run(&url, &ban, Some("not that one at all"));
    assert_eq!(code, 1);
    assert!(
        error.starts_with("ratekeeper: wrong admin_token"),
        "{error}"
    );
    assert!(!error.contains("not that one at all"), "{error}");
    assert_eq!(run(&url, &ban, Some(TOKEN)).0, 0);

    let file = config_file(&format!("{TOKEN}\n"));
    let with_file = |file: &str| {
        run(
            &url,
            &["lift", "user", "user=ann", "--token-file", file],
            None,
        )
    };
    assert_eq!(with_file(file.to_str().unwrap()).0, 0);
    let (code, _, error) = with_file("/no/such/file");
    assert_eq!(code, 2);
    assert!(
        error.starts_with("ratekeeper: cannot read --token-file /no/such/file: No such file"),
        "{error}"
    );
    let (code, _, error) = with_file(config_file("\n").to_str().unwrap());
    assert_eq!(code, 2);
    assert!(
        error.contains("is empty; write the admin_token of [server] into it"),
        "{error}"
    );
}

#[test]
fn an_error_is_one_sentence_and_an_exit_code() {
    let node = serve("", "");
    for (args, code, message) in [
        (
            &["ban", "usr", "user=ann", "--for", "1h"][..],
            1,
            "ratekeeper: no policy named `usr`; policies: `user`\n",
        ),
        (
            &["lift", "user", "user=ann"],
            1,
            "ratekeeper: no ban or override for this key",
        ),
        (
            &["lift", "user", "ann"],
            2,
            "ratekeeper: `ann` has no value; write name=value, as in ip=203.0.113.7\n",
        ),
        (
            &["ban", "user", "user=ann", "--for", "soon"],
            1,
            "ratekeeper: `for`: `soon` is not a duration",
        ),
        (
            &["top", "-n", "0"],
            1,
            "ratekeeper: `n` must be a whole number from 1 to 1000, not `0`\n",
        ),
        (
            &["ban", "user", "user=ann"],
            2,
            "error: the following required arguments were not provided",
        ),
        (
            &[
                "override", "user", "user=ann", "--limit", "much", "--for", "1h",
            ],
            2,
            "error: invalid value 'much'",
        ),
    ] {
        let (found, out, error) = admin(&node, args);
        assert_eq!((found, out.as_str()), (code, ""), "{args:?}: {error}");
        assert!(error.starts_with(message), "{args:?}: {error}");
        assert!(code == 2 || error.lines().count() == 1, "{error}");
    }
    // A port without a listener.
    let gone = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let (code, _, error) = run(&format!("http://{gone}"), &["status"], None);
    assert_eq!(code, 2);
    assert!(
        error.starts_with(&format!("ratekeeper: cannot connect to http://{gone}: ")),
        "{error}"
    );
    // The decision listener does not have the path.
    let (code, _, error) = run(&format!("http://{}", node.address), &["status"], None);
    assert_eq!(code, 1);
    assert!(error.contains("no such path: `/admin/status`"), "{error}");
    let (code, _, error) = run("localhost:9090", &["status"], None);
    assert_eq!(code, 2);
    assert!(
        error.contains("write it as in --url http://127.0.0.1:9090"),
        "{error}"
    );
}
