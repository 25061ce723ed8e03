//! `ratekeeper config` and `ratekeeper explain`: output and exit codes.

mod support;

use serde_json::{Value, json};
use std::process::Output;
use support::{Server, config_file, directory, ratekeeper};

const GOOD: &str = r#"
[[policy]]
name = "login"
match = { method = ["POST"], path = "/login" }
key = ["ip"]
limit = "5/min"
"#;

fn run(args: &[&str], config: Option<&str>) -> (i32, String, String) {
    let mut command = ratekeeper();
    command.env_remove("RATEKEEPER_SERVER__ADMIN").args(args);
    if let Some(config) = config {
        command.arg(config_file(config));
    }
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    (
        status.code().unwrap(),
        String::from_utf8(stdout).unwrap(),
        String::from_utf8(stderr).unwrap(),
    )
}

fn explain(subject: &str, more: &[&str]) -> (i32, String, String) {
    let file = config_file(GOOD);
    let mut args = vec![
        "explain",
        "--config",
        file.to_str().unwrap(),
        "--subject",
        subject,
    ];
    args.extend(more);
    run(&args, None)
}

#[test]
fn check_exits_with_0_for_a_valid_file_and_for_warnings() {
    let (code, out, _) = run(&["config", "check"], Some(GOOD));
    assert_eq!(code, 0);
    assert!(out.ends_with(".toml: 1 policy, OK\n"), "{out}");
    let with_warnings = "[[policy]]\nname = \"all\"\nlimit = \"1000/min burst 2\"\n";
    let (code, out, _) = run(&["config", "check"], Some(with_warnings));
    assert_eq!(code, 0, "{out}");
    assert!(
        out.contains(
            ".toml:3:9: warning: the burst of `1000/min burst 2` is below 1 % of its rate"
        ),
        "{out}"
    );
    assert!(out.ends_with(".toml: 1 policy, 2 warnings\n"), "{out}");
}

#[test]
fn check_reports_that_the_built_in_policy_applies() {
    let (code, out, _) = run(&["config", "check"], Some("# nothing yet\n"));
    assert_eq!(code, 0);
    let end = ": no policies; the built-in policy applies (100/min burst 20 per address), OK\n";
    assert!(out.ends_with(end), "{out}");
}

#[test]
fn check_exits_with_1_for_errors() {
    let (code, out, _) = run(&["config", "check"], Some(&GOOD.replace("limit", "limt")));
    assert_eq!(code, 1);
    assert!(
        out.contains(
            ".toml:6:1: error: unknown key `limt` in [[policy]] \"login\"; did you mean `limit`?\n"
        ),
        "{out}"
    );
    let (code, _, _) = run(&["config", "check"], Some("[server"));
    assert_eq!(code, 1);
}

#[test]
fn check_exits_with_2_for_an_unreadable_file() {
    let (code, out, _) = run(&["config", "check", "/no/such/file.toml"], None);
    assert_eq!(code, 2);
    assert!(
        out.starts_with("error: cannot read /no/such/file.toml: "),
        "{out}"
    );
}

/// The warnings of `serve` or `proxy` at the start, without time and level.
fn start_warnings(mode: &str, file: &str) -> Vec<String> {
    let mut command = ratekeeper();
    command.args([mode, "--config", file]);
    command.env("RATEKEEPER_SERVER__HTTP", "127.0.0.1:0");
    if mode == "proxy" {
        command.args(["--upstream", "http://127.0.0.1:9"]);
    }
    let server = Server::run(command);
    server.signal("TERM");
    let (_, log) = server.ended();
    let warnings = log.lines().filter_map(|line| line.split_once(" WARN "));
    warnings.map(|(_, warning)| warning.to_owned()).collect()
}

#[test]
fn check_reports_the_warnings_of_both_serve_and_proxy() {
    let limits = directory(&[("a.yaml", "domain: a\ndescriptors: []\n")]);
    let limits = limits.display();
    let upstreams = "[gateway]\nupstreams = [\"http://127.0.0.1:9\"]\n";
    let policies = "[[policy]]\nname = \"login\"\nmatch = { path = \"/login\" }\nkey = \"ip\"\nlimit = \"5/min\"\ncount = \"failures\"\n\
                    [[policy]]\nname = \"users\"\nkey = \"user\"\nlimit = \"2 concurrent\"\n\
                    [[policy]]\nname = \"backend\"\nadaptive = {}\n";
    let grpc = "[server]\ngrpc = \"127.0.0.1:0\"\n";
    let envoy = format!("[envoy]\nconfig = \"{limits}\"\n");
    for (config, serve, proxy) in [
        (String::new(), 0, 0),
        (policies.to_owned(), 3, 1),
        (format!("{upstreams}{policies}"), 3, 1),
        (grpc.to_owned(), 1, 1),
        (format!("{grpc}{upstreams}"), 1, 1),
        (format!("{grpc}{envoy}"), 0, 1),
        (format!("{grpc}{envoy}{upstreams}{policies}"), 3, 2),
        (
            "[[policy]]\nname = \"all\"\nlimit = \"1000/min burst 2\"\n".to_owned(),
            2,
            2,
        ),
        (
            policies.replace(
                "count = ",
                "action = \"delay\"\nmax_delay = \"1s\"\ncount = ",
            ),
            4,
            2,
        ),
    ] {
        let file = config_file(&config);
        let file = file.to_str().unwrap();
        let (code, checked, _) = run(&["config", "check", file], None);
        assert_eq!(code, 0, "{checked}");
        for (mode, count) in [("serve", serve), ("proxy", proxy)] {
            let warnings = start_warnings(mode, file);
            let own =
                |warning: &&String| !warning.contains("/etc/") && !warning.contains("upstream ");
            assert_eq!(
                warnings.iter().filter(own).count(),
                count,
                "{mode} of {config}: {warnings:#?}"
            );
            for warning in warnings.iter().filter(own) {
                assert!(
                    checked.contains(warning.as_str()),
                    "{mode} of {config} warns {warning:?}, and config check says {checked}"
                );
            }
        }
    }
}

