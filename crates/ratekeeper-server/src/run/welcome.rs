//! The text printed at the start: at most six lines about the listeners, the policies, the store
//! and the fingerprints, and three commands to try.

use crate::config::{GatewayConfig, Listen, StoreConfig};
use crate::store::{AnyStore, shared_fingerprint_secret};
use ratekeeper::Clock;
use ratekeeper_policy::{Policies, Policy};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The address of a listener, and whether it uses TLS.
pub(crate) struct ListenAddress {
    pub(crate) listen: Listen,
    pub(crate) tls: bool,
}

/// The addresses of the listeners.
#[derive(Default)]
pub(crate) struct Listeners {
    pub(crate) http: Option<ListenAddress>,
    pub(crate) grpc: Option<ListenAddress>,
    pub(crate) resp: Option<ListenAddress>,
    pub(crate) admin: Option<ListenAddress>,
}

impl ListenAddress {
    /// The URL, with one of two schemes: without TLS and with it.
    fn url(&self, [plain, tls]: [&str; 2]) -> String {
        match &self.listen {
            Listen::Tcp(address) => format!("{}://{address}", if self.tls { tls } else { plain }),
            socket => socket.to_string(),
        }
    }

    /// The arguments with which `curl` on this machine requests a path.
    fn curl_arguments(&self, path: &str) -> String {
        match &self.listen {
            Listen::Unix(socket) => {
                format!("--unix-socket {} http://localhost{path}", socket.display())
            }
            Listen::Tcp(address) => {
                format!(
                    "{}://{}{path}",
                    if self.tls { "https" } else { "http" },
                    reachable(*address)
                )
            }
        }
    }
}

/// How long the fingerprints of keys stay the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fingerprints {
    /// Over restarts and on all nodes.
    Persistent,
    /// While this process runs.
    PerProcess,
    /// Until Redis, where nodes agree on a secret, is available.
    UntilRedisAvailable,
}

impl Fingerprints {
    pub(crate) fn of<C: Clock>(config: &StoreConfig, store: &AnyStore<C>) -> Self {
        match store {
            _ if config.key_secret.is_some() => Self::Persistent,
            AnyStore::Memory(_) => Self::PerProcess,
            AnyStore::Redis(redis) if shared_fingerprint_secret(redis).is_some() => {
                Self::Persistent
            }
            AnyStore::Redis(_) => Self::UntilRedisAvailable,
        }
    }
}

/// The text for a server with these listeners. The commands run unchanged in any shell with curl.
pub(crate) fn welcome(
    listeners: &Listeners,
    gateway: Option<&GatewayConfig>,
    policies: &Policies,
    store: &StoreConfig,
    fingerprints: Fingerprints,
) -> String {
    let Listeners {
        http,
        grpc,
        resp,
        admin,
    } = listeners;
    let version = env!("CARGO_PKG_VERSION");
    let mut text = match http {
        Some(http) if gateway.is_some() => {
            format!(
                "ratekeeper {version}: gateway listening on {}\n",
                http.url(HTTP)
            )
        }
        Some(http) => {
            format!(
                "ratekeeper {version}: HTTP listening on {}\n",
                http.url(HTTP)
            )
        }
        None => format!("ratekeeper {version}: HTTP is off\n"),
    };
    if let Some(grpc) = grpc {
        text.push_str(&format!(
            "Envoy's rate limit service: {}\n",
            grpc.url(["grpc", "grpcs"])
        ));
    }
    if let Some(resp) = resp {
        let tls = if resp.tls { " --tls" } else { "" };
        let arguments = match &resp.listen {
            Listen::Unix(socket) => format!("-s {}", socket.display()),
            Listen::Tcp(address) => {
                format!("-h {} -p {}{tls}", reachable(*address).ip(), address.port())
            }
        };
        text.push_str(&format!(
            "RESP: {}, as in redis-cli {arguments} CL.THROTTLE you 15 30 60\n",
            resp.listen
        ));
    }
    if let Some(admin) = admin {
        text.push_str(&match admin.listen.tcp() {
            Some(_) => format!(
                "Live page: {} (metrics: /metrics)\n",
                admin.curl_arguments("/")
            ),
            None => format!("Metrics: curl {}\n", admin.curl_arguments("/metrics")),
        });
    }
    text.push_str(&format!(
        "Policies: {}; store: {}\n",
        policy_names(policies),
        store_name(store)
    ));
    text.push_str(match fingerprints {
        Fingerprints::Persistent => "",
        Fingerprints::PerProcess => {
            "Fingerprints change at every start; set key_secret in [store] to keep them\n"
        }
        Fingerprints::UntilRedisAvailable => {
            "Fingerprints are those of this node only until Redis is available; set key_secret in \
             [store] to keep them\n"
        }
    });
    if let Some(gateway) = gateway {
        let upstreams: Vec<String> = gateway.all_upstreams().map(ToString::to_string).collect();
        text.push_str(&format!("Upstream: {}\n", upstreams.join(", ")));
    } else if let Some(http) = http {
        let (check, throttle) = (
            http.curl_arguments("/v1/check"),
            http.curl_arguments("/v1/throttle"),
        );
        let subject = r#"{"subject":{"ip":"203.0.113.7","method":"GET","path":"/"}}"#;
        text.push_str(&format!(
            r#"
Try: a request under the policies, thirty at once, and a limit of your own.
  curl -s {check} -d '{subject}'
  for i in $(seq 30); do curl -s -o /dev/null -w '%{{http_code}} ' {check} -d '{subject}'; done; echo
  curl -s {throttle} -d '{{"key":"you","limit":"5/min"}}'
"#
        ));
    }
    text
}

