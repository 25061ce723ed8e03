//! The seven plain variables, judged by the policies they stand for.

use crate::{clean, load, said};
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
fn numbers_are_an_hour_unless_said() {
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
fn a_policy_with_another_one_behind_it_skips_requests_and_the_last_one_does_not() {
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
            said("", &env),
            format!(
                "RATE_LIMIT_BURST: warning: only token_bucket and leaky_bucket have a burst, so it is ignored with {algorithm}; unset it\n"
            )
        );
    }
}

#[test]
fn disabled_is_disabled_whatever_the_numbers() {
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
fn without_a_number_the_built_in_policy_applies() {
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
    snapshot!(said("", &[("RATE_LIMIT_WINDOW", "60")]));
    assert_eq!(
        clean("", &[("RATE_LIMIT_DEFAULT", ""), ("RATE_LIMIT_WINDOW", "")]).policies,
        Policies::built_in()
    );
}

#[test]
fn zero_blocks_all() {
    assert_eq!(
        clean("", &[("RATE_LIMIT_DEFAULT", "0")]).policies,
        all([default("0/h")])
    );
}

#[test]
fn a_file_with_policies_goes_first() {
    let text = "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimit = \"5/min\"";
    let env = [
        ("RATE_LIMIT_DEFAULT", "not even a number"),
        ("RATE_LIMIT_ENABLED", "false"),
    ];
    let loaded = load(text, &env);
    assert_eq!(loaded.config, load(text, &[]).config);
    snapshot!(said(text, &env));
    snapshot!(said(text, &env[..1]));
    // One without takes what they say.
    assert_eq!(
        clean("[store]\nmax_keys = 5", &[("RATE_LIMIT_DEFAULT", "5")]).policies,
        all([default("5/h")])
    );
}

#[test]
fn what_is_wrong_names_the_variable() {
    snapshot!(said(
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
    snapshot!(said("", &too_long));
}

#[test]
fn what_is_doubtful_names_the_variable() {
    snapshot!(said(
        "",
        &[("RATE_LIMIT_DEFAULT", "10000"), ("RATE_LIMIT_BURST", "5")]
    ));
    snapshot!(said(
        "",
        &[("RATE_LIMIT_PERIP", "10"), ("RATE_LIMIT_REDIS_URL", "x")]
    ));
}
