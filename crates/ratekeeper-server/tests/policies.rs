//! Policies: checks, metrics, reload, environment.

mod support;

use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use support::{Server, config_file, eventually, pipe, ratekeeper};

const LISTEN: &str = "[server]\nhttp = \"127.0.0.1:0\"\n";

fn per_user(limit: &str) -> String {
    format!("{LISTEN}[[policy]]\nname = \"user\"\nkey = [\"user\"]\nlimit = \"{limit}\"\n")
}

/// Starts a server with that file.
fn serve(file: &Path) -> Server {
    let mut command = ratekeeper();
    command.arg("serve").arg("--config").arg(file);
    Server::run(command)
}

fn remaining(server: &Server, user: &str, cost: u64) -> Value {
    let answer = server.check(&json!({"subject": {"user": user}, "cost": cost}).to_string());
    answer.json()["limits"][0]["remaining"].clone()
}

/// Waits until that many reloads have had that result.
fn wait_for_reloads(server: &Server, result: &str, count: f64) {
    let name = format!("ratekeeper_config_reloads_total{{result=\"{result}\"}}");
    while server.metric(&name) < count {
        std::thread::yield_now();
    }
}

#[test]
fn a_changed_file_is_reloaded_and_counters_stay() {
    let file = config_file(&per_user("10/d"));
    let server = serve(&file);
    assert_eq!(remaining(&server, "ann", 7), json!(3));
    fs::write(&file, per_user("20/d")).unwrap();
    wait_for_reloads(&server, "ok", 1.0);
    assert_eq!(
        remaining(&server, "ann", 1),
        json!(2),
        "the remaining tokens, less this one"
    );
    assert_eq!(remaining(&server, "bob", 1), json!(19), "the new limit");
    server.signal("TERM");
    assert!(
        server
            .ended()
            .1
            .contains("configuration reloaded because its file changed: 1 policy")
    );
}

/// A ConfigMap is a directory of links into another, which is swapped as a whole.
#[test]
fn a_swapped_config_map_is_reloaded() {
    let dir = config_file("").with_extension("d");
    for (version, limit) in [("..1", "10/d"), ("..2", "20/d")] {
        fs::create_dir_all(dir.join(version)).unwrap();
        fs::write(dir.join(version).join("ratekeeper.toml"), per_user(limit)).unwrap();
    }
    let link = |to: &str, from: &Path| std::os::unix::fs::symlink(to, from).unwrap();
    link("..1", &dir.join("..data"));
    link("..data/ratekeeper.toml", &dir.join("ratekeeper.toml"));
    let server = serve(&dir.join("ratekeeper.toml"));
    assert_eq!(remaining(&server, "ann", 7), json!(3));
    link("..2", &dir.join("..next"));
    fs::rename(dir.join("..next"), dir.join("..data")).unwrap();
    wait_for_reloads(&server, "ok", 1.0);
    assert_eq!(remaining(&server, "bob", 1), json!(19));
}

#[test]
fn an_invalid_file_is_reported_and_the_previous_one_stays_in_force() {
    let file = config_file(&per_user("10/d"));
    let server = serve(&file);
    assert_eq!(server.metric("ratekeeper_config_stale"), 0.0);
    fs::write(&file, per_user("ten a day")).unwrap();
    wait_for_reloads(&server, "rejected", 1.0);
    assert_eq!(server.metric("ratekeeper_config_stale"), 1.0);
    assert_eq!(remaining(&server, "ann", 1), json!(9));
    fs::write(&file, per_user("30/d")).unwrap();
    wait_for_reloads(&server, "ok", 1.0);
    assert_eq!(
        (
            server.metric("ratekeeper_config_stale"),
            remaining(&server, "bob", 1)
        ),
        (0.0, json!(29))
    );
    server.signal("TERM");
    let (_, log) = server.ended();
    let problem = format!("ERROR {}:6:10: error: ", file.display());
    assert!(
        log.contains(&problem) && log.contains("the previous one stays in force"),
        "{log}"
    );
}