const HTTP: [&str; 2] = ["http", "https"];

fn policy_names(policies: &Policies) -> String {
    if !policies.is_enabled() {
        return "disabled, every request is allowed".to_owned();
    }
    if policies.iter().eq(Policies::built_in().iter()) {
        return "100 a minute per address, burst 20 (no policies are configured)".to_owned();
    }
    policies
        .iter()
        .map(Policy::name)
        .collect::<Vec<_>>()
        .join(", ")
}

/// The store, without its password.
fn store_name(store: &StoreConfig) -> String {
    match &store.redis {
        Some(redis) => format!("Redis at {}", redis.url),
        None => format!("up to {} keys in memory", store.max_keys),
    }
}

/// The address at which a client on this machine reaches a server that listens on `address`.
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use ratekeeper::MemoryStore;

    fn of(listeners: &Listeners, policies: &Policies) -> String {
        let store = &Config::default().store;
        welcome(listeners, None, policies, store, Fingerprints::PerProcess)
    }

    fn at(listen: &str, tls: bool) -> Option<ListenAddress> {
        Some(ListenAddress {
            listen: listen.parse().unwrap(),
            tls,
        })
    }

    #[test]
    fn disabled_limits_are_reported() {
        let off = Policies::built_in().enabled(false);
        let text = of(&Listeners::default(), &off);
        let line =
            "Policies: disabled, every request is allowed; store: up to 1000000 keys in memory\n";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn fingerprints_that_change_are_reported() {
        let store = AnyStore::Memory(MemoryStore::new());
        let text = |file: &str| {
            let config = Config::parse("ratekeeper.toml", file, []).config.unwrap();
            welcome(
                &Listeners::default(),
                None,
                &Policies::built_in(),
                &config.store,
                Fingerprints::of(&config.store, &store),
            )
        };
        let line = "Fingerprints change at every start; set key_secret in [store] to keep them\n";
        assert!(text("").contains(line), "{}", text(""));
        let persistent = text("[store]\nkey_secret = \"at least sixteen bytes\"\n");
        assert!(!persistent.contains("Fingerprints"), "{persistent}");
    }

    #[test]
    fn an_unspecified_address_is_shown_as_loopback_in_the_commands() {
        for (address, url) in [
            ("0.0.0.0:80", " http://127.0.0.1:80/v1/"),
            ("[::]:81", " http://[::1]:81/v1/"),
            ("192.0.2.1:82", " http://192.0.2.1:82/v1/"),
        ] {
            let text = of(
                &Listeners {
                    http: at(address, false),
                    ..Listeners::default()
                },
                &Policies::built_in(),
            );
            assert!(
                text.contains(&format!(": HTTP listening on http://{address}\n")),
                "{text}"
            );
            assert_eq!(text.matches(url).count(), 3, "{text}");
        }
    }

    #[test]
    fn all_listeners_fit_in_six_lines() {
        let listeners = Listeners {
            http: at("127.0.0.1:8080", true),
            grpc: at("127.0.0.1:8081", true),
            resp: at("127.0.0.1:6380", true),
            admin: at("127.0.0.1:9090", true),
        };
        let text = of(&listeners, &Policies::built_in());
        let (listing, commands) = text.split_once("\n\n").unwrap();
        assert_eq!(
            (listing.lines().count(), commands.lines().count()),
            (6, 4),
            "{text}"
        );
        assert!(
            listing.contains(" https://127.0.0.1:8080\n")
                && listing.contains(" grpcs://127.0.0.1:8081\n"),
            "{listing}"
        );
        assert!(
            listing.contains(" -h 127.0.0.1 -p 6380 --tls CL.THROTTLE "),
            "{listing}"
        );
        assert!(
            listing.contains("Live page: https://127.0.0.1:9090/ ("),
            "{listing}"
        );
    }

    #[test]
    fn unix_sockets_are_shown_as_curl_and_redis_cli_arguments() {
        let socket = || at("unix:/run/x.sock", false);
        let listeners = Listeners {
            http: socket(),
            resp: socket(),
            admin: socket(),
            ..Listeners::default()
        };
        let text = of(&listeners, &Policies::built_in());
        assert!(
            text.contains(": HTTP listening on unix:/run/x.sock\n"),
            "{text}"
        );
        assert!(
            text.contains("redis-cli -s /run/x.sock CL.THROTTLE"),
            "{text}"
        );
        assert!(
            text.contains("Metrics: curl --unix-socket /run/x.sock http://localhost/metrics\n"),
            "{text}"
        );
        assert_eq!(
            text.matches("curl -s --unix-socket /run/x.sock http://localhost/v1/")
                .count(),
            2,
            "{text}"
        );
    }
}
