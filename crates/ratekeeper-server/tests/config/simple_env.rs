//! The seven simple variables, and the policies that they define.

use crate::{clean, diagnostics, load};
use ratekeeper_policy::{Attribute, Missing, Policies, Policy, PolicyLimit};

fn limit(text: &str) -> PolicyLimit {
    text.parse().unwrap()
}

fn per_user(text: &str) -> Policy {
    Policy::new("per_user")
        .key(Attribute::User)
        .limit(limit(text))
        .stop()
}

fn per_ip(text: &str) -> Policy {
    Policy::new("per_ip")
        .key(Attribute::Ip)
        .limit(limit(text))
        .stop()
}

fn default(text: &str) -> Policy {
    Policy::new("default").limit(limit(text))
}

fn skips(policy: Policy) -> Policy {
    policy.missing(Missing::Skip)
}

fn all(policies: impl IntoIterator<Item = Policy>) -> Policies {
    policies.into_iter().fold(Policies::new(), Policies::policy)
}

#[test]
fn the_default_window_is_an_hour() {
    let (user, ip, any) = (
        ("RATE_LIMIT_PER_USER", "30"),
        ("RATE_LIMIT_PER_IP", "20"),
        ("RATE_LIMIT_DEFAULT", "100"),
    );
    for (env, expected) in [
        (&[any][..], all([default("100/h")])),
        (&[ip], all([per_ip("20/h")])),
        (&[ip, any], all([skips(per_ip("20/h")), default("100/h")])),
        (
            &[user, any],
            all([skips(per_user("30/h")), default("100/h")]),
        ),
        (&[user, ip], all([skips(per_user("30/h")), per_ip("20/h")])),
        (
            &[user, ip, any],
            all([
                skips(per_user("30/h")),
                skips(per_ip("20/h")),
                default("100/h"),
            ]),
        ),
    ] {
        assert_eq!(clean("", env).policies, expected, "{env:?}");
        let windowed = [env, &[("RATE_LIMIT_WINDOW", "60")]].concat();
        let minutes = clean("", &windowed).policies;
        for (policy, hourly) in minutes.iter().zip(expected.iter()) {
            assert_eq!(policy.name(), hourly.name());
            assert_ne!(policy, hourly);
        }
    }
    assert_eq!(
        clean("", &[any, ("RATE_LIMIT_WINDOW", "60")]).policies,
        all([default("100/min")])
    );
}

#[test]
fn all_policies_but_the_last_skip_requests_without_the_attribute() {
    let (user, ip, any) = (
        ("RATE_LIMIT_PER_USER", "30"),
        ("RATE_LIMIT_PER_IP", "20"),
        ("RATE_LIMIT_DEFAULT", "100"),
    );
    for (env, expected) in [
        (&[user][..], all([per_user("30/h")])),
        (&[ip], all([per_ip("20/h")])),
        (&[user, ip], all([skips(per_user("30/h")), per_ip("20/h")])),
        (&[ip, any], all([skips(per_ip("20/h")), default("100/h")])),
    ] {
        assert_eq!(clean("", env).policies, expected, "{env:?}");
    }
}

#[test]
fn a_burst_is_the_capacity_of_buckets_only() {
    let count = ("RATE_LIMIT_DEFAULT", "100");
    let burst = ("RATE_LIMIT_BURST", "20");
    let window = ("RATE_LIMIT_WINDOW", "60");
    assert_eq!(
        clean("", &[count, burst, window]).policies,
        all([default("100/min burst 20")])
    );
    for (algorithm, expected) in [
        ("token_bucket", "100/min burst 20"),
        ("gcra", "100/min burst 20"),
        ("leaky_bucket", "100/min burst 20 leaky_bucket"),
    ] {
        let env = [count, burst, window, ("RATE_LIMIT_ALGORITHM", algorithm)];
        assert_eq!(clean("", &env).policies, all([default(expected)]));
    }
    for algorithm in [
        "pacing",
        "fixed_window",
        "fixed_window_first_hit",
        "sliding_window",
        "sliding_window_strict",
        "sliding_log",
    ] {
        let env = [count, window, ("RATE_LIMIT_ALGORITHM", algorithm)];
        let expected = all([default(&format!("100/min {algorithm}"))]);
        assert_eq!(clean("", &env).policies, expected);
        let env = [count, burst, window, ("RATE_LIMIT_ALGORITHM", algorithm)];
        assert_eq!(load("", &env).config.unwrap().policies, expected);
        assert_eq!(
            diagnostics("", &env),
            format!(
                "RATE_LIMIT_BURST: warning: ignored with {algorithm}: only token_bucket and leaky_bucket have a burst; unset it\n"
            )
        );
    }
}

