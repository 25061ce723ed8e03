//! `config show`: the output loads to the same configuration, has the provenance of each value, and
//! hides secrets.

use crate::good::EVERYTHING;
use crate::{EXAMPLE, load};
use proptest::prelude::*;
use ratekeeper_policy::config::Configuration;

#[track_caller]
fn reads_back(text: &str, env: &[(&str, &str)]) {
    let config = load(text, env).config.expect("a good file");
    let shown = config.to_toml();
    let again = load(&shown, &[]);
    assert_eq!(
        again.config,
        Some(config),
        "{shown}\n{:?}",
        again.diagnostics
    );
}

#[test]
fn shown_configurations_load_to_the_same() {
    for text in ["", EXAMPLE, EVERYTHING] {
        reads_back(text, &[]);
    }
    reads_back(
        "",
        &[
            ("RATE_LIMIT_PER_USER", "7"),
            ("RATE_LIMIT_DEFAULT", "100"),
            ("RATE_LIMIT_BURST", "3"),
        ],
    );
    reads_back(
        "",
        &[
            ("RATEKEEPER_SERVER__RESP", "off"),
            ("RATEKEEPER_ENABLED", "no"),
        ],
    );
}

#[test]
fn values_are_shown_with_their_provenance() {
    let env = [
        ("RATEKEEPER_SERVER__GRPC", "off"),
        ("RATEKEEPER_STORE__MAX_KEYS", "2_000"),
    ];
    snapshot!(load(EXAMPLE, &env).show().unwrap());
    snapshot!(
        load(
            "",
            &[("RATE_LIMIT_PER_IP", "7"), ("RATE_LIMIT_ENABLED", "off")]
        )
        .show()
        .unwrap()
    );
}

#[test]
fn secrets_are_hidden() {
    let shown = load(EVERYTHING, &[]).show().unwrap();
    assert!(
        !shown.contains("k1") && shown.contains(r#"api_key = ["(hidden)", "(hidden)"]"#),
        "{shown}"
    );
    let text = "[[deny]]\nheader = { x-auth-token = \"s3cret\", authorization = [\"s3cret\"], x-a = \"seen\" }\nnot = { api_key = \"s3cret\" }";
    let loaded = load(text, &[]);
    let shown = loaded.show().unwrap();
    assert!(
        !shown.contains("s3cret") && shown.contains("seen"),
        "{shown}"
    );
    assert!(!loaded.config.unwrap().to_markdown().contains("s3cret"));
}

/// API keys are hidden, under any name of their header.
#[test]
fn the_header_of_api_keys_is_hidden() {
    let policy = "[[policy]]\nname = \"a\"\nmatch = { not = { header = { x-me = \"s3cret\" } } }\nlimit = \"1/s\"\n";
    let text = format!(
        "[identity]\napi_key = {{ header = \"X-Me\" }}\n[[deny]]\nheader = {{ X-me = [\"s3cret\"], x-a = \"seen\" }}\n{policy}"
    );
    let loaded = load(&text, &[]);
    let shown = loaded.show().unwrap();
    assert!(
        !shown.contains("s3cret")
            && shown.contains("seen")
            && shown.contains("x-me = [\"(hidden)\"]"),
        "{shown}"
    );
    let documented = loaded.config.unwrap().to_markdown();
    assert!(
        !documented.contains("s3cret") && documented.contains("x-me"),
        "{documented}"
    );
}

#[test]
fn an_invalid_configuration_is_not_shown() {
    assert_eq!(load("enabled = 3", &[]).show(), None);
}

/// Any string in TOML syntax.
fn text() -> impl Strategy<Value = String> {
    let any = "\\PC{1,6}|[a-z/*.:|`\"\\\\]{1,6}|[\u{0}-\u{20}\u{7f}-\u{85}a]{1,3}";
    any.prop_map(|text| {
        let escaped = text
            .chars()
            .map(|c| format!("\\U{:08X}", u32::from(c)))
            .collect::<String>();
        format!("\"{escaped}\"")
    })
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..20_u64,
        any::<u64>().prop_map(|number| number >> 1),
        Just(i64::MAX as u64)
    ]
}

