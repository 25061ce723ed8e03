//! The warnings of an identity: each once for it and its clones, and never with a header's value.
//!
//! A test binary of its own: tracing caches which subscribers are interested, so the only
//! subscriber must be set before the first warning.

use http::{HeaderMap, HeaderName, HeaderValue};
use ratekeeper_tower::{Identity, identity::Forwarding, identity::IdentityHints};
use std::cell::RefCell;
use std::fmt::{self, Write};
use std::net::IpAddr;
use std::sync::Once;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

thread_local! {
    /// The events of this thread, and so of this test.
    static EVENTS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Collects every event as a line.
struct Collector;

impl Subscriber for Collector {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        assert_eq!(*event.metadata().level(), Level::WARN);
        let mut line = Line(String::new());
        event.record(&mut line);
        EVENTS.with_borrow_mut(|events| events.push(line.0));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}

fn warnings(of: impl FnOnce()) -> Vec<String> {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(|| tracing::subscriber::set_global_default(Collector).unwrap());
    of();
    EVENTS.take()
}

fn trusting(header: &str, network: &str) -> Identity {
    Identity::direct()
        .trust(network.parse().unwrap())
        .header(Forwarding::named(header).unwrap())
}

fn headers(name: &str, value: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(
        HeaderName::from_bytes(name.as_bytes()).unwrap(),
        HeaderValue::from_static(value),
    )])
}

fn ip(text: &str) -> Option<IpAddr> {
    Some(text.parse().unwrap())
}

#[test]
fn a_header_from_an_untrusted_peer_is_warned_of_once() {
    for (read, sent) in [
        ("x-forwarded-for", "x-forwarded-for"),
        ("x-forwarded-for", "forwarded"),
        ("forwarded", "x-real-ip"),
        ("forwarded", "cf-connecting-ip"),
        ("x-our-own", "x-our-own"),
    ] {
        let events = warnings(|| {
            let identity = trusting(read, "10.0.0.0/8");
            let clone = identity.clone().trust("10.0.0.0/8".parse().unwrap());
            for identity in [&identity, &clone, &identity] {
                identity.client(ip("198.51.100.9"), &headers(sent, "for=6.6.6.6"));
            }
        });
        assert_eq!(events.len(), 1, "{events:?}");
        assert!(
            events[0].contains("Identity::trust") && events[0].contains("peer=198.51.100.9"),
            "{events:?}"
        );
        assert!(
            events[0].contains(&format!("header={sent}")) && !events[0].contains("6.6.6.6"),
            "{events:?}"
        );
    }
}

#[test]
fn a_missing_peer_is_warned_of_once() {
    let events = warnings(|| {
        let identity = Identity::direct();
        for identity in [&identity, &identity.clone()] {
            identity.client(None, &headers("x-forwarded-for", "6.6.6.6"));
        }
    });
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(
        events[0].contains("PeerAddr") && !events[0].contains("6.6.6.6"),
        "{events:?}"
    );
}

#[test]
fn each_identity_warns_for_itself() {
    let events = warnings(|| {
        for _ in 0..2 {
            Identity::direct().client(None, &HeaderMap::new());
        }
    });
    assert_eq!(events.len(), 2);
}

#[test]
fn no_warning_without_a_problem() {
    let events = warnings(|| {
        let identity = trusting("x-forwarded-for", "10.0.0.0/8");
        identity.client(ip("198.51.100.9"), &headers("host", "example.com"));
        identity.client(ip("10.0.0.1"), &headers("x-forwarded-for", "garbage"));
        identity.client(ip("10.0.0.1"), &HeaderMap::new());
    });
    assert!(events.is_empty(), "{events:?}");
}

#[test]
fn a_warning_advises_in_the_words_of_the_program() {
    let hints = IdentityHints {
        untrusted: "edit proxies.conf",
        no_peer: "edit sockets.conf",
    };
    let events = warnings(|| {
        let identity = Identity::direct().hints(hints);
        identity.client(ip("198.51.100.9"), &headers("x-forwarded-for", "6.6.6.6"));
        identity.client(None, &HeaderMap::new());
    });
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(
        events[0].contains("edit proxies.conf") && events[1].contains("edit sockets.conf"),
        "{events:?}"
    );
    assert!(
        !events.iter().any(|line| line.contains("::")),
        "no method is named: {events:?}"
    );
}
