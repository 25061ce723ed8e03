//! Files with errors or warnings, and their exact messages: one snapshot for each kind of mistake.
//!
//! After a deliberate change of messages: `INSTA_UPDATE=always cargo test -p ratekeeper-server
//! --test config`, then review the difference.

use crate::config::Config;
use crate::diagnostics;
use std::fmt::Write as _;

/// The files, each followed by its diagnostics, as one text.
pub(crate) fn table(files: &[&str]) -> String {
    let mut table = String::new();
    for text in files {
        let messages = diagnostics(text, &[]);
        assert!(!messages.is_empty(), "no diagnostics for:\n{text}");
        for line in text.lines() {
            let _ = writeln!(table, "    {line}");
        }
        let _ = writeln!(table, "{messages}");
    }
    table
}

#[test]
fn invalid_toml() {
    snapshot!(table(&[
        "[server\nhttp = \"off\"",
        "enabled = yes",
        "enabled = true\nenabled = false",
        "[server]\n[server]",
        "[[policy]]\nname = \"log\nlimit = \"5/min\"\n\n[[policy]\nname = 3",
        "é = 1",
        "[store]\nmax_keys = 1__0",
        "[[allow]]\nuntil = 2030-13-01T00:00:00Z",
    ]));
}

#[test]
fn yaml_is_reported_once() {
    snapshot!(table(&[
        "# limits\n\ndomain: edge\ndescriptors:\n  - key: a\n    rate_limit:\n      unit: second\n",
        "---\npolicies: []\n",
        "- name: login\n  limit: 5/min\n",
        "server:\n  http: 127.0.0.1:8080\n",
    ]));
    let yaml = Config::parse("limits.yaml", "{ domain: edge }", []);
    assert_eq!(yaml.diagnostics.len(), 1);
    assert!(
        yaml.diagnostics[0]
            .to_string()
            .starts_with("limits.yaml:1:1: error: this is YAML, but ")
    );
    assert!(
        Config::parse("ratekeeper.yaml", "enabled = true", [])
            .config
            .is_some()
    );
}

#[test]
fn unknown_keys() {
    snapshot!(table(&[
        "enabeld = true",
        "[sever]\nhttp = \"off\"",
        "[server]\nhttps = \"off\"\nport = 80",
        "[[policy]]\nname = \"login\"\nmatch = { path = \"/login\" }\nlimt = \"5/min\"",
        "[[policy]]\nlimit = \"5/min\"\nper = \"ip\"",
        "[[policy]]\nname = \"a\"\nlimit = \"5/min\"\nmatch = { paht = \"/a\", not = { methods = \"GET\", not = {} } }",
        "[[policy]]\nname = \"a\"\nlimit = \"5/min\"\nmatch = { path = \"/a\" }\nclass = { reserves = { a = 1 } }",
        "[identity]\nuser = { name = \"x\" }",
        "[plans.free]\nlimit = \"5/min\"\nburst = 3\n[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nplan = {}",
        "[[allow]]\nipp = \"10.0.0.0/8\"\nuntil = 2030-01-01T00:00:00Z",
        "\"a\\nb\" = 1",
        "[server]\nhttp = \"off\"\nenabled = false\nmax_keys = 5",
        "http = \"off\"\nlimit = \"5/min\"",
    ]));
}

#[test]
fn values_of_the_wrong_type() {
    snapshot!(table(&[
        "enabled = 1",
        "server = \"off\"",
        "[server]\nhttp = 8080\ngrpc = \"localhost:8081\"\nresp = \"\"",
        "[store]\nkind = \"postgres\"\nmax_keys = 0\nmax_bytes = -1",
        "[store]\nmax_keys = 99999999999999999999999999999999999999999999",
        "[store]\nmax_keys = 1.5",
        "[identity]\ntrusted_proxies = 10",
        "[identity]\ntrusted_proxies = [\"10.0.0.0/40\", 3]\nheader = \"x forwarded\"\nipv6_prefix = 24",
        "[identity]\nuser = \"x-user-id\"\napi_key = {}",
        "[identity]\nuser = { header = \"x-user\" }",
        "[identity]\nuser = { header = \"x-user\", from = [] }",
        "[identity]\nuser = { from = [\"10.0.0.0/8\"] }",
        "[identity]\nuser = { header = \"x-user\", from = \"everybody\" }",
        "[stats]\nkeys = \"plian\"\ntop = 1",
        "plans = 3",
        "[plans]\nfree = \"5/min\"",
        "[policy]\nname = \"a\"\nlimit = \"5/min\"",
        "allow = [1]",
        "[[deny]]\nip = true\nreason = \"\"",
    ]));
}

