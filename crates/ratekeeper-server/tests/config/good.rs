//! Files without diagnostics, and the configuration that they mean.

use crate::config::{Certificate, Config, KeyDisplay, Listen};
use crate::{EXAMPLE, clean};
use ipnet::IpNet;
use ratekeeper::{Algorithm, Limit};
use ratekeeper_policy::config::Configuration;
use ratekeeper_policy::{
    Action, Attribute, Cost, Count, ListEntry, Match, Plan, Policies, Policy, PolicyLimit,
    policy::DenialStatus, policy::Penalty, policy::Reserve, policy::ReserveClasses,
    policy::Rollout, policy::StatusRange, request::TrustedPeers,
};

#[test]
fn an_empty_file_is_the_built_in_policy_on_loopback() {
    let config = clean("", &[]);
    assert_eq!(config.policies, Policies::built_in());
    let server = config.server;
    let ports = [server.http, server.grpc, server.resp, server.admin]
        .map(|address| address.unwrap().to_string());
    assert_eq!(
        ports,
        [
            "127.0.0.1:8080",
            "127.0.0.1:8081",
            "127.0.0.1:6380",
            "127.0.0.1:9090"
        ]
    );
    assert_eq!(
        (config.store.max_keys, config.store.max_bytes),
        (1_000_000, None)
    );
    assert!(config.identity.trusted_proxies.is_empty());
    assert_eq!(config.identity.header, "x-forwarded-for");
    assert_eq!(
        (config.identity.user, config.identity.api_key),
        (None, None)
    );
    assert_eq!(
        (config.stats.keys, config.stats.top),
        (KeyDisplay::Fingerprint, 1024)
    );
}

#[test]
fn the_example_has_its_documented_effect() {
    let config = clean(EXAMPLE, &[]);
    let proxies = "10.0.0.0/8".parse::<IpNet>().unwrap();
    assert_eq!(config.identity.trusted_proxies, TrustedPeers::from(proxies));
    let user = config.identity.user.as_ref().unwrap();
    assert_eq!(
        (user.header.as_str(), &user.from),
        ("x-user-id", &TrustedPeers::from(proxies))
    );
    assert_eq!(config.identity.api_key.as_deref(), Some("authorization"));
    let expected = Policies::new()
        .plan(Plan::new("free").limit(Limit::per_minute(60).burst(10)))
        .plan(
            Plan::new("pro")
                .limit(Limit::per_minute(600).burst(100))
                .limit(PolicyLimit::Concurrent(20)),
        )
        .policy(
            Policy::new("login")
                .matching(Match::new().method("POST").path("/login".parse().unwrap()))
                .key(Attribute::Ip)
                .limit(Limit::per_minute(5).algorithm(Algorithm::SlidingLog))
                .count(Count::Failures),
        )
        .policy(
            Policy::new("api")
                .matching(Match::new().path("/api/**".parse().unwrap()))
                .key(Attribute::User)
                .plan(Attribute::Plan, Some("free")),
        )
        .policy(
            Policy::new("everything")
                .limit(Limit::per_minute(100_000))
                .status(DenialStatus::ServiceUnavailable),
        );
    assert_eq!(config.policies, expected);
}

/// Every key that a policy, a plan and a list can have, in one file.
pub(crate) const EVERYTHING: &str = r#"
enabled = false
[server]
http = "0.0.0.0:80"
grpc = "off"
resp = "[::1]:6380"
admin = "off"
[store]
kind = "memory"
max_keys = 5
max_bytes = 4096
[identity]
trusted_proxies = ["10.0.0.0/8", "192.0.2.1", "2001:db8::/32", "::ffff:172.16.0.0/108"]
header = "Forwarded"
ipv6_prefix = 64
attributes = ["tokens", "kind", "region", "zone"]
[stats]
keys = "plain"
top = 64
[plans."free trial"]
limit = "1/s"
[plans.pro]
algorithm = "sliding_window"
limits = ["600/min", "5/s fixed_window", "unlimited"]
[[policy]]
name = "all \"keys\""
key = "header:X-Tenant"
limits = ["10/s burst 20", "1000/h", "20 concurrent"]
algorithm = "leaky_bucket"
cost = { attribute = "tokens", default = 3 }
count = "successes"
failure_status = [401, "500-599", "4xx"]
status = 429
class = { attribute = "kind", default = "batch", reserve = { batch = 2, crawler = "50%" } }
rollout = 12.5
final = true
penalty = { denials = 20, within = "10m", ban = "1h" }
[policy.match]
method = "get"
path = ["/a", "/b/*/c", "/d/**"]
host = "*.Example.com"
ip = ["10.1.0.0/16", "::1"]
user = "u"
api_key = ["k1", "k2"]
plan = "free"
tenant = ["a", "b"]
header = { "X-There" = true, x-one = "1", x-many = ["", "2"] }
attribute = { region = ["eu", "us"], zone = "a" }
not = { method = ["HEAD"], user = "root" }
[[policy]]
name = "watch"
match = { path = "/w" }
plan = { default = "pro" }
cost = 0
action = "shadow"
rollout = 100
failure_status = "5xx"
count = "failures"
[[policy]]
name = "late"
match = { path = "/l" }
limit = "5/s"
action = "delay"
max_delay = "1m"
[[allow]]
ip = "192.0.2.0/24"
until = 2030-01-01T00:00:00+01:00
reason = "ours"
[[deny]]
header = { user-agent = "bad" }
not = { user = "root" }
"#;