#[test]
fn explain_rejects_unknown_attributes() {
    let (code, out, error) = explain("ip=1.2.3.4 usr=7", &[]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert_eq!(
        error,
        "ratekeeper: --subject: unknown attribute `usr`; did you mean `user`? If it is one of your own, add \
         attributes = [\"usr\"] in [identity]\n"
    );
    let declared = format!("[identity]\nattributes = [\"usr\"]\n{GOOD}");
    let file = config_file(&declared);
    let (code, _, error) = run(
        &[
            "explain",
            "--config",
            file.to_str().unwrap(),
            "--subject",
            "usr=7 class=critical header:x-a=b",
        ],
        None,
    );
    assert_eq!((code, error.as_str()), (0, ""));
}

#[test]
fn check_prints_json() {
    let (code, out, _) = run(
        &["config", "check", "--format", "json"],
        Some(&GOOD.replace("limit", "limt")),
    );
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (code, &report["errors"], &report["warnings"]),
        (1, &json!(1), &json!(0))
    );
    let first = &report["problems"][0];
    assert_eq!(
        (&first["line"], &first["column"], &first["severity"]),
        (&json!(6), &json!(1), &json!("error")),
        "{report}"
    );
}

/// The errors are those with which `serve` does not start.
#[test]
fn check_reads_envoys_limits() {
    let good = "domain: edge\ndescriptors:\n  - key: a\n    rate_limit: { unit: day, requests_per_unit: 1 }\n";
    let limits = directory(&[("a.yaml", good), ("b.yaml", "domain: other\n")]);
    let config = format!("{GOOD}[envoy]\nconfig = {limits:?}\n");
    let (code, out, _) = run(&["config", "check"], Some(&config));
    assert_eq!(code, 0, "{out}");
    assert!(
        out.ends_with(".toml: 1 policy, 1 Envoy limit in 2 domains, OK\n"),
        "{out}"
    );

    std::fs::write(
        limits.join("b.yaml"),
        "domain: other\ndescriptors:\n  - keys: a\n",
    )
    .unwrap();
    std::fs::write(limits.join("c.yaml"), good).unwrap();
    let (code, out, _) = run(&["config", "check"], Some(&config));
    assert_eq!(code, 1, "{out}");
    let file = |name: &str| limits.join(name).display().to_string();
    assert!(
        out.contains(&format!(
            "{}:3:5: error: unknown key `keys`",
            file("b.yaml")
        )),
        "{out}"
    );
    assert!(
        out.contains(&format!(
            "{}:1:9: error: domain `edge` is defined in another file",
            file("c.yaml")
        )),
        "{out}"
    );
    assert!(out.ends_with(".toml: 2 errors, 0 warnings\n"), "{out}");
    let mut serve = ratekeeper();
    let output = serve
        .args(["serve", "--envoy-config"])
        .arg(&limits)
        .output()
        .unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(
        out.lines().take(2).all(|line| log.contains(line)),
        "{log}\n{out}"
    );

    let (_, out, _) = run(&["config", "check", "--format", "json"], Some(&config));
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&report["errors"], &report["warnings"]),
        (&json!(2), &json!(0))
    );
    let second = &report["problems"][1];
    assert_eq!(
        (&second["file"], &second["line"], &second["column"]),
        (&json!(file("c.yaml")), &json!(1), &json!(9))
    );

    // The directory without a file, as in `serve`.
    std::fs::remove_file(limits.join("b.yaml")).unwrap();
    std::fs::remove_file(limits.join("c.yaml")).unwrap();
    let limits = limits.to_str().unwrap();
    let (code, out, _) = run(&["config", "check", "--envoy-config", limits], None);
    assert_eq!(
        (code, out),
        (0, format!("{limits}: 1 Envoy limit in 1 domain, OK\n"))
    );
    let (code, out, _) = run(
        &["config", "check", "--envoy-config", "/no/such/directory"],
        None,
    );
    assert_eq!(code, 1);
    assert!(
        out.starts_with("/no/such/directory: error: cannot be read: "),
        "{out}"
    );
    assert_eq!(run(&["config", "check"], None).0, 2);
}

