//! `[store]` with Redis: reading, messages, and hiding of secrets.

use crate::bad::table;
use crate::config::redis_url::{RedisUrl, RedisUrlError};
use crate::{clean, diagnostics, load};
use ratekeeper::{Limit, store::OnFailure};
use ratekeeper_policy::config::Configuration;
use ratekeeper_policy::{Attribute, Match, Policies, Policy};
use std::path::Path;
use std::time::Duration;

const URL: &str = "[store]\nkind = \"redis\"\nurl = \"redis://127.0.0.1:6379\"\n";

/// Every key of Redis.
const ALL: &str = r#"
[store]
kind = "redis"
max_keys = 5
max_bytes = 4096
url = "rediss+sentinel://ann:s3cret@redis.example.com:6380/main/2"
timeout = "250ms"
on_failure = "open"
prefix = "shop:eu"
nodes = 7
key_secret = "s3cret, and longer"
connections = 4
ca_file = "/etc/ssl/ours.pem"
sentinel_user = "watcher"
sentinel_password = "s3cret too"
[[policy]]
name = "login"
match = { path = "/login" }
key = "ip"
limit = "5/min"
on_failure = "closed"
[[policy]]
name = "everything"
limit = "1000/s"
mode = "leased"
staleness = "250ms"
"#;

#[test]
fn only_the_url_is_required() {
    let config = clean(URL, &[]);
    assert_eq!(
        (config.store.max_keys, config.store.max_bytes),
        (1_000_000, None)
    );
    let redis = config.store.redis.clone().unwrap();
    assert_eq!(
        (redis.url.reveal(), redis.url.is_tls()),
        ("redis://127.0.0.1:6379", false)
    );
    assert_eq!(redis.timeout, Duration::from_millis(10));
    assert_eq!(
        (&*redis.prefix, redis.nodes, redis.connections),
        ("ratekeeper", 1, 2)
    );
    assert_eq!((config.store.key_secret, redis.ca_file), (None, None));
    assert_eq!(config.policies, Policies::built_in());
    assert_eq!(config.policies.default_on_failure(), OnFailure::LocalShare);
    assert_eq!(clean("", &[]).store.redis, None);
}

#[test]
fn fingerprints_have_a_secret_without_redis_too() {
    let config = clean("[store]\nkey_secret = \"s3cret, and longer\"", &[]);
    assert_eq!(
        config.store.key_secret.unwrap().reveal(),
        "s3cret, and longer"
    );
}

#[test]
fn every_key_of_redis_is_read() {
    let config = clean(ALL, &[]);
    assert_eq!(
        (config.store.max_keys, config.store.max_bytes),
        (5, Some(4096))
    );
    let redis = config.store.redis.clone().unwrap();
    assert_eq!(
        redis.url.reveal(),
        "rediss+sentinel://ann:s3cret@redis.example.com:6380/main/2"
    );
    assert!(redis.url.is_tls() && redis.url.has_sentinels());
    assert_eq!(redis.sentinel_user.as_deref(), Some("watcher"));
    assert_eq!(redis.sentinel_password.unwrap().reveal(), "s3cret too");
    assert_eq!(redis.timeout, Duration::from_millis(250));
    assert_eq!(
        (&*redis.prefix, redis.nodes, redis.connections),
        ("shop:eu", 7, 4)
    );
    assert_eq!(
        config.store.key_secret.unwrap().reveal(),
        "s3cret, and longer"
    );
    assert_eq!(
        redis.ca_file.as_deref(),
        Some(Path::new("/etc/ssl/ours.pem"))
    );
    let login = Policy::new("login")
        .matching(Match::new().path("/login".parse().unwrap()))
        .key(Attribute::Ip);
    let expected = Policies::new()
        .on_failure(OnFailure::Open)
        .policy(
            login
                .limit(Limit::per_minute(5))
                .on_failure(OnFailure::Closed),
        )
        .policy(
            Policy::new("everything")
                .limit(Limit::per_second(1000))
                .leased(Duration::from_millis(250)),
        );
    assert_eq!(config.policies, expected);
}