#[test]
fn a_single_value_is_a_list_of_one() {
    let file = |open: &str, close: &str| {
        let (policy, plan) = (
            "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\n",
            "[[policy]]\nname = \"b\"\nplan = {}\n",
        );
        format!(
            "[identity]\ntrusted_proxies = {open}\"10.0.0.0/8\"{close}\n[plans.free]\nlimits = {open}\"5/s\"{close}\n\
             {policy}key = {open}\"ip\"{close}\nlimits = {open}\"5/min\"{close}\n{plan}"
        )
    };
    assert_eq!(clean(&file("", ""), &[]), clean(&file("[", "]"), &[]));
}

#[test]
fn every_key_is_read() {
    let config = clean(EVERYTHING, &[]);
    assert_eq!((config.server.grpc, config.server.admin), (None, None));
    assert_eq!(config.server.resp.unwrap().to_string(), "[::1]:6380");
    assert_eq!(
        (config.store.max_keys, config.store.max_bytes),
        (5, Some(4096))
    );
    let proxies = config
        .identity
        .trusted_proxies
        .as_networks()
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>();
    assert_eq!(
        proxies,
        [
            "10.0.0.0/8",
            "192.0.2.1/32",
            "2001:db8::/32",
            "172.16.0.0/12"
        ]
    );
    assert_eq!(
        (config.identity.header.as_str(), config.identity.ipv6_prefix),
        ("forwarded", 64)
    );
    assert_eq!(
        config.identity.attributes,
        ["tokens", "kind", "region", "zone"]
    );
    assert_eq!(
        (config.stats.keys, config.stats.top),
        (KeyDisplay::Plain, 64)
    );
    let seconds = std::time::Duration::from_secs;
    let limit = |text: &str| text.parse::<PolicyLimit>().unwrap();
    let expected = Policies::new()
        .enabled(false)
        .ipv6_prefix(64)
        .plan(Plan::new("free trial").limit(Limit::per_second(1)))
        .plan(
            Plan::new("pro")
                .limit(Limit::per_minute(600).algorithm(Algorithm::SlidingWindow))
                .limit(Limit::per_second(5).algorithm(Algorithm::FixedWindow))
                .limit(Limit::unlimited()),
        )
        .policy(
            Policy::new("all \"keys\"")
                .matching(
                    Match::new()
                        .method("GET")
                        .path("/a".parse().unwrap())
                        .path("/b/*/c".parse().unwrap())
                        .path("/d/**".parse().unwrap())
                        .host("*.example.com".parse().unwrap())
                        .ip("10.1.0.0/16".parse().unwrap())
                        .ip("::1/128".parse().unwrap())
                        .attribute(Attribute::User, "u")
                        .attribute_is(Attribute::ApiKey, ["k1", "k2"])
                        .attribute(Attribute::Plan, "free")
                        .attribute_is(Attribute::Tenant, ["a", "b"])
                        .header("x-there")
                        .header_is("x-one", ["1"])
                        .header_is("x-many", ["", "2"])
                        .attribute_is("region", ["eu", "us"])
                        .attribute("zone", "a")
                        .unless(Match::new().method("HEAD").attribute("user", "root")),
                )
                .key("header:x-tenant")
                .limit(limit("10/s burst 20 leaky_bucket"))
                .limit(limit("1000/h leaky_bucket"))
                .limit(limit("20 concurrent"))
                .cost(Cost::Attribute {
                    attribute: "tokens".into(),
                    default: 3,
                })
                .count(Count::Successes)
                .failure_status(
                    [(401, 401), (500, 599), (400, 499)]
                        .map(|(first, last)| StatusRange { first, last }),
                )
                .reserves(
                    ReserveClasses::by("kind")
                        .default("batch")
                        .reserve("batch", Reserve::Units(2))
                        .reserve("crawler", Reserve::Percent(50.0)),
                )
                .rollout(Rollout::percent(12.5).unwrap())
                .stop()
                .penalty(Penalty {
                    denials: 20,
                    within: seconds(600),
                    ban: seconds(3600),
                }),
        )
        .policy(
            Policy::new("watch")
                .matching(Match::new().path("/w".parse().unwrap()))
                .plan("plan", Some("pro"))
                .cost(Cost::Units(0))
                .action(Action::Shadow)
                .failure_status([StatusRange {
                    first: 500,
                    last: 599,
                }])
                .count(Count::Failures),
        )
        .policy(
            Policy::new("late")
                .matching(Match::new().path("/l".parse().unwrap()))
                .limit(limit("5/s"))
                .action(Action::Delay { max: seconds(60) }),
        )
        .allow(
            ListEntry::new(Match::new().ip("192.0.2.0/24".parse().unwrap()))
                .until(ratekeeper::Timestamp::from_unix(seconds(
                    1_893_456_000 - 3600,
                )))
                .reason("ours"),
        )
        .deny(ListEntry::new(
            Match::new()
                .header_is("user-agent", ["bad"])
                .unless(Match::new().attribute("user", "root")),
        ));
    assert_eq!(config.policies, expected);
}

