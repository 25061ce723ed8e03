//! What is printed at the start: in at most six lines where it listens, what applies, where that is
//! counted, and whether fingerprints last; and three lines to try.

use crate::store::{AnyStore, shared_fingerprint_secret};
use ratekeeper::Clock;
use ratekeeper_policy::config::{GatewayConfig, Listen, StoreConfig};
use ratekeeper_policy::{Policies, Policy};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Where a listener is, and whether it speaks TLS.
pub(crate) struct ListenAddress {
    pub(crate) listen: Listen,
    pub(crate) tls: bool,
}

/// Where it listens.
#[derive(Default)]
pub(crate) struct Listeners {
    pub(crate) http: Option<ListenAddress>,
    pub(crate) grpc: Option<ListenAddress>,
    pub(crate) resp: Option<ListenAddress>,
    pub(crate) admin: Option<ListenAddress>,
}

impl ListenAddress {
    /// With the scheme that is spoken there, of two: without TLS and with it.
    fn url(&self, [plain, tls]: [&str; 2]) -> String {
        match &self.listen {
            Listen::Tcp(address) => format!("{}://{address}", if self.tls { tls } else { plain }),
            socket => socket.to_string(),
        }
    }

    /// How a client on this machine asks for a path there, behind `curl`.
    fn asked(&self, path: &str) -> String {
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
            other => other.to_string(),
        }
    }
}

/// How long a key is shown by the same fingerprint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fingerprints {
    /// After a restart too, and on all nodes.
    Lasting,
    /// As long as this process runs.
    OfThisProcess,
    /// Redis, where nodes agree on a secret, does not answer.
    UntilRedisAnswers,
}

impl Fingerprints {
    pub(crate) fn of<C: Clock>(config: &StoreConfig, store: &AnyStore<C>) -> Self {
        match store {
            _ if config.key_secret.is_some() => Self::Lasting,
            AnyStore::Memory(_) => Self::OfThisProcess,
            AnyStore::Redis(redis) if shared_fingerprint_secret(redis).is_some() => Self::Lasting,
            AnyStore::Redis(_) => Self::UntilRedisAnswers,
        }
    }
}

/// The text for a server that listens there. The lines run as they are in any shell with curl.
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
            format!("ratekeeper {version} is a gateway on {}\n", http.url(HTTP))
        }
        Some(http) => format!("ratekeeper {version} serves HTTP on {}\n", http.url(HTTP)),
        None => format!("ratekeeper {version} serves no HTTP\n"),
    };
    if let Some(grpc) = grpc {
        text.push_str(&format!(
            "Envoy's rate limit service: {}\n",
            grpc.url(["grpc", "grpcs"])
        ));
    }
    if let Some(resp) = resp {
        let tls = if resp.tls { " --tls" } else { "" };
        let to = match &resp.listen {
            Listen::Unix(socket) => format!("-s {}", socket.display()),
            Listen::Tcp(address) => {
                format!("-h {} -p {}{tls}", reachable(*address).ip(), address.port())
            }
            _ => String::new(),
        };
        text.push_str(&format!(
            "RESP: {}, as in redis-cli {to} CL.THROTTLE you 15 30 60\n",
            resp.listen
        ));
    }
    if let Some(admin) = admin {
        text.push_str(&match admin.listen.tcp() {
            Some(_) => format!(
                "Live page: {} (figures for Prometheus: /metrics)\n",
                admin.asked("/")
            ),
            None => format!("Metrics: curl {}\n", admin.asked("/metrics")),
        });
    }
    text.push_str(&format!(
        "Policies: {}; counted in {}\n",
        applies(policies),
        counted(store)
    ));
    text.push_str(match fingerprints {
        Fingerprints::Lasting => "",
        Fingerprints::OfThisProcess => {
            "Fingerprints of keys are new at every start and on every node; key_secret in [store] makes them stay\n"
        }
        Fingerprints::UntilRedisAnswers => {
            "Fingerprints of keys are those of this node alone until Redis answers; key_secret in [store] makes them stay\n"
        }
    });
    if let Some(gateway) = gateway {
        let upstreams: Vec<String> = gateway.upstreams.iter().map(ToString::to_string).collect();
        text.push_str(&format!("Upstream: {}\n", upstreams.join(", ")));
    } else if let Some(http) = http {
        let (check, throttle) = (http.asked("/v1/check"), http.asked("/v1/throttle"));
        let subject = r#"{"subject":{"ip":"203.0.113.7","method":"GET","path":"/"}}"#;
        text.push_str(&format!(
            r#"
Three lines to try: a request by the policies, thirty at once, and a limit of your own.
  curl -s {check} -d '{subject}'
  for i in $(seq 30); do curl -s -o /dev/null -w '%{{http_code}} ' {check} -d '{subject}'; done; echo
  curl -s {throttle} -d '{{"key":"you","limit":"5/min"}}'
"#
        ));
    }
    text
}