#[test]
fn show_prints_an_equivalent_configuration() {
    let (code, shown, _) = run(&["config", "show"], Some(GOOD));
    assert_eq!(code, 0);
    let (code, again, _) = run(&["config", "show"], Some(&shown));
    let without_comments = |text: &str| -> Vec<String> {
        text.lines()
            .map(|line| line.split(" # ").next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        (code, without_comments(&again)),
        (0, without_comments(&shown))
    );
    let (code, defaults, _) = run(&["config", "show"], None);
    assert_eq!(code, 0);
    assert!(
        defaults.contains("name = \"default\"\n")
            && defaults.contains("limit = \"100/min burst 20\"\n"),
        "{defaults}"
    );
    assert_eq!(run(&["config", "show"], Some("[serve]")).0, 1);
    assert_eq!(run(&["config", "show", "/no/such/file.toml"], None).0, 2);
}

#[test]
fn docs_prints_a_table() {
    let (code, out, _) = run(&["config", "docs"], Some(GOOD));
    assert_eq!(code, 0);
    assert!(
        out.contains(
            "| login | `POST` `/login` | each IP address | 5 a minute | 429 Too Many Requests |\n"
        ),
        "{out}"
    );
}

#[test]
fn explain_exits_with_0_1_or_2() {
    let (code, out, _) = explain("ip=1.2.3.4 method=POST path=/login", &[]);
    assert_eq!(code, 0);
    assert_eq!(
        out,
        "allowed\n\nlogin\n  applies, counted by ip=1.2.3.4\n  5/min: allowed, 5 of 5 left, costs 1\n"
    );
    let (code, out, _) = explain("ip=1.2.3.4 method=POST path=/login", &["--cost", "6"]);
    assert_eq!(code, 1);
    assert!(
        out.starts_with("denied by login with status 429; waiting will not help\n"),
        "{out}"
    );
    let (code, out, _) = explain("method=GET", &[]);
    assert_eq!(code, 0);
    assert_eq!(
        out,
        "allowed: no policy applies\n\nlogin\n  does not apply: the method does not match\n"
    );
    let (_, out, _) = explain("ip=1.2.3.4", &[]);
    assert!(
        out.ends_with("login\n  does not apply: the request has no method to match\n"),
        "{out}"
    );
    let (code, _, error) = explain("GET", &[]);
    assert_eq!(code, 2);
    let message = "ratekeeper: --subject: `GET` has no value; write name=value, as in 'ip=1.2.3.4 method=GET path=/api/x'\n";
    assert_eq!(error, message);
    assert_eq!(
        run(
            &["explain", "--config", "/no/such/file.toml", "--subject", ""],
            None
        )
        .0,
        2
    );
    assert_eq!(run(&["explain"], None).0, 2);
}

#[test]
fn explain_applies_the_identity_headers() {
    let config = "[identity]\nuser = { header = \"x-user\", from = \"10.0.0.0/8\" }\n[[policy]]\nname = \"user\"\nkey = [\"user\"]\nlimit = \"5/min\"\n";
    let file = config_file(config);
    let explain = |subject: &str| {
        run(
            &[
                "explain",
                "--config",
                file.to_str().unwrap(),
                "--subject",
                subject,
            ],
            None,
        )
        .1
    };
    assert!(explain("header:X-User=ann").contains("counted by user=ann"));
    assert!(
        explain("header:x-user-id=ann").contains(
            "the request has no user, so it is counted by unknown (missing = \"address\")"
        )
    );
}

#[test]
fn explain_shows_persistent_fingerprints() {
    let config = |store: &str| {
        format!("{store}[[policy]]\nname = \"user\"\nkey = [\"user\"]\nlimit = \"5/min\"\n")
    };
    let explain = |store: &str| {
        let file = config_file(&config(store));
        run(
            &[
                "explain",
                "--config",
                file.to_str().unwrap(),
                "--subject",
                "user=ann",
            ],
            None,
        )
        .1
    };
    let shown = explain("[store]\nkey_secret = \"0123456789abcdef0123456789abcdef\"\n");
    assert!(
        shown.contains("counted by user=ann, shown as user=#"),
        "{shown}"
    );
    assert_eq!(
        explain("[store]\nkey_secret = \"0123456789abcdef0123456789abcdef\"\n"),
        shown
    );
    assert!(explain("").contains("counted by user=ann\n"));
}

#[test]
fn explain_prints_json() {
    let (code, out, _) = explain(
        "ip=1.2.3.4 method=POST path=/login header:x=y",
        &["--format", "json"],
    );
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 0);
    assert_eq!(
        report,
        json!({"allowed": true, "status": 200, "reason": "limits", "policy": null, "retry_after_ms": null, "delay_ms": 0,
               "never": false, "policies": [{"policy": "login", "applies": true, "reason": null, "key": "ip=1.2.3.4",
               "shadow": false, "limits": [{"limit": "5/min", "capacity": 5, "remaining": 5, "cost": 1,
               "outcome": "allowed", "retry_after_ms": null}]}]})
    );
}
