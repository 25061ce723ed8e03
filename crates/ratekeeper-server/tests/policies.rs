//! The service on policies: checks, figures, reload, environment.

mod support;

use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use support::{Server, config_file, eventually, pipe, ratekeeper};

const LISTEN: &str = "[server]\nhttp = \"127.0.0.1:0\"\n";

fn per_user(limit: &str) -> String {
    format!("{LISTEN}[[policy]]\nname = \"user\"\nkey = [\"user\"]\nlimit = \"{limit}\"\n")
}

/// Starts on that file.
fn serve(file: &Path) -> Server {
    let mut command = ratekeeper();
    command.arg("serve").arg("--config").arg(file);
    Server::run(command)
}

fn remaining(server: &Server, user: &str, cost: u64) -> Value {
    let answer = server.check(&json!({"subject": {"user": user}, "cost": cost}).to_string());
    answer.json()["limits"][0]["remaining"].clone()
}

/// Waits until the service says that many reloads ended that way: they come in their own time.
fn reloads(server: &Server, result: &str, many: f64) {
    let name = format!("ratekeeper_config_reloads_total{{result=\"{result}\"}}");
    while server.figure(&name) < many {
        std::thread::yield_now();
    }
}

#[test]
fn a_file_that_changes_is_loaded_again_and_counts_stay() {
    let file = config_file(&per_user("10/d"));
    let server = serve(&file);
    assert_eq!(remaining(&server, "ann", 7), json!(3));
    fs::write(&file, per_user("20/d")).unwrap();
    reloads(&server, "ok", 1.0);
    assert_eq!(
        remaining(&server, "ann", 1),
        json!(2),
        "what was left, less this one"
    );
    assert_eq!(remaining(&server, "bob", 1), json!(19), "the new limit");
    server.signal("TERM");
    assert!(
        server
            .ended()
            .1
            .contains("configuration loaded again because its file changed: 1 policy")
    );
}

/// A ConfigMap is a directory of links into another, which is swapped as a whole.
#[test]
fn a_config_map_that_is_swapped_is_loaded_again() {
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
    reloads(&server, "ok", 1.0);
    assert_eq!(remaining(&server, "bob", 1), json!(19));
}

#[test]
fn a_wrong_file_keeps_the_old_one_in_force_and_is_loud() {
    let file = config_file(&per_user("10/d"));
    let server = serve(&file);
    assert_eq!(server.figure("ratekeeper_config_stale"), 0.0);
    fs::write(&file, per_user("ten a day")).unwrap();
    reloads(&server, "refused", 1.0);
    assert_eq!(server.figure("ratekeeper_config_stale"), 1.0);
    assert_eq!(remaining(&server, "ann", 1), json!(9));
    fs::write(&file, per_user("30/d")).unwrap();
    reloads(&server, "ok", 1.0);
    assert_eq!(
        (
            server.figure("ratekeeper_config_stale"),
            remaining(&server, "bob", 1)
        ),
        (0.0, json!(29))
    );
    server.signal("TERM");
    let (_, log) = server.ended();
    let problem = format!("ERROR {}:6:10: error: ", file.display());
    assert!(
        log.contains(&problem) && log.contains("the one from before stays in force"),
        "{log}"
    );
}

/// An alarm that rings must stop when what it rang for is over.
#[test]
fn a_file_that_is_gone_is_loud_until_it_is_back() {
    let file = config_file(&per_user("10/d"));
    let server = serve(&file);
    fs::remove_file(&file).unwrap();
    reloads(&server, "refused", 1.0);
    assert_eq!(
        (
            server.figure("ratekeeper_config_stale"),
            remaining(&server, "ann", 1)
        ),
        (1.0, json!(9))
    );
    fs::write(&file, per_user("10/d")).unwrap();
    reloads(&server, "ok", 1.0);
    assert_eq!(
        (
            server.figure("ratekeeper_config_stale"),
            remaining(&server, "ann", 1)
        ),
        (0.0, json!(8))
    );
}

