//! `[shed]`, `adaptive` and priority classes.

use super::{clean, diagnostics, load};
use ratekeeper_policy::config::Configuration;

const GOOD: &str = r#"
[shed]
header = "X-Priority"
cpu = 0.9
memory = 1
spare = "critical_plus"
start_header = "X-Request-Start"
patience = "2s"
[plans.free]
limit = "60/min"
class = "sheddable_plus"
[[policy]]
name = "backend"
adaptive = { min = 3, max = 40, control = "aimd", timeout = "2s" }
[[policy]]
name = "export"
match = { path = "/export" }
class = "sheddable"
[[policy]]
name = "api"
match = { path = "/api/**" }
plan = { default = "free" }
adaptive = { queue = 100, queue_interval = "200ms" }
[policy.class]
reserve = { batch = 2 }
"#;

#[test]
fn shown_configurations_load_to_the_same() {
    let config = clean(GOOD, &[]);
    assert_eq!(config.identity.class.as_deref(), Some("x-priority"));
    assert_eq!(config.identity.start.as_deref(), Some("x-request-start"));
    let text = config.to_toml();
    assert_eq!(load(&text, &[]).config, Some(config), "{text}");
    snapshot!(text[text.find("[shed]").unwrap()..]);
}

#[test]
fn variables_turn_shedding_on_too() {
    let env = [
        ("RATEKEEPER_SHED__CPU", "0.85"),
        ("RATEKEEPER_SHED__DEFAULT", "sheddable"),
    ];
    let text = clean(
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimit = \"1/s\"\n",
        &env,
    )
    .to_toml();
    assert!(
        text.contains("[shed]\ndefault = \"sheddable\"\ncpu = 0.85\nrest = \"5s\"\n"),
        "{text}"
    );
}

#[test]
fn errors() {
    snapshot!(diagnostics(
        r#"
[shed]
default = "important"
cpu = 1.5
memory = 0
rest = "1ms"
spare = 7
start_header = "when it began"
patience = 0
[plans.free]
limit = "1/s"
class = "critical+"
[[policy]]
name = "swapped"
adaptive = { min = 9, max = 3 }
[[policy]]
name = "start"
adaptive = { start = 1000 }
[[policy]]
name = "none"
adaptive = { min = 0, control = "bbr", timeout = 5, maximum = 3 }
[[policy]]
name = "queue"
adaptive = { queue = 0, queue_interval = "1h", queue_target = "short" }
[[policy]]
name = "word"
limit = "1/s"
class = "batch"
[[policy]]
name = "nothing"
"#,
        &[("RATEKEEPER_SHED__MEMORY", "much")]
    ));
}

#[test]
fn errors_across_keys() {
    snapshot!(diagnostics(
        "[[policy]]\nname = \"swapped\"\nadaptive = { min = 9, max = 3 }\n[[policy]]\nname = \"start\"\nadaptive = { start = 1000 }\n",
        &[]
    ));
}

#[test]
fn warnings_about_classes() {
    let policy = "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimit = \"1/s\"\nclass = \"sheddable\"\n";
    snapshot!(diagnostics(&format!("{policy}[shed]\n"), &[]) + &diagnostics(policy, &[]));
}

#[test]
fn warnings_about_the_queue() {
    let policy = |adaptive: &str| {
        format!(
            "[[policy]]\nname = \"a\"\nmatch = {{ path = \"/a\" }}\nadaptive = {{ {adaptive} }}\n"
        )
    };
    let mut all = diagnostics(
        &policy("queue_interval = \"50ms\", queue_target = \"2ms\""),
        &[],
    );
    all += &diagnostics(
        &policy("queue = 10, queue_interval = \"50ms\", queue_target = \"60ms\""),
        &[],
    );
    all += &diagnostics(
        &format!("{}[shed]\npatience = \"2s\"\n", policy("queue = 10")),
        &[],
    );
    all += &diagnostics(
        &format!(
            "{}[shed]\nstart_header = \"x-request-start\"\n",
            policy("queue = 10")
        ),
        &[],
    );
    snapshot!(all);
}