#[test]
fn disabled_overrides_all_limits() {
    for no in ["false", "0", "no", "off", "FALSE", "Off"] {
        assert_eq!(
            clean("", &[("RATE_LIMIT_ENABLED", no)]).policies,
            Policies::built_in().enabled(false)
        );
        let env = [("RATE_LIMIT_ENABLED", no), ("RATE_LIMIT_DEFAULT", "5")];
        assert_eq!(
            clean("", &env).policies,
            all([default("5/h")]).enabled(false)
        );
    }
    for yes in ["true", "1", "yes", "on", "True"] {
        assert_eq!(
            clean("", &[("RATE_LIMIT_ENABLED", yes)]).policies,
            Policies::built_in()
        );
        // Env beats file; the longer name beats the shorter.
        assert_eq!(
            clean("enabled = false", &[("RATE_LIMIT_ENABLED", yes)]).policies,
            Policies::built_in()
        );
        let env = [("RATE_LIMIT_ENABLED", yes), ("RATEKEEPER_ENABLED", "false")];
        assert_eq!(
            clean("", &env).policies,
            Policies::built_in().enabled(false)
        );
    }
}

#[test]
fn without_a_limit_the_built_in_policy_applies() {
    for env in [
        ("RATE_LIMIT_WINDOW", "60"),
        ("RATE_LIMIT_BURST", "5"),
        ("RATE_LIMIT_ALGORITHM", "sliding_log"),
    ] {
        let loaded = load("", &[env]);
        assert_eq!(
            loaded.config.unwrap().policies,
            Policies::built_in(),
            "{env:?}"
        );
    }
    snapshot!(diagnostics("", &[("RATE_LIMIT_WINDOW", "60")]));
    assert_eq!(
        clean("", &[("RATE_LIMIT_DEFAULT", ""), ("RATE_LIMIT_WINDOW", "")]).policies,
        Policies::built_in()
    );
}

#[test]
fn zero_denies_all() {
    assert_eq!(
        clean("", &[("RATE_LIMIT_DEFAULT", "0")]).policies,
        all([default("0/h")])
    );
}

#[test]
fn a_file_with_policies_takes_precedence() {
    let text = "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimit = \"5/min\"";
    let env = [
        ("RATE_LIMIT_DEFAULT", "not even a number"),
        ("RATE_LIMIT_ENABLED", "false"),
    ];
    let loaded = load(text, &env);
    assert_eq!(loaded.config, load(text, &[]).config);
    snapshot!(diagnostics(text, &env));
    snapshot!(diagnostics(text, &env[..1]));
    // In a file without policies they apply.
    assert_eq!(
        clean("[store]\nmax_keys = 5", &[("RATE_LIMIT_DEFAULT", "5")]).policies,
        all([default("5/h")])
    );
}

#[test]
fn an_error_names_the_variable() {
    snapshot!(diagnostics(
        "",
        &[
            ("RATE_LIMIT_ENABLED", "maybe"),
            ("RATE_LIMIT_ALGORITHM", "leaky"),
            ("RATE_LIMIT_DEFAULT", "-1"),
            ("RATE_LIMIT_WINDOW", "0"),
            ("RATE_LIMIT_PER_IP", "1.5"),
            ("RATE_LIMIT_PER_USER", "99999999999999999999"),
            ("RATE_LIMIT_BURST", "0"),
        ],
    ));
    let too_long = [
        ("RATE_LIMIT_DEFAULT", "1"),
        ("RATE_LIMIT_WINDOW", "3600"),
        ("RATE_LIMIT_BURST", "9999999999"),
    ];
    snapshot!(diagnostics("", &too_long));
}

#[test]
fn a_warning_names_the_variable() {
    snapshot!(diagnostics(
        "",
        &[("RATE_LIMIT_DEFAULT", "10000"), ("RATE_LIMIT_BURST", "5")]
    ));
    snapshot!(diagnostics(
        "",
        &[("RATE_LIMIT_PERIP", "10"), ("RATE_LIMIT_REDIS_URL", "x")]
    ));
}
