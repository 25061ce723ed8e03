//! Variables alone, over a file, and unknown ones.

use crate::config::{Config, KeyDisplay};
use crate::{EXAMPLE, clean, diagnostics, load};
use ratekeeper_policy::{Policies, request::TrustedPeers};

#[test]
fn variables_alone_are_enough() {
    let config = clean(
        "",
        &[
            ("RATEKEEPER_ENABLED", "No"),
            ("RATEKEEPER_SERVER__HTTP", "0.0.0.0:80"),
            ("RATEKEEPER_SERVER__GRPC", "off"),
            ("RATEKEEPER_STORE__KIND", "memory"),
            ("RATEKEEPER_STORE__MAX_KEYS", "1_000"),
            ("RATEKEEPER_STORE__MAX_BYTES", "5000"),
            ("RATEKEEPER_IDENTITY__TRUSTED_PROXIES", "10.0.0.0/8, ::1,"),
            ("RATEKEEPER_IDENTITY__HEADER", "X-Real-IP"),
            ("RATEKEEPER_IDENTITY__IPV6_PREFIX", "64"),
            ("RATEKEEPER_IDENTITY__USER__HEADER", "x-user"),
            ("RATEKEEPER_IDENTITY__USER__FROM", "10.0.0.0/8, unix"),
            ("RATEKEEPER_IDENTITY__API_KEY__HEADER", "x-key"),
            ("RATEKEEPER_STATS__KEYS", "plain"),
            ("RATEKEEPER_STATS__TOP", "100"),
            ("PATH", "/bin"),
        ],
    );
    assert_eq!(
        config.policies,
        Policies::built_in().enabled(false).ipv6_prefix(64)
    );
    assert_eq!(
        (
            config.server.http.unwrap().tcp().unwrap().port(),
            config.server.grpc
        ),
        (80, None)
    );
    assert_eq!(
        (config.store.max_keys, config.store.max_bytes),
        (1000, Some(5000))
    );
    assert_eq!(
        config.identity.trusted_proxies.as_networks(),
        ["10.0.0.0/8", "::1/128"].map(|text| text.parse().unwrap())
    );
    assert_eq!(
        (config.identity.header.as_str(), config.identity.ipv6_prefix),
        ("x-real-ip", 64)
    );
    let user = config.identity.user.unwrap();
    assert_eq!(
        (user.header.as_str(), config.identity.api_key.as_deref()),
        ("x-user", Some("x-key"))
    );
    assert_eq!(
        user.from,
        TrustedPeers::none()
            .network("10.0.0.0/8".parse().unwrap())
            .unix()
    );
    assert_eq!(
        (config.stats.keys, config.stats.top),
        (KeyDisplay::Plain, 100)
    );
}

#[test]
fn a_variable_overrides_the_file_which_overrides_the_default() {
    let text = format!("{EXAMPLE}\n[stats]\ntop = 77");
    let file = clean(&text, &[]);
    let both = clean(
        &text,
        &[
            ("RATEKEEPER_IDENTITY__USER__HEADER", "x-other"),
            ("RATEKEEPER_STATS__TOP", "99"),
        ],
    );
    assert_eq!(
        (file.stats.top, both.stats.top, clean("", &[]).stats.top),
        (77, 99, 1024)
    );
    let (of_file, of_both) = (
        file.identity.user.clone().unwrap(),
        both.identity.user.clone().unwrap(),
    );
    assert_eq!(
        (of_both.header.as_str(), of_both.from),
        ("x-other", of_file.from)
    );
    assert_eq!(
        (&both.server, &both.store, &both.policies),
        (&file.server, &file.store, &file.policies)
    );
    let empty = clean(
        &text,
        &[("RATEKEEPER_STATS__TOP", ""), ("RATEKEEPER_NOTHING", " ")],
    );
    assert_eq!(empty.stats.top, 77, "an empty variable is unset");
}

#[test]
fn an_error_in_a_variable_names_it() {
    snapshot!(diagnostics(
        "[store]\nmax_keys = 5",
        &[
            ("RATEKEEPER_STORE__MAX_KEYS", "many"),
            ("RATEKEEPER_SERVER__HTTP", "8080"),
            ("RATEKEEPER_ENABLED", "perhaps"),
            ("RATEKEEPER_STATS__KEYS", "plian"),
            ("RATEKEEPER_IDENTITY__TRUSTED_PROXIES", "10.0.0.0/8,home"),
            ("RATEKEEPER_SERVER_GRPC", "off"),
            ("RATEKEEPER_PORT", "tcp://10.0.0.1:80"),
            ("RATEKEEPER_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ],
    ));
    assert!(
        load("", &[("RATEKEEPER_PORT", "1")]).config.is_some(),
        "unknown variables are no errors"
    );
    // A value of the wrong type in the file is reported, not hidden by a variable.
    assert!(
        diagnostics("server = 3", &[("RATEKEEPER_SERVER__HTTP", "off")])
            .contains("`server` at the top level must be a table")
    );
}

#[test]
fn an_unreadable_file_differs_from_an_invalid_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ratekeeper.toml");
    let missing = Config::load(Some(&path), []);
    assert!(missing.unreadable && missing.has_errors() && missing.config.is_none());
    let messages = missing.diagnostics[0].to_string();
    assert!(
        messages.starts_with("error: cannot read ")
            && messages.contains("ratekeeper.toml: No such file"),
        "{messages}"
    );

    std::fs::write(&path, b"enabled = true\n# \xc3\xa9\xff").unwrap();
    let binary = Config::load(Some(&path), []);
    assert!(!binary.unreadable && binary.config.is_none());
    let messages = binary.diagnostics[0].to_string();
    assert!(
        messages.ends_with(
            "ratekeeper.toml:2:4: error: the file is not valid UTF-8; save it as UTF-8 text"
        ),
        "{messages}"
    );

    let directory_itself = Config::load(Some(directory.path()), []);
    assert!(directory_itself.unreadable);
    assert!(
        directory_itself.diagnostics[0]
            .message
            .ends_with(": it is a directory; name a regular file")
    );
    let device = Config::load(Some(std::path::Path::new("/dev/zero")), []);
    assert_eq!(
        device.diagnostics[0].to_string(),
        "error: cannot read /dev/zero: it is a device; name a regular file"
    );

    std::fs::write(&path, EXAMPLE).unwrap();
    let good = Config::load(Some(&path), []);
    assert_eq!((good.unreadable, good.diagnostics.len()), (false, 0));
    assert_eq!(good.config, load(EXAMPLE, &[]).config);
    assert_eq!(Config::load(None, []).config, load("", &[]).config);
}