const HTTP: [&str; 2] = ["http", "https"];

fn applies(policies: &Policies) -> String {
    match policies.is_enabled() {
        true if policies.iter().eq(Policies::built_in().iter()) => {
            "100 a minute for each address, 20 at once (no policies are configured)".to_owned()
        }
        true => policies
            .iter()
            .map(Policy::name)
            .collect::<Vec<_>>()
            .join(", "),
        false => "switched off, everything passes".to_owned(),
    }
}

/// The store, without its password.
fn counted(store: &StoreConfig) -> String {
    match &store.redis {
        Some(redis) => format!("Redis, {}", redis.url),
        None => format!(
            "the memory of this process, {} keys at most",
            store.max_keys
        ),
    }
}

/// Where a client on this machine finds a server that listens on `address`.
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
    use ratekeeper::MemoryStore;
    use ratekeeper_policy::config::Config;

    fn of(listeners: &Listeners, policies: &Policies) -> String {
        let store = &Config::default().store;
        welcome(
            listeners,
            None,
            policies,
            store,
            Fingerprints::OfThisProcess,
        )
    }

    fn at(listen: &str, tls: bool) -> Option<ListenAddress> {
        Some(ListenAddress {
            listen: listen.parse().unwrap(),
            tls,
        })
    }

    #[test]
    fn limits_that_are_off_are_said_to_be() {
        let off = Policies::built_in().enabled(false);
        let text = of(&Listeners::default(), &off);
        let says = "Policies: switched off, everything passes; counted in the memory of this process, 1000000 keys at most\n";
        assert!(text.contains(says), "{text}");
    }

    #[test]
    fn fingerprints_that_do_not_last_are_said_not_to() {
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
        let says = "Fingerprints of keys are new at every start and on every node; key_secret in [store] makes them stay\n";
        assert!(text("").contains(says), "{}", text(""));
        let lasting = text("[store]\nkey_secret = \"at least sixteen bytes\"\n");
        assert!(!lasting.contains("Fingerprints"), "{lasting}");
    }

    #[test]
    fn a_server_on_every_address_is_tried_on_loopback() {
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
                text.contains(&format!("serves HTTP on http://{address}\n")),
                "{text}"
            );
            assert_eq!(text.matches(url).count(), 3, "{text}");
        }
    }

    #[test]
    fn everything_at_once_is_told_in_six_lines() {
        let listeners = Listeners {
            http: at("127.0.0.1:8080", true),
            grpc: at("127.0.0.1:8081", true),
            resp: at("127.0.0.1:6380", true),
            admin: at("127.0.0.1:9090", true),
        };
        let text = of(&listeners, &Policies::built_in());
        let (told, tries) = text.split_once("\n\n").unwrap();
        assert_eq!(
            (told.lines().count(), tries.lines().count()),
            (6, 4),
            "{text}"
        );
        assert!(
            told.contains(" https://127.0.0.1:8080\n")
                && told.contains(" grpcs://127.0.0.1:8081\n"),
            "{told}"
        );
        assert!(
            told.contains(" -h 127.0.0.1 -p 6380 --tls CL.THROTTLE "),
            "{told}"
        );
        assert!(
            told.contains("Live page: https://127.0.0.1:9090/ ("),
            "{told}"
        );
    }

    #[test]
    fn unix_sockets_are_told_as_curl_and_redis_cli_take_them() {
        let socket = || at("unix:/run/x.sock", false);
        let listeners = Listeners {
            http: socket(),
            resp: socket(),
            admin: socket(),
            ..Listeners::default()
        };
        let text = of(&listeners, &Policies::built_in());
        assert!(text.contains("serves HTTP on unix:/run/x.sock\n"), "{text}");
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