#[test]
fn variables_set_every_key() {
    let variables = [
        ("RATEKEEPER_STORE__KIND", "redis"),
        (
            "RATEKEEPER_STORE__URL",
            " unix:///run/redis.sock?db=1&pass=s3cret ",
        ),
        ("RATEKEEPER_STORE__TIMEOUT", "1s"),
        ("RATEKEEPER_STORE__ON_FAILURE", "closed"),
        ("RATEKEEPER_STORE__PREFIX", "t"),
        ("RATEKEEPER_STORE__NODES", "10_000"),
        ("RATEKEEPER_STORE__KEY_SECRET", "0123456789abcdef"),
        ("RATEKEEPER_STORE__CONNECTIONS", "64"),
    ];
    let config = clean("[store]\nurl = \"redis://elsewhere\"", &variables);
    let redis = config.store.redis.clone().unwrap();
    assert_eq!(
        redis.url.reveal(),
        "unix:///run/redis.sock?db=1&pass=s3cret"
    );
    assert_eq!(
        (redis.timeout, &*redis.prefix, redis.nodes),
        (Duration::from_secs(1), "t", 10_000)
    );
    assert_eq!(
        (config.store.key_secret.unwrap().reveal(), redis.connections),
        ("0123456789abcdef", 64)
    );
    assert_eq!(config.policies.default_on_failure(), OnFailure::Closed);
    snapshot!(load("", &variables).show().unwrap());
}

#[test]
fn errors() {
    snapshot!(table(&[
        "[store]\nkind = \"redis\"",
        "[store]\nkind = \"reddis\"\nurl = \"redis://127.0.0.1\"",
        "[store]\nkind = \"redis\"\nurl = \"\"",
        "[store]\nkind = \"redis\"\nurl = 6379",
        "[store]\nkind = \"redis\"\nurl = \"http://127.0.0.1:6379\"",
        "[store]\nkind = \"redis\"\nurl = \"127.0.0.1:6379\"",
        "[store]\nkind = \"redis\"\nurl = \"redis://\"",
        "[store]\nkind = \"redis\"\nurl = \"redis://127.0.0.1:99999\"",
        "[store]\nkind = \"redis\"\nurl = \"redis://127.0.0.1/cache\"",
        "[store]\nkind = \"redis\"\nurl = \"redis://ann@127.0.0.1\"",
        "[store]\nkind = \"redis\"\nurl = \"redis://127.0.0.1 \"",
        "[store]\nkind = \"redis\"\nurl = \"unix://ann:pw@/run/redis.sock\"",
        "[store]\nkind = \"redis\"\nurl = \"redis://h\"\nmode = \"leased\"\ntimeout = \"11s\"\non_failure = \"opne\"",
        "[store]\nkind = \"redis\"\nurl = \"redis://h\"\ntimeout = \"999us\"\nprefix = \"a b\"\nnodes = 0\nconnections = 65",
        "[store]\nkind = \"redis\"\nurl = \"redis://h\"\nkey_secret = \"s3cret\"\nprefix = \"{a}\"\nnodes = 10001",
        "[store]\nkind = \"redis\"\nurl = \"redis://h\"\ntimeout = 10\nca_file = \"\"",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimit = \"5/s\"\non_failure = \"fail_open\"",
        "[store]\nkind = \"redis\"\nurl = \"redis+sentinel://h\"",
        "[store]\nkind = \"redis\"\nurl = \"redis+cluster://h/1\"",
        "[store]\nkind = \"redis\"\nurl = \"redis+sentinel://h/m\"\nsentinel_user = \"a\"",
        "[store]\nkind = \"redis\"\nurl = \"redis+cluster://h\"\n[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\n\
         key = [\"user\", \"ip\"]\ntag = \"ip\"\nlimit = \"5/s\"",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimit = \"5/s\"\nmode = \"leesed\"\nstaleness = \"19ms\"",
    ]));
}

/// A file with one leased policy.
fn leased(store: &str, policy: &str) -> String {
    let url = if store == "redis" {
        "url = \"redis://h\"\n"
    } else {
        ""
    };
    format!(
        "[store]\nkind = \"{store}\"\n{url}[[policy]]\nname = \"a\"\nmatch = {{ path = \"/a\" }}\n{policy}\nmode = \"leased\""
    )
}