#[test]
fn invalid_listeners_and_certificates() {
    snapshot!(table(&[
        "[server]\nhttp = \"unix:ratekeeper.sock\"\nresp = \"unix:\"\nadmin = \"unix:/run/\"",
        "[server]\nhttp = \"unix:/run/t.sock\"\nadmin = \"unix:/run/t.sock\"",
        "[server.tls]\ncert = \"c.pem\"",
        "[server.tls]\nclient_ca = \"ca.pem\"",
        "[server.tls.admin]\nclient_ca = \"ca.pem\"",
        "[server.tls]\ncert = \"c.pem\"\nkey = \"k.pem\"\n[server.tls.grpc]\nkey = \"g.pem\"\noff = 1",
        "[server]\ntls = \"c.pem\"",
        "[server.tls.https]\noff = true",
        "[[allow]]\nip = \"unix\"",
    ]));
}

#[test]
fn policies_with_invalid_values() {
    let policy = |rest: &str| {
        format!("[[policy]]\nname = \"a\"\nmatch = {{ path = \"/a\" }}\nlimit = \"5/min\"\n{rest}")
    };
    let rest = [
        "key = 3\ncost = -1",
        "key = [\"ip\", \"\"]",
        "key = \"header:\"",
        "cost = { attribute = \"header:x-tokens\", default = \"one\" }",
        "cost = { default = 1 }",
        "cost = \"5\"",
        "count = \"failure\"",
        "count = \"failures\"\nfailure_status = [99, \"600-500\", \"5x\", \"0xx\", \"4xx\"]",
        "action = \"drop\"",
        "action = \"delay\"",
        "action = \"delay\"\nmax_delay = \"2 s\"",
        "action = \"delay\"\nmax_delay = 500",
        "max_delay = \"2s\"",
        "status = 500",
        "rollout = 101",
        "rollout = nan",
        "final = \"yes\"",
        "class = { default = 3, reserve = { batch = \"half\", crawler = \"101%\", other = -1 } }",
        "class = { reserve = 5 }",
        "penalty = { denials = 0, within = \"10m\" }",
        "penalty = { denials = 20, within = \"0s\", ban = \"long\" }",
        "algorithm = \"sliding-log\"",
        "algorithm = \"leaky\"",
    ];
    snapshot!(table(&rest.map(policy).each_ref().map(String::as_str)));
}

