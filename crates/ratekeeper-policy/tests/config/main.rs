//! Tests of the configuration of policies, and of the file watcher. The keys, their messages and
//! `config show` are tested with the whole file, in `ratekeeper-server`.

mod file_watcher;

use ratekeeper::Limit;
use ratekeeper_policy::config::Config;
use ratekeeper_policy::{Attribute, Policies, Policy};

#[test]
fn policies_are_read_and_the_tables_of_the_service_are_left_out() {
    let text = "[server]\nhttp = 3\n[store]\nkind = \"redis\"\n[gateway]\nupstreams = []\n\
                [stats]\ntop = 64\n[[policy]]\nname = \"login\"\nkey = \"ip\"\nlimit = \"5/min\"\n\
                match = { path = \"/login\" }\n";
    let loaded = Config::parse("ratekeeper.toml", text, []);
    assert_eq!(loaded.diagnostics, []);
    let config = loaded.config.unwrap();
    let matching = ratekeeper_policy::Match::new().path("/login".parse().unwrap());
    let login = Policy::new("login").matching(matching).key(Attribute::Ip);
    assert_eq!(
        config.policies,
        Policies::new().policy(login.limit(Limit::per_minute(5)))
    );
    assert_eq!(config.stats.top, 64);
    let again = Config::parse("", &config.to_toml(), []);
    assert_eq!(again.config, Some(config));
}

#[test]
fn problems_are_reported_with_their_places() {
    let text = "[sever]\n[[policy]]\nname = \"a\"\nlimit = \"5/fortnight\"\ncolour = 1\n";
    let variables = [(
        "RATEKEEPER_IDENTITY__IPV6_PREFIX".to_owned(),
        "8".to_owned(),
    )];
    let loaded = Config::parse("ratekeeper.toml", text, variables);
    assert!(loaded.config.is_none());
    let places = loaded
        .diagnostics
        .iter()
        .map(|problem| problem.location.to_string());
    assert_eq!(
        places.collect::<Vec<_>>(),
        [
            "ratekeeper.toml:1:2",
            "ratekeeper.toml:4:12",
            "ratekeeper.toml:5:1",
            "RATEKEEPER_IDENTITY__IPV6_PREFIX"
        ]
    );
}