#[test]
fn warnings() {
    snapshot!(table(&[
        "[store]\nurl = \"redis://h\"\nnodes = 3\non_failure = \"open\"",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimit = \"5/s\"\non_failure = \"open\"",
        "[store]\nkind = \"redis\"\nurl = \"redis://h\"\nca_file = \"/ca.pem\"",
        "[store]\nkind = \"redis\"\nurl = \"redis+cluster://h\"\nsentinel_user = \"a\"\nsentinel_password = \"b\"",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nkey = [\"user\"]\ntag = [\"user\"]\nlimit = \"5/s\"",
        &leased("memory", "limit = \"1000/s\""),
        &leased("redis", "limits = [\"1000/s\", \"20 concurrent\"]"),
        &leased("redis", "limit = \"10/s burst 15\""),
        &leased("redis", "limit = \"1000/s wait 2s\""),
        &leased("redis", "limit = \"1000/s fixed_window_first_hit\""),
        &leased("redis", "limit = \"1000/s\"\naction = \"shadow\""),
        &leased(
            "redis",
            "limit = \"1000/s\"\naction = \"delay\"\nmax_delay = \"1s\""
        ),
        &leased(
            "redis",
            "limit = \"1000/s\"\npenalty = { denials = 5, within = \"1m\", ban = \"1h\" }"
        ),
        "[store]\nkind = \"redis\"\nurl = \"redis://h\"\n[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimit = \"50/s\"\nstaleness = \"1s\"",
    ]));
    let ignored = "[store]\nurl = \"redis://h\"\non_failure = \"open\"";
    let config = load(ignored, &[]).config.unwrap();
    assert_eq!(
        (config.store.redis, config.policies.default_on_failure()),
        (None, OnFailure::LocalShare)
    );
    let messages = diagnostics(
        URL,
        &[
            ("RATEKEEPER_STORE__KIND", "memory"),
            ("RATEKEEPER_STORE__NODES", "3"),
        ],
    );
    let places: Vec<_> = messages
        .lines()
        .map(|line| line.split(": ").next().unwrap())
        .collect();
    assert_eq!(places, ["ratekeeper.toml:3:1", "RATEKEEPER_STORE__NODES"]);
}

#[test]
fn valid_urls_and_how_they_are_shown() {
    for (text, shown) in [
        ("redis://127.0.0.1:6379", "redis://127.0.0.1:6379"),
        ("redis://localhost", "redis://localhost"),
        (
            "redis://my_redis-1.internal.:1/",
            "redis://my_redis-1.internal.:1/",
        ),
        ("rediss://[::1]:6379/15", "rediss://[::1]:6379/15"),
        ("redis://[2001:db8::1]", "redis://[2001:db8::1]"),
        ("redis://ann:s3cret@h:6379/0", "redis://ann:***@h:6379/0"),
        ("redis://:s3cret@h", "redis://:***@h"),
        ("redis://ann:s3cr@t:x@h", "redis://ann:***@h"),
        ("redis://ann:s3cr%2Ft@h", "redis://ann:***@h"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
        (
            "redis+unix:///r.sock?db=3&user=ann&pass=s3cret",
            "redis+unix:///r.sock?db=3&user=ann&pass=***",
        ),
        ("unix:///r.sock?pass=s3cret", "unix:///r.sock?pass=***"),
        (
            "redis+sentinel://a:26379,b,[::1]:3/main",
            "redis+sentinel://a:26379,b,[::1]:3/main",
        ),
        (
            "rediss+sentinel://ann:s3cret@a,b/my-master.1/2",
            "rediss+sentinel://ann:***@a,b/my-master.1/2",
        ),
        (
            "redis+cluster://:s3cret@a:7000,b:7001",
            "redis+cluster://:***@a:7000,b:7001",
        ),
        ("rediss+cluster://a/0", "rediss+cluster://a/0"),
    ] {
        let url: RedisUrl = text
            .parse()
            .unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(
            (url.reveal(), &*url.to_string(), &*format!("{url:?}")),
            (text, shown, shown)
        );
        // The shown form can be parsed again.
        assert_eq!(
            shown.parse::<RedisUrl>().map(|url| url.to_string()),
            Ok(shown.to_owned())
        );
    }
}

#[test]
fn invalid_urls() {
    use RedisUrlError::{Blank, Cluster, Database, Host, Port, Primary, Scheme, Socket, User};
    let scheme = |scheme: &str| Scheme(Some(scheme.to_owned()));
    for (text, why) in [
        ("", Scheme(None)),
        ("localhost", Scheme(None)),
        ("redis:127.0.0.1", Scheme(None)),
        ("ann:s3cret@redis://h", Scheme(None)),
        ("https://h", scheme("https")),
        ("Redis://h", scheme("Redis")),
        ("redis+tls://h", scheme("redis+tls")),
        ("redis://a b", Blank),
        ("redis://h\n", Blank),
        ("redis://", Host),
        ("redis://:6379", Host),
        ("redis://:s3cret@", Host),
        ("redis://[::1", Host),
        ("redis://[localhost]", Host),
        ("redis://[::1]6379", Host),
        ("redis://a,b", Host),
        ("redis://höst", Host),
        ("redis://h:", Port),
        ("redis://h:0", Port),
        ("redis://h:65536", Port),
        ("redis://h:+1", Port),
        ("redis://ann:s3/cret@h", Port),
        ("redis://h/x", Database),
        ("redis://h/0/1", Database),
        ("redis://h?db=1", Database),
        ("redis://h#1", Database),
        ("redis://h/99999999999", Database),
        ("redis://ann:1/cret@h", Database),
        ("redis://s3cret@h", User),
        ("redis://ann:@h", User),
        ("redis://:@h", User),
        ("unix://", Socket),
        ("unix:///", Socket),
        ("unix://run/redis.sock", Socket),
        ("unix:///r.sock?password=s3cret", Socket),
        ("unix:///r.sock?pass=s3#cret", Socket),
        ("unix:///r.sock?db=x", Database),
        ("unix:///r.sock?user=ann", User),
        ("unix:///r.sock?user=ann&pass=", User),
        ("redis+sentinel://a", Primary),
        ("redis+sentinel://a/", Primary),
        ("redis+sentinel://a/main/x", Primary),
        ("redis+sentinel://a/ma:in", Primary),
        ("redis+sentinel://a,/main", Host),
        ("redis+sentinel://a:0,b/main", Port),
        ("redis+sentinel://ann@a/main", User),
        ("redis+cluster://", Host),
        ("redis+cluster://a,,b", Host),
        ("redis+cluster://a:1,b:x", Port),
        ("redis+cluster://a/1", Cluster),
        ("redis+cluster://a?x", Cluster),
        ("redis+cluster://:s3/cret@a", Host),
    ] {
        let error = text.parse::<RedisUrl>().expect_err(text);
        assert_eq!(error, why, "{text}");
        assert!(!error.to_string().contains("s3"), "{error}");
    }
}

#[test]
fn secrets_are_neither_shown_nor_in_messages() {
    let loaded = load(ALL, &[]);
    let shown = loaded.show().unwrap();
    assert!(
        !shown.contains("s3cret") && !format!("{loaded:?}").contains("s3cret"),
        "{shown}"
    );
    assert!(
        shown.contains("url = \"rediss+sentinel://ann:***@redis.example.com:6380/main/2\" # ratekeeper.toml:6\n"),
        "{shown}"
    );
    assert!(
        shown.contains("sentinel_password = \"(hidden)\""),
        "{shown}"
    );
    assert!(
        shown.contains("key_secret = \"(hidden, 16 bytes or more)\""),
        "{shown}"
    );
    assert!(
        load(&shown, &[]).config.is_some(),
        "{:?}",
        load(&shown, &[]).diagnostics
    );
    for url in [
        "redis://ann:s3/cret@h",
        "redis://s3cret@h",
        "ann:s3cret@h",
        "redis://h:s3cret",
    ] {
        let messages = diagnostics(
            &ALL.replace(
                "rediss+sentinel://ann:s3cret@redis.example.com:6380/main/2",
                url,
            ),
            &[],
        );
        assert!(
            messages.contains("error: `url`") && !messages.contains("s3"),
            "{messages}"
        );
    }
    let list = diagnostics(
        "[store]\nkind = \"redis\"\nurl = [\"s3cret\"]\nkey_secret = { s3cret = 1 }",
        &[],
    );
    assert!(
        list.contains("`key_secret`") && !list.contains("s3"),
        "{list}"
    );
    let short = diagnostics(&ALL.replace("s3cret, and longer", "s3cret"), &[]);
    assert!(
        short.contains("`key_secret`") && !short.contains("s3cret"),
        "{short}"
    );
}

#[test]
fn redis_settings_are_shown_as_a_file_that_loads_to_the_same() {
    for text in [URL, ALL] {
        let config = load(text, &[]).config.unwrap();
        let shown = config.to_toml();
        assert_eq!(load(&shown, &[]).config, Some(config), "{shown}");
    }
}