#[test]
fn invalid_limits() {
    snapshot!(table(&[
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimit = \"5/fortnight\"",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimits = [\"5/s\", \"10/min bust 3\", \"0 concurrent\", 7]",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimit = \"100/min burst 20\"\nalgorithm = \"fixed_window\"",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimit = \"\\u0035/parsec\"",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimit = \"1/h burst 99999999999\"",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimit = \"\"",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimit = [\"5/min\"]",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimits = 5",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimits = []",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimit = \"5/min\"\nlimits = [\"5/min\"]",
        "[plans.free]\nlimit = \"5/min\"\n[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimit = \"5/min\"\nplan = { default = \"free\" }\nalgorithm = \"sliding_log\"",
        "[plans.free]\n[plans.pro]\nlimit = \"5\"\n[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nplan = { default = \"pro\" }",
        "[plans.free]\nlimit = \"5/min\"\n[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nplan = { default = \"fre\" }",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nplan = { attribute = \"plan\" }",
    ]));
}

#[test]
fn invalid_conditions() {
    let policy =
        |when: &str| format!("[[policy]]\nname = \"a\"\nlimit = \"5/min\"\nmatch = {when}");
    let when = [
        "\"/a\"",
        "{ method = [\"GET\", \"P O\"], path = 3 }",
        "{ path = [\"a\", \"/a/**/b\", \"/a*\", \"/a?b\", \"/a/../b\"] }",
        "{ host = [\"a.b:80\", \"\"] }",
        "{ path = \"/a\", ip = \"10.0.0\" }",
        "{ path = \"/a\", api_key = [1, 2], user = \"\" }",
        "{ path = \"/a\", header = { \"x y\" = true, x-b = false, x-c = [true], X-D = true, x-d = \"1\" } }",
        "{ path = \"/a\", header = true, attribute = [] }",
        "{ path = \"/a\", attribute = { user = \"1\", \"header:x\" = \"1\", endpoint = \"x\", class = 1, \"\" = \"x\" } }",
    ];
    snapshot!(table(&when.map(policy).each_ref().map(String::as_str)));
}

#[test]
fn invalid_list_entries() {
    snapshot!(table(&[
        "[[allow]]\nip = \"10.0.0.0/8\"\nuntil = 2030-01-01T00:00:00",
        "[[allow]]\nip = \"10.0.0.0/8\"\nuntil = 2030-01-01",
        "[[allow]]\nip = \"10.0.0.0/8\"\nuntil = \"2030-01-01T00:00:00Z\"",
        "[[deny]]\nip = \"10.0.0.0/8\"\nuntil = 1960-01-01T00:00:00Z",
        "[[deny]]\nreason = \"everybody\"",
        "[[allow]]\nip = \"10.0.0.0/8\"",
        "[[deny]]\nip = []",
    ]));
}

#[test]
fn conflicting_policies_and_listeners() {
    snapshot!(table(&[
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimit = \"5/s\"\n[[policy]]\nname = \"a\"\nlimit = \"5/s\"",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimit = \"5/s\"\nkey = [\"ip\", \"user\", \"ip\"]",
        "[[policy]]\nname = \"\"\nmatch = { path = \"/a\" }\nlimit = \"5/s\"",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimits = [\"5/s\", \"5/min sliding_log\"]\naction = \"delay\"\nmax_delay = \"2s\"",
        "[server]\nhttp = \"127.0.0.1:9000\"\nadmin = \"127.0.0.1:9000\"",
        "[server]\nhttp = \"127.0.0.1:9090\"",
    ]));
}

#[test]
fn refunds_of_delayed_requests() {
    let policy = |more: &str| {
        let common =
            "name = \"a\"\nmatch = { path = \"/a\" }\naction = \"delay\"\nmax_delay = \"2s\"";
        format!("[[policy]]\n{common}\n{more}")
    };
    let failures = |limit: &str| policy(&format!("count = \"failures\"\n{limit}"));
    snapshot!(table(&[
        &failures("limit = \"5/s\""),
        &failures("limits = [\"5/s\", \"100/h\"]"),
        &format!(
            "[plans.free]\nlimit = \"5/min\"\n{}",
            failures("plan = { attribute = \"plan\" }")
        ),
    ]));
    for fine in [
        policy("limit = \"5/s\""),
        failures("limit = \"5/s pacing\""),
    ] {
        assert_eq!(diagnostics(&fine, &[]), "", "{fine}");
    }
}

#[test]
fn warnings() {
    snapshot!(table(&[
        "[[policy]]\nname = \"a\"\nlimit = \"5/s\"",
        "[[policy]]\nname = \"a\"\nmatch = { path = [] }\nlimit = \"5/s\"",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\", not = { path = \"/**\" } }\nlimit = \"5/s\"",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\", not = {} }\nlimit = \"5/s\"",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a/**\" }\nlimit = \"5/s\"\nfinal = true\n[[policy]]\nname = \"b\"\nmatch = { path = \"/a/b\" }\nlimit = \"5/s\"",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimits = [\"5/s\", \"10000/min burst 5\"]",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimits = [\"10000/min burst 5\"]",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimit = \"5/s\"\ncost = 6",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimits = [\"5/s burst 0\", \"0/h burst 5\", \"0\"]",
        "[[policy]]\nname = \"a\"\nmatch = { path = [\"/users/:id\", \"/a/{b}\", \"/x/<int:y>/**\", \"/a:b/:\"] }\nlimit = \"5/s\"",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimit = \"5/s\"\nfailure_status = 401",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimit = \"5/s\"\naction = \"shadow\"\npenalty = { denials = 20, within = \"10m\", ban = \"1h\" }",
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nlimit = \"5/s\"\nclass = { default = \"x\", reserve = { all = 5 } }",
        "[plans.free]\nlimit = \"5/min\"",
        "[identity]\ntrusted_proxies = [\"0.0.0.0/0\"]",
        "[identity]\ntrusted_proxies = [\"10.1.2.3/8\"]",
    ]));
}

#[test]
fn several_errors_are_reported_in_order() {
    snapshot!(table(&["enabled = 3\n\
        [[policy]]\n\
        name = \"a\"\n\
        limit = \"5/fortnight\"\n\
        count = \"none\"\n\
        [[policy]]\n\
        limit = \"5/min\"\n\
        colour = \"red\"\n\
        [[policy]]\n\
        name = \"a\"\n\
        limit = \"5/min\"\n\
        [server]\n\
        http = true"]));
}

#[test]
fn columns_are_characters() {
    let messages = diagnostics(
        "[[policy]]\nname = \"é\"\nmatch = { user = \"äöü\", path = 3 }\nlimit = \"5/min\"",
        &[],
    );
    assert!(
        messages.starts_with(
            "ratekeeper.toml:3:32: error: `path` in `match` of [[policy]] \"é\" must be"
        ),
        "{messages}"
    );
    let bom = crate::diagnostics("\u{feff}enabled = 3", &[]);
    assert!(bom.starts_with("ratekeeper.toml:1:11: error"), "{bom}");
}

#[test]
fn secrets_are_not_in_messages() {
    let messages = diagnostics(
        "[[policy]]\nname = \"a\"\nlimit = \"1/s\"\nmatch = { path = \"/\", api_key = { secret = 1 } }",
        &[],
    );
    assert!(
        messages.contains("`api_key`") && !messages.contains("secret"),
        "{messages}"
    );
}

#[test]
fn unknown_attributes() {
    let identity = "[identity]\nattributes = [\"region\"]\n";
    let policy =
        |rest: &str| format!("{identity}[[policy]]\nname = \"a\"\nlimits = \"5/min\"\n{rest}\n");
    let policies = [
        "match = { path = \"/a\" }\nkey = [\"ip\", \"usr\"]",
        "match = { path = \"/a\" }\nkey = \"apikey\"",
        "match = { path = \"/a\" }\nkey = \"IP\"",
        "match = { path = \"/a\" }\nkey = \"x-tenant\"",
        "match = { path = \"/a\" }\nkey = \"something of my own\"",
        "match = { path = \"/a\" }\ncost = { attribute = \"regoin\" }",
        "match = { path = \"/a\" }\nclass = { attribute = \"clas\" }",
        "match = { path = \"/a\", attribute = { regions = \"eu\" } }",
        "match = { path = \"/a\", not = { attribute = { account = \"7\" } } }",
    ];
    snapshot!(table(&policies.map(policy).each_ref().map(String::as_str)));
    let rest = [
        "[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nplan = { attribute = \"plans\" }\n[plans.free]\nlimit = \"5/s\"",
        "[[deny]]\nattribute = { region = \"eu\" }",
        "[identity]\nattributes = [\"user\", \"header:x-a\", \"\", \"class\"]",
        // The declared attributes are invalid here, so unknown ones are not reported.
        "[identity]\nattributes = 3\n[[policy]]\nname = \"a\"\nmatch = { path = \"/a\" }\nkey = \"region\"\nlimit = \"1/s\"",
    ];
    snapshot!(table(&rest));
}
