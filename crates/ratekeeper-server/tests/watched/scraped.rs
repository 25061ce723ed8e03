//! All metric families: of a service, a gateway and a node of a fleet after varied traffic.

use crate::support::{Server, config_file, directory, eventually, for_envoy, ratekeeper, service};
use ratekeeper_testkit::RedisServer;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// A metric family.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Family {
    pub(crate) kind: String,
    /// Label names, each with all its values.
    pub(crate) labels: BTreeMap<String, BTreeSet<String>>,
}

/// The families of all pages, by name.
pub(crate) fn families(pages: &[String]) -> BTreeMap<String, Family> {
    let mut families = BTreeMap::<String, Family>::new();
    let mut current = String::new();
    for line in pages.iter().flat_map(|page| page.lines()) {
        if let Some(declaration) = line.strip_prefix("# TYPE ") {
            let (name, kind) = declaration.split_once(' ').unwrap();
            kind.clone_into(&mut families.entry(name.to_owned()).or_default().kind);
            name.clone_into(&mut current);
        } else if !line.starts_with('#') {
            let family = families.get_mut(&current).unwrap();
            let labels = line
                .split_once('{')
                .map_or("", |(_, rest)| rest.rsplit_once('}').unwrap().0);
            for (name, value) in labels_of(labels) {
                if name != "le" {
                    family.labels.entry(name).or_default().insert(value);
                }
            }
        }
    }
    families
}

/// Parses `a="b",c="d"`, without quotes in values.
fn labels_of(text: &str) -> Vec<(String, String)> {
    let pairs = text.split("\",").filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once("=\"").unwrap())
        .map(|(name, value)| (name.to_owned(), value.trim_end_matches('"').to_owned()))
        .collect()
}

/// The `/metrics` pages of all three.
pub(crate) fn pages() -> Vec<String> {
    let page = |server: &Server| server.admin("GET", "/metrics").body;
    vec![
        page(&decision_service()),
        page(&gateway()),
        page(&fleet_node()),
    ]
}

/// A service with enforced and shadow policies, a penalty and an Envoy rule.
fn decision_service() -> Server {
    let limits = directory(&[(
        "shop.yaml",
        "domain: shop\ndescriptors:\n  - key: path\n    rate_limit: {unit: day, requests_per_unit: 1}\n",
    )]);
    let policies = config_file(
        "[[policy]]\nname = \"user\"\nkey = [\"user\"]\nlimit = \"2/d\"\npenalty = { denials = 1, within = \"1m\", ban = \"1h\" }\n\
         [[policy]]\nname = \"watched\"\nkey = []\nlimit = \"1/d\"\naction = \"shadow\"\n",
    );
    let mut command = for_envoy(&limits);
    command.arg("--config").arg(policies);
    let server = Server::run(command);
    for _ in 0..5 {
        server.check(&json!({"subject": {"user": "ann"}}).to_string());
    }
    server
}

/// A gateway with a delaying policy, and one upstream of two unavailable.
fn gateway() -> Server {
    let file = config_file(
        "[gateway]\naccess_log = \"off\"\n[traces]\nendpoint = \"http://127.0.0.1:1\"\n[[policy]]\nname = \"slow\"\nlimit = \"20/s burst 1\"\n\
         action = \"delay\"\nmax_delay = \"1m\"\nadaptive = {}\n[shed]\n",
    );
    let mut command = ratekeeper();
    command.args([
        "proxy",
        "--listen",
        "127.0.0.1:0",
        "--upstream",
        &format!("http://{}", service()),
    ]);
    command
        .args(["--upstream", "http://127.0.0.1:1", "--config"])
        .arg(file);
    let server = Server::run(command);
    for _ in 0..4 {
        server.request("GET", "/", "");
    }
    server
}

/// A node on Redis, after an outage.
fn fleet_node() -> Server {
    let redis = RedisServer::start();
    let server = Server::with_config(&format!(
        "[server]\nhttp = \"127.0.0.1:0\"\n[store]\nkind = \"redis\"\nurl = \"{}\"\n\
         [[policy]]\nname = \"user\"\nkey = [\"user\"]\nlimit = \"100/min burst 50\"\nmode = \"leased\"\n",
        redis.url()
    ));
    let ask = || {
        server
            .check(&json!({"subject": {"user": "ann"}}).to_string())
            .json()["source"]
            .clone()
    };
    for _ in 0..20 {
        ask();
    }
    redis.kill();
    eventually("the fallback", || ask() == json!("local_share"));
    server
}