fn duration() -> impl Strategy<Value = String> {
    let unit = prop::sample::select(vec!["ns", "us", "ms", "s", "m", "min", "h", "d", "w"]);
    (1..5000_u64, unit).prop_map(|(number, unit)| format!("\"{number}{unit}\""))
}

fn limit() -> impl Strategy<Value = String> {
    let options = vec![
        "",
        " burst 7",
        " sliding_log",
        " pacing",
        " wait 2s",
        " queue 3",
        " leaky_bucket burst 1",
        " fixed_window",
        " gcra",
    ];
    let rate = (1..100_000_u64, duration(), prop::sample::select(options)).prop_map(
        |(count, period, option)| format!("\"{count}/{}{option}\"", period.trim_matches('"')),
    );
    prop_oneof![
        4 => rate,
        1 => prop::sample::select(vec!["\"unlimited\"".to_owned(), "\"0\"".to_owned(), "\"3 concurrent\"".to_owned()]),
    ]
}

fn conditions() -> impl Strategy<Value = Vec<String>> {
    let path = prop::sample::select(vec!["/", "/a", "/a/*", "/**", "/%20/b/**"])
        .prop_map(|path| format!("\"{path}\""));
    let host = prop::sample::select(vec!["a.b", "*.Ab", "[::1]", "x."])
        .prop_map(|host| format!("\"{host}\""));
    let ip = prop::sample::select(vec!["10.0.0.0/8", "::1", "::ffff:1.2.3.4", "1.2.3.4/7"])
        .prop_map(|ip| format!("\"{ip}\""));
    let one = prop_oneof![
        "[a-zA-Z]{1,5}".prop_map(|method| format!("method = \"{method}\"")),
        prop::collection::vec(path, 0..3)
            .prop_map(|paths| format!("path = [{}]", paths.join(", "))),
        host.prop_map(|host| format!("host = {host}")),
        ip.prop_map(|ip| format!("ip = [{ip}, \"2.2.2.2\"]")),
        text().prop_map(|text| format!("user = {text}")),
        text().prop_map(|text| format!("api_key = [{text}]")),
        text().prop_map(|text| format!("tenant = {text}")),
        (text(), text()).prop_map(|(name, value)| format!("attribute = {{ {name} = {value} }}")),
        text().prop_map(|value| format!("header = {{ X-a = true, x-b = {value}, x-c = [] }}")),
        Just("not = { user = \"x\", header = { q = true } }".to_owned()),
        Just("not = {}".to_owned()),
    ];
    prop::collection::vec(one, 0..6).prop_map(|mut keys| {
        keys.sort();
        keys.dedup_by_key(|key| key.split(' ').next().map(ToOwned::to_owned));
        keys
    })
}

fn policy() -> impl Strategy<Value = String> {
    let one = prop_oneof![
        (text(), text()).prop_map(|(one, other)| format!("key = [\"ip\", {one}, {other}]")),
        number().prop_map(|cost| format!("cost = {cost}")),
        (text(), number()).prop_map(|(name, cost)| format!("cost = {{ attribute = {name}, default = {cost} }}")),
        prop::sample::select(vec!["count = \"failures\"".to_owned(), "count = \"successes\"".to_owned()]),
        (100..999_u16, 0..99_u16).prop_map(|(first, more)| {
            format!("failure_status = [{first}, \"{first}-{}\", \"5xx\"]", (first + more).min(999))
        }),
        duration().prop_map(|max| format!("action = \"delay\"\nmax_delay = {max}")),
        Just("action = \"shadow\"".to_owned()),
        Just("status = 503".to_owned()),
        (0.0..=100.0_f64).prop_map(|percent| format!("rollout = {percent:?}")),
        Just("final = true".to_owned()),
        Just("on_failure = \"closed\"".to_owned()),
        Just("mode = \"leased\"".to_owned()),
        (20..60_000_u64).prop_map(|ms| format!("mode = \"leased\"\nstaleness = \"{ms}ms\"")),
        (1..99_u64, duration(), duration())
            .prop_map(|(n, within, ban)| format!("penalty = {{ denials = {n}, within = {within}, ban = {ban} }}")),
        (text(), text(), number(), 0.0..=100.0_f64).prop_map(|(name, other, units, share)| {
            format!("class = {{ attribute = {name}, default = {other}, reserve = {{ {other} = {units}, _ = \"{share}%\" }} }}")
        }),
    ];
    let limits = prop_oneof![
        limit().prop_map(|limit| format!("limit = {limit}")),
        prop::collection::vec(limit(), 1..3)
            .prop_map(|limits| format!("limits = [{}]", limits.join(", "))),
        Just("plan = { default = \"p\" }".to_owned()),
    ];
    (
        text(),
        conditions(),
        limits,
        prop::collection::vec(one, 0..5),
    )
        .prop_map(|(name, conditions, limits, mut keys)| {
            keys.sort();
            keys.dedup_by_key(|key| key.split(' ').next().map(ToOwned::to_owned));
            format!(
                "[[policy]]\nname = {name}\nmatch = {{ {} }}\n{limits}\n{}\n",
                conditions.join(", "),
                keys.join("\n")
            )
        })
}