#[test]
fn a_file_that_was_emptied_changes_nothing() {
    let file = config_file(&per_user("10/d"));
    let server = serve(&file);
    fs::write(&file, "").unwrap();
    let detail = server
        .admin("POST", "/admin/reload")
        .problem(422, "invalid_config");
    assert!(detail.contains("no policies any more"), "{detail}");
    assert_eq!(remaining(&server, "ann", 1), json!(9));
    // What it says to write is taken.
    fs::write(&file, "enabled = false\n").unwrap();
    assert_eq!(server.admin("POST", "/admin/reload").status(), 200);
    assert_eq!(
        server.check(r#"{"subject":{"user":"ann"}}"#).json()["source"],
        json!("off")
    );
}

#[test]
fn it_is_loaded_again_on_sighup_and_on_request() {
    let file = config_file(&per_user("10/d"));
    let server = serve(&file);
    server.signal("HUP");
    reloads(&server, "ok", 1.0);
    let answer = server.admin("POST", "/admin/reload");
    assert_eq!(
        (answer.status(), answer.json()["policies"].clone()),
        (200, json!(1))
    );
    assert_eq!(
        server.figure("ratekeeper_config_reloads_total{result=\"ok\"}"),
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
fn web_pages_reach_nothing_of_the_admin_listener() {
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
        server.figure("ratekeeper_config_reloads_total{result=\"ok\"}"),
        1.0
    );
}

#[test]
fn a_pipe_in_place_of_the_file_is_refused_by_a_reload() {
    let file = config_file(&per_user("10/d"));
    let server = serve(&file);
    fs::rename(pipe(), &file).unwrap();
    server.signal("HUP");
    eventually("the refusal", || {
        server.figure("ratekeeper_config_reloads_total{result=\"refused\"}") > 0.5
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
fn what_cannot_change_while_it_runs_is_said() {
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
        warnings.filter(|warning| warning.starts_with("[store] is another one than at the start"));
    assert_eq!(about_the_store.count(), 1, "{answer}");
}

/// A limit that the service cannot hold must not look as if it did.
#[test]
fn what_needs_the_end_of_a_request_is_said() {
    let text = per_user("10/d")
        + "count = \"failures\"\n[[policy]]\nname = \"one\"\nlimit = \"1 concurrent\"\n";
    let server = serve(&config_file(&text));
    let again = server.admin("POST", "/admin/reload").json()["warnings"].to_string();
    server.signal("TERM");
    let (_, log) = server.ended();
    for said in [
        "the policy `user` counts failures only, but POST /v1/check does not hear how a request ends: there every request counts; ask POST /v1/reserve, and tell POST /v1/settle",
        "the policy `one` has `1 concurrent`, but POST /v1/check does not hear how a request ends: there it turns nobody away; ask POST /v1/reserve, and tell POST /v1/settle",
    ] {
        assert!(
            log.contains(&format!("WARN {said}\n")) && again.contains(said),
            "{log}\n{again}"
        );
    }
}

#[test]
fn the_figures_are_what_was_decided() {
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
        let found = server.figure(name);
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
fn the_heaviest_keys_are_fingerprints_unless_the_operator_says_otherwise() {
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
        counts(&hidden["heaviest"]),
        [json!(["user", 3, 3]), json!(["user", 1, 1])]
    );
    assert_eq!(counts(&hidden["most_denied"]), [json!(["user", 1, 1])]);
    assert!(!hidden.to_string().contains("someone"), "{hidden}");
    assert_eq!(top("plain")["heaviest"][0]["key"], json!("user=someone"));
}

#[test]
fn the_plain_variables_are_enough_alone() {
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
    let passes = |subject: Value| {
        let body = json!({"subject": subject}).to_string();
        (0..5)
            .filter(|_| server.check(&body).status() == 200)
            .count()
    };
    assert_eq!(passes(json!({"user": "ann", "ip": "10.0.0.1"})), 2);
    assert_eq!(passes(json!({"ip": "10.0.0.1"})), 2);
    assert_eq!(passes(json!({})), 2);
}

#[test]
fn switched_off_everything_passes_and_says_so() {
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
fn a_variable_beats_the_file_and_one_that_nobody_knows_is_said() {
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

/// Whoever asks says until when anybody waits for the answer.
#[test]
fn a_check_that_comes_after_its_deadline_is_turned_away_and_costs_nothing() {
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
        let told = late.json();
        assert_eq!(
            (&told["reason"], &told["policy"], &told["limits"]),
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