fn server(text: &str) -> crate::config::ServerConfig {
    let loaded = Config::parse("ratekeeper.toml", text, []);
    let config = loaded
        .config
        .unwrap_or_else(|| panic!("{:?}", loaded.diagnostics));
    assert_eq!(
        Config::parse("", &config.to_toml(), []).config,
        Some(config.clone()),
        "{}",
        config.to_toml()
    );
    config.server
}

#[test]
fn an_address_or_a_unix_socket() {
    let socket: Listen = "unix:/run/ratekeeper/http.sock".parse().unwrap();
    assert_eq!(socket, Listen::Unix("/run/ratekeeper/http.sock".into()));
    assert_eq!(
        "127.0.0.1:8080".parse::<Listen>().unwrap().to_string(),
        "127.0.0.1:8080"
    );
    assert!("unix:http.sock".parse::<Listen>().is_err());
}

#[test]
fn any_listener_may_be_a_unix_socket_and_its_peers_may_be_trusted() {
    let text = "[server]\nhttp = \"unix:/run/ratekeeper/http.sock\"\nadmin = \"unix:/run/a b.sock\"\n[identity]\n\
                trusted_proxies = [\"unix\", \"10.0.0.0/8\"]\n";
    let server = server(text);
    assert_eq!(
        server.http,
        Some(Listen::Unix("/run/ratekeeper/http.sock".into()))
    );
    assert_eq!(server.admin.unwrap().to_string(), "unix:/run/a b.sock");
    let identity = Config::parse("", text, []).config.unwrap().identity;
    assert!(
        identity.trusted_proxies.has_unix() && identity.trusted_proxies.as_networks().len() == 1,
        "{identity:?}"
    );
}

/// A key that one listener does not set is taken from `[server.tls]`.
#[test]
fn certificates_are_for_all_listeners_or_for_one() {
    let all = server("[server.tls]\ncert = \"c\"\nkey = \"k\"\n").tls;
    let expected = Some(Certificate::new("c", "k"));
    assert_eq!(
        (&all.http, &all.grpc, &all.resp, &all.admin),
        (&expected, &expected, &expected, &expected)
    );
    let text = "[server.tls]\ncert = \"c\"\nkey = \"k\"\n[server.tls.admin]\nclient_ca = \"ca\"\n\
                [server.tls.grpc]\ncert = \"g\"\nkey = \"gk\"\n[server.tls.resp]\noff = true\n";
    let tls = server(text).tls;
    let mut admin = Certificate::new("c", "k");
    admin.client_ca = Some("ca".into());
    assert_eq!(
        (tls.http, tls.grpc),
        (expected, Some(Certificate::new("g", "gk")))
    );
    assert_eq!((tls.resp, tls.admin), (None, Some(admin)));
    let one = server("[server.tls.admin]\ncert = \"c\"\nkey = \"k\"\n").tls;
    assert!(one.http.is_none() && one.admin.is_some());
    let env = [
        ("RATEKEEPER_SERVER__TLS__CERT", "c"),
        ("RATEKEEPER_SERVER__TLS__ADMIN__CLIENT_CA", "ca"),
        ("RATEKEEPER_SERVER__TLS__KEY", "k"),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let tls = Config::parse("", "", env).config.unwrap().server.tls;
    assert_eq!(tls.admin.unwrap().client_ca, Some("ca".into()));
}