fn store() -> impl Strategy<Value = String> {
    let url = prop::sample::select(vec![
        "redis://:p%20w@h",
        "rediss://a:b:c@[::1]:1/2",
        "unix:///a?db=1&user=x&pass=y&db=0",
        "redis+sentinel://:p@a,b:1/m/2",
        "rediss+cluster://a:b@a:1,b:2",
    ]);
    let redis = (url, duration(), "[!-z|~]{1,64}", 1..=10_000_u32, text(), text()).prop_map(
        |(url, timeout, prefix, nodes, secret, file)| {
            let prefix = prefix.replace(['"', '\\'], "-");
            format!(
                "[store]\nkind = \"redis\"\nurl = \"{url}\"\ntimeout = {timeout}\nprefix = \"{prefix}\"\nnodes = {nodes}\n\
                 key_secret = \"0123456789abcde{}\nca_file = {file}\non_failure = \"open\"\n",
                &secret[1..]
            )
        },
    );
    prop_oneof![1 => Just(String::new()), 1 => redis]
}

fn file() -> impl Strategy<Value = String> {
    let entry = (conditions(), 0..9999_u16, text()).prop_map(|(conditions, fraction, reason)| {
        format!(
            "{}\nuntil = 2031-05-06T07:08:09.{fraction:04}+03:30\nreason = {reason}\n",
            conditions.join("\n")
        )
    });
    let entries = prop::collection::vec(entry, 0..2).boxed();
    let policies = prop::collection::vec(policy(), 0..4);
    (store(), limit(), text(), policies, entries.clone(), entries).prop_map(
        |(store, limit, plan, policies, allow, deny)| {
            let mut text =
                format!("{store}[plans.{plan}]\nlimit = {limit}\n[plans.p]\nlimits = [{limit}]\n");
            text += &policies.concat();
            text.extend(allow.iter().map(|entry| format!("[[allow]]\n{entry}")));
            text.extend(deny.iter().map(|entry| format!("[[deny]]\n{entry}")));
            text
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    /// Any file that loads without errors is shown as a file that loads to the same.
    #[test]
    fn any_valid_file_is_shown_as_one_that_loads_to_the_same(text in file()) {
        let loaded = load(&text, &[]);
        if let Some(config) = &loaded.config {
            let shown = config.to_toml();
            let again = load(&shown, &[]);
            prop_assert_eq!(again.config.as_ref(), Some(config), "{}\n{:?}", shown, again.diagnostics);
            prop_assert!(!config.to_markdown().is_empty());
            // With comments, and with secrets hidden, it is still a valid file.
            let hidden = loaded.show().unwrap();
            prop_assert!(load(&hidden, &[]).config.is_some(), "{}\n{:?}", hidden, load(&hidden, &[]).diagnostics);
        }
    }

    /// The location of every diagnostic is within the file.
    #[test]
    fn any_text_is_read_without_a_panic(text in "(\\[\\[?(policy|server|plans\\.a|allow)\\]?\\]\n|(name|key|limit|match|http|enabled) ?= ?(\"[^\n\"]{0,5}\"|[0-9]{1,3}|\\{\\}|\\[\\])\n|\\PC{0,3}\n){0,12}") {
        for one in load(&text, &[]).diagnostics {
            if let crate::config::Location::File { line, column, .. } = one.location {
                let within = text.split('\n').nth(line - 1).is_some_and(|text| column <= text.chars().count() + 1);
                prop_assert!(within, "{} {}", line, column);
            }
        }
    }
}