/// An alert must end when its cause is gone.
#[test]
fn a_missing_file_is_stale_until_it_is_back() {
    let file = config_file(&per_user("10/d"));
    let server = serve(&file);
    fs::remove_file(&file).unwrap();
    wait_for_reloads(&server, "rejected", 1.0);
    assert_eq!(
        (
            server.metric("ratekeeper_config_stale"),
            remaining(&server, "ann", 1)
        ),
        (1.0, json!(9))
    );
    fs::write(&file, per_user("10/d")).unwrap();
    wait_for_reloads(&server, "ok", 1.0);
    assert_eq!(
        (
            server.metric("ratekeeper_config_stale"),
            remaining(&server, "ann", 1)
        ),
        (0.0, json!(8))
    );
}

#[test]
fn an_emptied_file_changes_nothing() {
    let file = config_file(&per_user("10/d"));
    let server = serve(&file);
    fs::write(&file, "").unwrap();
    let detail = server
        .admin("POST", "/admin/reload")
        .problem(422, "invalid_config");
    assert!(detail.contains("the new file has no policies"), "{detail}");
    assert_eq!(remaining(&server, "ann", 1), json!(9));
    // The advice of the message works.
    fs::write(&file, "enabled = false\n").unwrap();
    assert_eq!(server.admin("POST", "/admin/reload").status(), 200);
    assert_eq!(
        server.check(r#"{"subject":{"user":"ann"}}"#).json()["source"],
        json!("off")
    );
}

#[test]
fn sighup_and_the_admin_api_reload() {
    let file = config_file(&per_user("10/d"));
    let server = serve(&file);
    server.signal("HUP");
    wait_for_reloads(&server, "ok", 1.0);
    let answer = server.admin("POST", "/admin/reload");
    assert_eq!(
        (answer.status(), answer.json()["policies"].clone()),
        (200, json!(1))
    );
    assert_eq!(
        server.metric("ratekeeper_config_reloads_total{result=\"ok\"}"),
        2.0
    );
    fs::write(&file, "[[policy]]\n").unwrap();
    let detail = server
        .admin("POST", "/admin/reload")
        .problem(422, "invalid_config");
    assert!(detail.contains(":1:1: error: "), "{detail}");
    assert_eq!(server.admin("GET", "/admin/reload").status(), 405);
    assert_eq!(server.admin("GET", "/admin").status(), 404);
    assert_eq!(server.admin("GET", "/readyz").status(), 200);
    server.signal("TERM");
    assert_eq!(server.ended().0.code(), Some(0));
}

#[test]
fn web_pages_cannot_use_the_admin_listener() {
    let server = serve(&config_file(&per_user("10/d")));
    let status = |head: &str| {
        let mut connection = Server::connect_to(server.admin);
        connection.write(&format!("{head}\r\n\r\n"));
        connection.answer()
    };
    let post = "POST /admin/reload HTTP/1.1\r\nContent-Length: 0\r\nHost: 127.0.0.1";
    assert_eq!(status(post).status(), 200);
    status(&format!("{post}\r\nOrigin: http://evil.example")).problem(403, "forbidden");
    status(&format!("{post}\r\nOrigin: null")).problem(403, "forbidden");
    let detail =
        status("GET /metrics HTTP/1.1\r\nHost: evil.example:9090").problem(403, "forbidden");
    assert!(
        detail.starts_with("unknown host `evil.example:9090` for a loopback listener"),
        "{detail}"
    );
    assert_eq!(
        server.metric("ratekeeper_config_reloads_total{result=\"ok\"}"),
        1.0
    );
}

#[test]
fn a_pipe_in_place_of_the_file_is_rejected_by_a_reload() {
    let file = config_file(&per_user("10/d"));
    let server = serve(&file);
    fs::rename(pipe(), &file).unwrap();
    server.signal("HUP");
    eventually("the rejection", || {
        server.metric("ratekeeper_config_reloads_total{result=\"rejected\"}") > 0.5
    });
    let answer = server.admin("POST", "/admin/reload");
    assert_eq!(answer.status(), 422);
    assert!(
        answer.body.contains("it is a pipe; name a regular file"),
        "{answer:?}"
    );
    assert_eq!(remaining(&server, "ann", 1), json!(9));
}

#[test]
fn changes_that_need_a_restart_are_warnings() {
    let file = config_file(&per_user("10/d"));
    let server = serve(&file);
    fs::write(
        &file,
        format!("{}\n[store]\nmax_keys = 5\n", per_user("10/d")),
    )
    .unwrap();
    let answer = server.admin("POST", "/admin/reload").json();
    let warnings = answer["warnings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|warning| warning.as_str().unwrap());
    let about_the_store =
        warnings.filter(|warning| *warning == "changes in [store] need a restart");
    assert_eq!(about_the_store.count(), 1, "{answer}");
}

/// A limit that `/v1/check` cannot apply must not look as if it did.
#[test]
fn policies_that_need_the_end_of_a_request_are_warnings() {
    let text = per_user("10/d")
        + "count = \"failures\"\n[[policy]]\nname = \"one\"\nlimit = \"1 concurrent\"\n";
    let server = serve(&config_file(&text));
    let again = server.admin("POST", "/admin/reload").json()["warnings"].to_string();
    server.signal("TERM");
    let (_, log) = server.ended();
    for warning in [
        "the policy `user` counts failures only, but POST /v1/check does not learn how requests end and counts all of them; use /v1/reserve and /v1/settle",
        "the policy `one` has `1 concurrent`, but POST /v1/check does not learn how requests end, so it denies nothing there; use /v1/reserve and /v1/settle",
    ] {
        assert!(
            log.contains(&format!("WARN {warning}\n")) && again.contains(warning),
            "{log}\n{again}"
        );
    }
}

#[test]
fn the_metrics_count_the_decisions() {
    let server = serve(&config_file(&format!(
        "{}[[policy]]\nname = \"all\"\nkey = []\nlimit = \"10/d\"\n[[policy]]\nname = \"watch\"\nkey = [\"ip\"]\nlimit = \
         \"1/d\"\naction = \"shadow\"\n",
        per_user("2/d")
    )));
    for user in ["someone", "someone", "someone", "bob"] {
        server.check(&json!({"subject": {"user": user, "ip": "10.0.0.1"}}).to_string());
    }
    server.check(&json!({"subject": {"user": "ann"}, "peek": true}).to_string());
    server.throttle(r#"{"key":"a","limit":"1/d"}"#);
    server.throttle(r#"{"key":"a","limit":"1/d"}"#);
    for (name, value) in [
        ("ratelimit_requests_total", 6.0),
        ("ratelimit_requests_allowed", 4.0),
        ("ratelimit_requests_blocked", 2.0),
        ("ratelimit_current_usage{policy=\"user\"}", 3.0),
        ("ratelimit_current_usage{policy=\"all\"}", 0.3),
        ("ratelimit_avg_response_time_count", 4.0),
        ("ratelimit_avg_response_time_bucket{le=\"+Inf\"}", 4.0),
        (
            "ratekeeper_decision_duration_seconds_count{store=\"memory\"}",
            4.0,
        ),
        (
            "ratekeeper_decisions_total{policy=\"user\",outcome=\"allowed\"}",
            3.0,
        ),
        (
            "ratekeeper_decisions_total{policy=\"user\",outcome=\"denied\"}",
            1.0,
        ),
        (
            "ratekeeper_decisions_total{policy=\"all\",outcome=\"allowed\"}",
            3.0,
        ),
        (
            "ratekeeper_decisions_total{policy=\"all\",outcome=\"denied\"}",
            0.0,
        ),
        (
            "ratekeeper_decisions_total{policy=\"watch\",outcome=\"shadow_denied\"}",
            3.0,
        ),
        ("ratekeeper_keys{policy=\"user\"}", 2.0),
        (
            "ratekeeper_keys_evicted_total{policy=\"user\",reason=\"displaced\"}",
            0.0,
        ),
        ("ratekeeper_store_fallback_active", 0.0),
        (
            concat!(
                "ratekeeper_build_info{version=\"",
                env!("CARGO_PKG_VERSION"),
                "\"}"
            ),
            1.0,
        ),
    ] {
        let found = server.metric(name);
        assert!(
            (found - value).abs() < 1e-9,
            "{name} is {found}, not {value}"
        );
    }
    let page = server.admin("GET", "/metrics");
    assert_eq!(
        page.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    assert!(
        !page.body.contains("someone") && !page.body.contains("10.0.0.1"),
        "{}",
        page.body
    );
}

#[test]
fn the_most_active_keys_are_fingerprints_unless_configured() {
    let top = |stats: &str| {
        let server = serve(&config_file(&format!(
            "{}[stats]\nkeys = \"{stats}\"\n",
            per_user("2/d")
        )));
        for user in ["someone", "someone", "someone", "bob"] {
            server.check(&json!({"subject": {"user": user}}).to_string());
        }
        server.admin("GET", "/admin/top").json()
    };
    let hidden = top("fingerprint");
    let counts = |list: &Value| -> Vec<Value> {
        list.as_array()
            .unwrap()
            .iter()
            .map(|key| json!([key["policy"], key["count"], key["at_least"]]))
            .collect()
    };
    assert_eq!(
        counts(&hidden["most_active"]),
        [json!(["user", 3, 3]), json!(["user", 1, 1])]
    );
    assert_eq!(counts(&hidden["most_denied"]), [json!(["user", 1, 1])]);
    assert!(!hidden.to_string().contains("someone"), "{hidden}");
    assert_eq!(top("plain")["most_active"][0]["key"], json!("user=someone"));
}

#[test]
fn the_simple_variables_are_enough() {
    let mut command = ratekeeper();
    command
        .env("RATEKEEPER_SERVER__HTTP", "127.0.0.1:0")
        .env("RATE_LIMIT_WINDOW", "86400");
    command
        .env("RATE_LIMIT_PER_USER", "3")
        .env("RATE_LIMIT_PER_IP", "2")
        .env("RATE_LIMIT_DEFAULT", "1");
    command
        .env("RATE_LIMIT_ALGORITHM", "token_bucket")
        .env("RATE_LIMIT_BURST", "2")
        .env("RATE_LIMIT_ENABLED", "true");
    let server = Server::run(command);
    let allowed = |subject: Value| {
        let body = json!({"subject": subject}).to_string();
        (0..5)
            .filter(|_| server.check(&body).status() == 200)
            .count()
    };
    assert_eq!(allowed(json!({"user": "ann", "ip": "10.0.0.1"})), 2);
    assert_eq!(allowed(json!({"ip": "10.0.0.1"})), 2);
    assert_eq!(allowed(json!({})), 2);
}

#[test]
fn disabled_limits_allow_every_request() {
    let mut command = ratekeeper();
    command
        .env("RATEKEEPER_SERVER__HTTP", "127.0.0.1:0")
        .env("RATE_LIMIT_ENABLED", "false");
    let server = Server::run(command);
    for _ in 0..50 {
        let answer = server.check(r#"{"subject":{"ip":"10.0.0.1"}}"#);
        assert_eq!(
            (answer.status(), answer.json()["source"].clone()),
            (200, json!("off"))
        );
    }
}

#[test]
fn a_variable_overrides_the_file_and_an_unknown_one_is_a_warning() {
    let mut command = ratekeeper();
    command
        .env("RATEKEEPER_SERVER__HTTP", "127.0.0.1:0")
        .env("RATEKEEPER_PORT", "tcp://10.0.0.1:80");
    command
        .arg("--config")
        .arg(config_file("[server]\nhttp = \"192.0.2.1:1\"\n"));
    let server = Server::run(command);
    assert!(server.address.ip().is_loopback());
    server.signal("TERM");
    let (_, log) = server.ended();
    assert!(log.contains("WARN RATEKEEPER_PORT: warning: "), "{log}");
}

/// Callers send the deadline of the request.
#[test]
fn a_check_past_its_deadline_is_denied_and_costs_nothing() {
    let config = per_user("10/d").replace(
        "[[policy]]",
        "[shed]\nstart_header = \"x-start\"\npatience = \"1h\"\n[[policy]]",
    );
    let server = Server::with_config(&config);
    let ask = |name: &str, at: Value| {
        server.check(&json!({"subject": {"user": "ann", name: at}}).to_string())
    };
    for (name, at) in [
        ("deadline", json!(1_700_000_000)),
        ("start", json!("t=1700000000.5")),
    ] {
        let late = ask(name, at);
        assert_eq!((late.status(), late.header("retry-after")), (504, None));
        let body = late.json();
        assert_eq!(
            (&body["reason"], &body["policy"], &body["limits"]),
            (&json!("too_late"), &json!(null), &json!([]))
        );
    }
    assert_eq!(
        ask("deadline", json!(4_000_000_000_000_u64)).json()["limits"][0]["remaining"],
        9
    );
    assert_eq!(
        ask("start", json!(4_000_000_000_000_u64)).json()["limits"][0]["remaining"],
        8
    );
}
